"""What the checker refuses to read: one line on stderr, exit code 2, nothing on stdout, and never a traceback."""

import copy
import json
import math
import random
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from certify.certificates import read, write, write_all
from certify.exact_network import images
from check.certificate_maker import DROP, Certificate, Outcome, check, make_step, put, weights_hash
from isoconv.check import Malformed, files
from isoconv.nn import (
    ChannelShift,
    ConvexPotential2d,
    Householder,
    L2NormPool2d,
    LayerCentering,
    MaxMin,
    Normalize,
    PositionBias,
)

Table = dict[str, Any]


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.CircularPad2d((1, 0, 1, 0)), nn.Conv2d(2, 4, 2)), MaxMin(), nn.MaxPool2d(2, stride=1),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    result = Certificate(tmp_path_factory.mktemp("honest"), tiny(), (2, 4, 3), images=2, version=1)
    assert result.check(images=result.pixels.numpy()).code == 0
    return result


def require_refused(outcome: Outcome, message: str) -> None:
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.count("\n") == 1 and re.search(message, outcome.err), outcome.err


HEX = "finite hexadecimal number"
# (place, what is put there, what the message must name)
REFUSED: list[tuple[str, Any, str]] = [
    ("format", "something", "format .* 'isoconv certificate'.* Got 'something'"),
    ("version", True, "version .* Got True"),
    ("norm", "inf", "norm .* Got 'inf'"),
    ("arithmetic", "bfloat16", "'float64' or 'float32'. Got 'bf"),
    ("claim", DROP, "have an entry 'claim'"),
    ("layers", DROP, "have an entry 'layers'"),
    ("layers.2.lipschitz", DROP, "entry 2 of layers .* 'lipschitz'"),
    ("layers.2.lipschitz", "-0x1.0p+0", "at least 0. Got -1.0"),
    ("layers.2.lipschitz", "nan", f"lipschitz .* {HEX}.* Got 'nan'"),
    ("lipschitz", "0x1.0p+1024", f"lipschitz .* {HEX}.* Got '0x1.0p\\+1024'"),
    ("lipschitz", "0x1.00000000000001p+0", f"lipschitz .* {HEX}"),
    ("error_slope", "1.5", f"error_slope .* {HEX}.* Got '1.5'"),
    ("error_offset", "-0x1.0p-9", "error_offset .* at least 0"),
    ("input_shape", [], "input_shape .* list of 1 to "),
    ("input_shape", [2, 0, 3], "input_shape .* from 1"),
    ("input_shape", [2, 10**9, 10**9], "numbers, the limit"),
    ("input_shape", [3, 4, 3], "2 channels in 1 groups. Got shape"),
    ("input_shape", [24], r"an input \(channels, height, width\). Got shape"),
    ("input_range", [(1.0).hex(), (0.0).hex()], "input_range"),
    ("pair_constants.1.2", DROP, "pair_constants"),
    ("layers.2.kind", "BatchNorm2d", r"Got 'BatchNorm2d of version 1' \(layer 1\)"),
    ("layers.6.kind", "Linear1d", "Got 'Linear1d'"),
    ("layers.6.kind", "Reshape", "Got 'Reshape of version 1'"),
    ("layers.2.kind", "a\nb\x1b[2J\ud800", "Got 'a.nb.x1b"),
    ("layers.3.settings.ceil_mode", True, "'ceil_mode"),
    ("layers.1.settings.groups", DROP, "layer 0.1 .* 'groups'"),
    ("layers.1.settings.groups", 2, "4 channels in 2 groups. Got shape"),
    ("layers.1.settings.padding_mode", "mirror", "padding_mode .* Got 'mirror'"),
    ("layers.1.settings.stride", [0, 1], "the stride of layer 0.1 .* from 1"),
    ("layers.1.settings.dilation", [2**62, 1], "the dilation of layer 0.1"),
    ("layers.1.settings.dilation", [9, 1], "large enough for one output"),
    ("layers.0.settings.padding", [1, 0, -1, 0], "the padding of layer 0.0"),
    ("layers.0.settings.padding", [1 << 20] * 4, "numbers, the limit"),
    ("layers.3.settings.padding", [9, 0], "every window to reach"),
    ("layers.2.name", "2", "each layer once. Got '2' again"),
    ("layers.5.settings.start_dim", 0, "start_dim"),
    ("images", None, "images .* a list. Got None"),
    ("images.1.logits", DROP, "entry 1 of images .* 'logits'"),
    ("images.1.logits.0", DROP, "the logits of entry 1 .* list of 3"),
    ("images.0.prediction", 3, "the prediction of .* from 0 to 2. Got 3"),
    ("images.0.label", 3, "the label of entry 0 .* Got 3"),
    ("images.0.radius", (-5e-324).hex(), "the radius of .* at least 0"),
    ("images.0.radius", "0x1.0p-1080", f"the radius of .* {HEX}"),
]


@pytest.mark.parametrize(("path", "value", "message"), REFUSED, ids=[f"{n} {row[0]}" for n, row in enumerate(REFUSED)])
def test_malformed_certificates_are_refused(path, value, message, honest):
    require_refused(honest.check(put(path, value)), message)


def test_the_number_of_logits_has_to_be_the_number_of_classes(honest):
    shorter = put("classes", 4, "pair_constants", [[(0.0).hex()] * 4] * 4, "images", [])
    require_refused(honest.check(shorter), r"Expected layers that give 4 logits. Got shape \[3\].")


def test_files_that_are_not_there_or_not_certificates(honest, tmp_path):
    honest.check()
    file, model = honest.folder / "certificate.json", honest.model_file
    require_refused(check(tmp_path / "none.json", model), "none.json cannot be read: No such file or directory.")
    require_refused(check(tmp_path, model), "cannot be read: Is a directory.")
    require_refused(check(file, tmp_path), "model.safetensors cannot be read: No such file or directory.")
    require_refused(check(f"{file}\0", model), "cannot be read")
    for text, message in {
        b"": "is not valid JSON",
        b"{": "is not valid JSON",
        b"[1, 2]": "to be a JSON object",
        b"\xff\xfe": "is not valid JSON",
        b'{"format": 1, "format": 2}': "the name 'format' occurs twice",
        b"[" * 100_000: "is not valid JSON",
        b'{"version": ' + b"9" * 5000 + b"}": "is not valid JSON",
    }.items():
        (tmp_path / "bad.json").write_bytes(text)
        require_refused(check(tmp_path / "bad.json", model), message)


def test_wrong_arguments():
    required = "the following arguments are required: FILE, MODEL. Usage: check FILE MODEL"
    for arguments, message in {
        "": required,
        "a b c": "unrecognized .*: c. Usage",
        "a b --images": "one argument",
    }.items():
        require_refused(check(*arguments.split()), message)


def header_of(data: bytes) -> tuple[Table, bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def with_bias(**changes: Any) -> Callable[[Table, bytes], bytes]:
    return lambda header, body: with_header({**header, "5.bias": {**header["5.bias"], **changes}}, body)


def with_entry(name: str, entry: Any) -> Callable[[Table, bytes], bytes]:
    return lambda header, body: with_header({**header, name: entry}, body)


NOT_SAFETENSORS = "is truncated or not a safetensors file"
BROKEN_MODELS: list[tuple[Callable[[Table, bytes], bytes], str]] = [
    (lambda header, body: b"", NOT_SAFETENSORS),
    (lambda header, body: with_header(header, body)[:40], NOT_SAFETENSORS),
    (lambda header, body: b"\xff" * 8 + body, NOT_SAFETENSORS),  # an enormous header
    (lambda header, body: with_header(header, body[:-1]), "it is truncated"),
    (lambda header, body: with_header(header, body + b"1234"), "4 bytes belong to no tensor"),
    (lambda header, body: b"\x02" + bytes(7) + b"{]" + body, "is not valid JSON"),
    (lambda header, body: with_header([header], body), "to be a JSON object"),
    (with_bias(dtype="BF16"), "Got 'BF16'"),
    (with_bias(shape=[4]), r"has 12 bytes, which do not fit its shape \[4\]"),
    (with_bias(shape=[0, 10**30]), "Expected the shape of tensor '5.bias' .* a whole number from 1 .*Got 0."),
    (with_bias(data_offsets=[9, 3]), "lies outside of the file"),
    (with_entry("x", {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}), "its tensors overlap or leave gaps"),
    (with_entry("\ud800", {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}), "Expected another name"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN_MODELS)
def test_broken_models_are_refused(change, message, honest, tmp_path):
    honest.check()
    (tmp_path / "model.safetensors").write_bytes(change(*header_of(honest.model_file.read_bytes())))
    require_refused(check(honest.folder / "certificate.json", tmp_path), message)


def test_weights_that_are_not_finite_or_not_of_the_arithmetic_are_refused(tmp_path):
    model = tiny().double()
    certificate = Certificate(tmp_path, model, (2, 4, 3))
    message = "Expected float32 weights for float32 arithmetic. Got float64 for 0.1.weight."
    require_refused(certificate.check(put("arithmetic", "float32")), message)
    for value in (math.nan, math.inf):
        model[5].bias.data[1] = value
        certificate.save_model()
        certificate.table["weights_sha256"] = weights_hash(model.state_dict())
        require_refused(certificate.check(put("images", [])), "5.bias holds a number that is not finite")


OTHER_IMAGES = [
    (np.zeros((2, 2, 4, 3), np.float32), "float64 or uint8. Got '<f4'"),
    (np.zeros((2, 2, 4, 3), ">f8"), "float64 or uint8. Got '>f8'"),
    (np.zeros((2, 4, 3)), r"Expected images of shape \[2, 4, 3\] in .*. Got \[2, 4, 3\]."),
    (np.zeros((1, 3, 4, 2)), r"Expected images of shape \[2, 4, 3\] in .*. Got \[1, 3, 4, 2\]."),
    (np.zeros(()), r"Expected images of shape \[2, 4, 3\]"),
]
HEADERS = [
    (b"(", b" "),  # no bracket
    (b"'<f8'", b"a_b_c"),  # a name
    (b"'descr'", b"[[0]]  "),  # unhashable
    (b"'descr': '<f8', ", b" " * 16),  # a field less
    (b"(2, ", b"(-2,"),
    (b"(2, 2, 4, 3), }         ", b"(999999999, 2, 4, 3), } "),
    (b"descr", b"desc\xff"),
    (b"\x93NUMPY\x01", b"\x93NUMPY\x09"),
]


def test_files_of_images_that_cannot_be_read(honest, tmp_path):
    for array, message in OTHER_IMAGES:
        require_refused(honest.check(images=array), message)
    arguments = [honest.folder / "certificate.json", honest.model_file, "--images"]
    require_refused(check(*arguments, tmp_path / "none.npy"), "none.npy cannot be read: No such file or directory.")
    file = tmp_path / "images.npy"
    np.save(file, honest.pixels.numpy())
    data = file.read_bytes()
    np.savez(tmp_path / "several.npz", a=np.zeros(3))
    np.save(file, np.array([{}], object), allow_pickle=True)
    broken = [(tmp_path / "several.npz").read_bytes(), file.read_bytes(), data + b"0"]
    broken += [data[:n] for n in (0, 4, 40, -1)]
    for old, new in HEADERS:
        assert old in data[:128]
        broken.append(data[:128].replace(old, new)[:128] + data[128:])
    for content in broken:
        file.write_bytes(content)
        require_refused(check(*arguments, file), "images.npy")


def paths(value: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every place in a JSON value, and what is there."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield f"{before}{key}", inner
        yield from paths(inner, f"{before}{key}.")


def test_no_wrong_value_anywhere_is_accepted_or_ends_in_a_traceback(honest):
    """Each place in the file holds, in turn, some wrong values."""
    images, accepted, draw = honest.pixels.numpy(), set(), random.Random(2)
    wrong = (None, True, -1, 10**30, 0.5, "x", [], {}, [[]])
    for path, there in paths(honest.table):
        for value in (*draw.sample(wrong, 2), "0x1.0p-1022", 0):
            outcome = honest.check(put(path, value), images=images)
            assert (outcome.out + outcome.err).count("\n") == 1
            if outcome.code == 0 and repr(value) != repr(there):
                accepted.add(path)
    # The name of a layer without weights is for people; with no images, nothing is said about any; no
    # image need be in the file of images; a range that holds the images and a smaller radius are true as well; a label
    # may be left out; the last axis is also −1.
    weightless = [n for n, layer in enumerate(honest.table["layers"]) if layer["kind"] not in ("Conv2d", "Linear")]
    names = {f"layers.{n}.name" for n in weightless}
    assert accepted <= {"images", "input_range.0", "layers.5.settings.end_dim", *names} | {
        f"images.{k}.{key}" for k in range(2) for key in ("index", "radius", "label")
    }


def test_no_corrupted_file_ends_in_a_traceback(honest, tmp_path):
    """Random bytes changed, in the certificate and in the model."""
    honest.check()
    generator = random.Random(0)
    sources = {"certificate.json": honest.folder / "certificate.json", "model.safetensors": honest.model_file}
    for name, source in sources.items():
        data = source.read_bytes()
        files = {**sources, name: tmp_path / name}
        for _ in range(100):
            changed = bytearray(data)
            for _ in range(generator.choice([1, 1, 4])):
                changed[generator.randrange(len(data))] = generator.randrange(256)
            (tmp_path / name).write_bytes(changed[: generator.choice([len(data), generator.randrange(len(data))])])
            outcome = check(files["certificate.json"], files["model.safetensors"])
            assert outcome.code in (0, 1, 2) and (outcome.out + outcome.err).count("\n") == 1
            if name == "model.safetensors" and outcome.code == 0:  # then only the header's white space has changed
                assert header_of(bytes(changed)) == header_of(data)


def test_an_old_certificate_is_kept_in_memory_once(tmp_path):
    """As one of version 2 is; also where the object ends in the first line and something follows."""
    peaks = []
    for version, rest in ((2, ""), (1, ""), (1, " \n"), (1, "{}")):
        path = tmp_path / "certificate"
        path.write_text(f'{{"version": {version}, "more": [{"[], " * 100_000}[]]}}\n{rest}')
        tracemalloc.start()
        with pytest.raises(Malformed):
            files.read_certificate(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) <= 1.3 * peaks[0]


# Settings, and what they cost -------------------------------------------------------------------------------------


def positions(outputs: int, first: float, step: float) -> list[dict[str, Any]]:
    return [{"outputs": outputs, "first": first.hex(), "step": step.hex()}]


LINEAR_UPSAMPLE = (nn.Upsample(scale_factor=2, mode="linear"), (1, 5))
TRANSPOSED = (nn.ConvTranspose1d(1, 1, 2), (1, 5))
SENSELESS: list[tuple[tuple[nn.Module, tuple[int, ...]], str, list[Any]]] = [
    ((nn.Softplus(), (3,)), "threshold", [(-1.0).hex(), (750.0).hex()]),
    ((nn.Softplus(), (3,)), "beta", [(0.0).hex()]),
    ((nn.CELU(), (3,)), "alpha", [(-1.0).hex()]),
    ((nn.GELU(), (3,)), "approximate", ["erf"]),
    ((nn.Softmax(1), (3,)), "dim", [0, 2]),
    ((nn.AdaptiveAvgPool1d(2), (1, 5)), "output_size", [[0], [2, 1]]),
    ((nn.ReflectionPad1d(2), (2, 4)), "padding", [[[4, 0]], [[0, 4]]]),
    (TRANSPOSED, "padding", [[[3, 3]]]),
    (TRANSPOSED, "stride", [[1 << 20]]),
    (TRANSPOSED, "groups", [2]),
    (LINEAR_UPSAMPLE, "factors", [[2, 2], [], {}, [{}], [{"outputs": 10, "first": (0.0).hex()}], [[10, 0, 1]]]),
    (LINEAR_UPSAMPLE, "factors", [positions(10, *at) for at in ((-9.0, 0.5), (0.0, 1e-9), (0.0, 5.0), (0.4, 0.5))]),
    (LINEAR_UPSAMPLE, "factors", [positions(5, 0.0, 0.75), positions(1 << 20, 0.0, 1e-5)]),
]


@pytest.mark.parametrize(("case", "name", "values"), SENSELESS, ids=lambda value: str(value)[:40])
def test_settings_that_make_no_sense(case: Any, name: str, values: list[Any], tmp_path: Path) -> None:
    module, shape = case
    arguments = write_all(nn.Sequential(module, nn.Flatten()), images(1, *shape), tmp_path)
    header, lines = read(Path(arguments[0]))
    for value in values:
        header["nodes"][0]["settings"][name] = value
        write(Path(arguments[0]), header, lines)
        require_refused(check(*arguments), "")


AT = "nodes.0.settings"
IMAGE = r"Expected an input \(channels, height, width\)"
# A module alone and its input, what the certificate says instead of what is true of it, and what the answer names.
MISPLACED: list[tuple[nn.Module, tuple[int, ...], list[tuple[Any, ...]], str]] = [
    (L2NormPool2d(2), (2, 4, 4), [("input_shape", [4, 4])], IMAGE),
    (L2NormPool2d(2), (2, 4, 4), [("input_shape", [2, 1, 4])], "large enough for one output"),
    (L2NormPool2d(2), (2, 4, 4), [(f"{AT}.stride", value) for value in ([1, 2], [2, 1], None)], "do not overlap"),
    (L2NormPool2d(2), (2, 4, 4), [(f"{AT}.kernel_size", value) for value in ([2, 3], None)], "do not overlap"),
    (Householder(4), (4, 3, 2), [("input_shape", [5, 3, 2])], "an even number of channels"),
    (Householder(4), (4, 3, 2), [("input_shape", [6, 3, 2])], "vectors of 6 numbers"),
    (nn.BatchNorm2d(4), (4, 3, 2), [("input_shape", [4, 3])], "an input of 3 axes"),
    (ChannelShift(0.25), (8, 2, 2), [("input_shape", [8, 2])], IMAGE),
    (ChannelShift(0.25), (8, 2, 2), [("input_shape", [7, 2, 2])], "at least 8 channels"),
    (PositionBias(2, 3), (2, 2, 3), [("input_shape", [6])], IMAGE),
    (PositionBias(2, 3), (2, 2, 3), [("input_shape", [2, 3, 3])], "bias of 9 numbers"),
    (LayerCentering((2, 3)), (2, 3, 3), [(f"{AT}.axes", axes) for axes in ([2, 1], [1, 1], [1, 3])], "in order"),
    (MaxMin(), (4, 3), [(f"{AT}.axis", 2)], "an axis 2"),
    (nn.Unflatten(1, (2, 2)), (4, 3), [(f"{AT}.unflattened_size", [3, 2])], "6 numbers along axis 1"),
    (nn.Unflatten(1, (2, 2)), (4, 3), [(f"{AT}.unflattened_size", [3], f"{AT}.dim", 0)], "along axis 0"),
    (nn.PixelShuffle(2), (4, 2, 3), [("input_shape", [3, 2, 4]), ("input_shape", [4, 6])], "4 divides"),
    (nn.Hardtanh(), (3,), [(f"{AT}.min_val", (1.5).hex())], "min_val not above max_val"),
    (nn.Hardtanh(), (3,), [("arithmetic", "float32", f"{AT}.max_val", (1e300).hex())], "max_val that float32 can hold"),
    (nn.AvgPool2d(2), (1, 4, 4), [(f"{AT}.divisor_override", 0)], "other than 0"),
    (nn.AdaptiveAvgPool2d(2), (1, 4, 4), [("input_shape", [4, 4])], "3 axes"),
    (nn.Upsample(scale_factor=2), (1, 4), [("input_shape", [4])], r"an input \(channels"),
    (nn.Conv1d(2, 4, 1), (2, 3), [(f"{AT}.groups", 3)], "that 3 groups divide"),
    (nn.ConvTranspose1d(2, 4, 2), (2, 3), [("input_shape", [2, 3, 1])], "an input of 2 axes"),
    (nn.ConvTranspose1d(2, 4, 2), (2, 3), [("input_shape", [3, 3])], "2 channels in 1 groups"),
    (ConvexPotential2d(2, 3, 3), (2, 4, 5), [("input_shape", [3, 4, 5])], "2 channels"),
    (ConvexPotential2d(2, 3, 3), (2, 4, 5), [(f"{AT}.padding", [[0, 0], [0, 0]])], "padding that keeps the size"),
]


@pytest.mark.parametrize(("module", "shape", "changes", "named"), MISPLACED, ids=lambda value: str(value)[:40])
def test_kinds_where_they_do_not_fit(
    module: nn.Module, shape: tuple[int, ...], changes: list[tuple[Any, ...]], named: str, tmp_path: Path
) -> None:
    file, model, *_ = write_all(nn.Sequential(module, nn.Flatten()), images(1, *shape), tmp_path)
    header, lines = read(Path(file))
    for change in changes:
        told = copy.deepcopy(header)
        put(*change)(told)
        write(Path(file), told, lines)
        require_refused(check(file, model), f"{type(module).__name__}.*{named}")


# A module alone, one of its tensors, what the model holds instead, and what the answer names.
TENSORS: list[tuple[nn.Module, str, list[float], str]] = [
    *((Householder(4), "vectors", [f, 1.0, f, 1.0], "vectors of ordinary length") for f in (0.0, 2.0**-40, 2.0**40)),
    *((nn.BatchNorm2d(4), "running_var", [1.0, v, 1.0, 1.0], "variances of at least 0") for v in (-1e-6, -1.0)),
    (nn.BatchNorm2d(4, eps=0.0), "running_var", [1.0, 0.0, 1.0, 1.0], "with eps normal numbers"),
    (nn.Linear(2, 2), "weight", [1.0, 1.0], "a weight .outputs, inputs."),
    *((Normalize([0.0] * 4, [1.0] * 4), "std", [1.0, std, 1.0, 1.0], "stds that are normal") for std in (0.0, -1.0)),
]


@pytest.mark.parametrize(("module", "name", "numbers", "named"), TENSORS, ids=lambda value: str(value)[:40])
def test_tensors_that_make_no_sense(
    module: nn.Module, name: str, numbers: list[float], named: str, tmp_path: Path
) -> None:
    model = nn.Sequential(module, nn.Flatten())
    honest = Certificate(tmp_path, model, (4, 3, 2))
    getattr(module, name).data = torch.tensor(numbers)
    honest.save_model()
    honest.table["weights_sha256"] = weights_hash(model.state_dict())
    require_refused(honest.check(), f"{type(module).__name__}.*{named}")


@pytest.mark.parametrize(("padding", "said"), [(9000, "numbers at once"), (1200, "more computation")])
def test_padding_that_no_image_needs(padding: int, said: str, tmp_path: Path) -> None:
    """One pixel among very many zeros, of which four are seen: all of them would be kept and moved."""
    arguments = write_all(nn.Sequential(nn.Conv2d(1, 1, 1, 2, 1), nn.Flatten()), images(60, 1, 1, 1), tmp_path)
    header, lines = read(Path(arguments[0]))
    header["nodes"][0]["settings"] |= {"padding": [[padding, padding]] * 2, "stride": [2 * padding] * 2}
    write(Path(arguments[0]), header, lines)
    require_refused(check(*arguments), said)


def test_the_jump_of_softplus_is_not_in_the_checkers_own_logits() -> None:
    """In float32 its own error, for float64, leaves the jump out."""
    x = np.array([20.0, 20.001])
    assert np.abs(make_step("Softplus", beta=1.0, threshold=20.0).apply(x) - x - np.exp(-x)).max() < 1e-14


def test_work_and_memory_in_proportion() -> None:
    """Pooling and interpolation that would take long are refused before they do; a kernel of ones, before it is made."""
    for kind, size, settings in (
        ("AdaptiveAvgPool1d", 1 << 18, {"output_size": (1 << 16,)}),
        ("Upsample", 1 << 15, {"factors": positions(1 << 16, -0.25, 0.5)}),
    ):
        with pytest.raises(Malformed, match="computation"):
            make_step(kind, (1, size), 1e9, **settings)
    settings = {"kernel_size": (6001, 6001), "stride": (6001, 6001), "padding": ((3000, 3000),) * 2, "ceil_mode": False}
    step = make_step("AvgPool2d", (1, 1, 1), 1e11, **settings, count_include_pad=True, divisor_override=1)
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="computation"):
            step.prove()
        assert tracemalloc.get_traced_memory()[1] < 1e8
    finally:
        tracemalloc.stop()
