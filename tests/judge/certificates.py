"""Weights files and mutated certificates, in the format of version 1: a mutation is a function of a base file and a seed."""

import copy
import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from judge.networks import Draw, Spec, build

Json = dict[str, Any]
Weights = dict[str, np.ndarray[Any, Any]]
_ODD = (None, True, 0, -1, 1.5, "", "0x1p+0", "nan", "inf", "-0x1.0000000000000p+0", [], {}, 10**400, "0X1.8P+0", "é")
_KINDS = ("ReLU", "Abs", "MaxMin", "Identity", "Linear", "Conv1d", "Conv2d", "Flatten", "Scale", "AvgPool2d", "Tanh")


def weights_of(spec: Spec) -> bytes:
    """Return the safetensors file of the network that `spec` describes."""
    return save({name: tensor.numpy() for name, tensor in build(spec).state_dict().items()})


def weights_sha256(weights: Weights) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(weights.items()):
        shape = ",".join(map(str, values.shape))
        digest.update(f"{name}\0{values.dtype}\0{shape}\0".encode() + values.tobytes())
    return digest.hexdigest()


def mutate(certificate: Json, weights: bytes, seed: int | None) -> tuple[list[str], bytes, bytes]:
    """Return the names of the mutations and the two files; without a seed the files as they are."""
    if seed is None:
        return [], json.dumps(certificate).encode(), weights
    draw = Draw(seed, 14)
    content = copy.deepcopy(certificate)
    names = []
    for _ in range(draw.pick((1, 1, 1, 1, 2, 3))):
        mutation = draw.pick(_MUTATIONS)
        try:
            weights = (
                mutation(content, weights, draw) if mutation in _OF_WEIGHTS else mutation(content, draw) or weights
            )
        except Exception:  # an earlier one has left nothing to change
            continue
        names.append(mutation.__name__.strip("_"))
    data = json.dumps(content).encode()
    if draw.chance(0.05):
        names.append("bytes")
        data = _change_bytes(data, draw)
    return names, data, weights


# One number ---------------------------------------------------------------------------------------------------------


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything inside of a JSON value."""
    keys = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in keys for place in ((value, key), *_places(inner))]


def _scale(container: Any, key: Any, factor: float) -> None:
    value = float.fromhex(container[key]) * factor
    container[key] = value.hex() if math.isfinite(value) else container[key]


def _pick_factor(draw: Draw) -> float:
    """Return 1 plus or minus a power of ten, or something coarse."""
    if draw.chance(0.2):
        return float(draw.pick((0.0, 0.5, 2.0, -1.0, 1e30, 1e-30)))
    return 1 + draw.pick((1, -1)) * 10.0 ** -draw.whole(1, 13)


def _nudge(content: Json, draw: Draw) -> None:
    """Some number by a few units in the last place, or by a factor."""
    numbers = [(c, k) for c, k in _places(content) if isinstance(c[k], str) and c[k].lstrip("-").startswith("0x")]
    container, key = draw.pick(numbers)
    if draw.chance(0.5):
        _scale(container, key, _pick_factor(draw))
        return
    value = float.fromhex(container[key])
    for _ in range(draw.pick((1, 2, 16))):
        value = math.nextafter(value, draw.pick((math.inf, -math.inf)))
    container[key] = value.hex()


def _claim(content: Json, draw: Draw) -> None:
    """One of the network's claims, by a factor."""
    layer = draw.pick(content["layers"])
    _scale(*draw.pick(((layer, "lipschitz"), (content, "lipschitz"), (content, "error_offset"))), _pick_factor(draw))
    if draw.chance(0.3):
        _scale(content, "error_slope", _pick_factor(draw))


def _consistent(content: Json, draw: Draw) -> None:
    """A layer's constant lowered or raised, and everything that follows from it, up to the radii."""
    factor = 1 + draw.pick((-1, -1, 1)) * 10.0 ** -draw.whole(1, 12)
    layer = draw.pick(content["layers"])
    above = 1 + 2.0**-50
    for container, key in ((layer, "lipschitz"), (content, "lipschitz")):
        _scale(container, key, factor * above)
    for row in content["pair_constants"]:
        for j in range(len(row)):
            _scale(row, j, factor * above)
    for image in content["images"]:
        _scale(image, "radius", (1 - 2.0**-50) / factor)


def _pair(content: Json, draw: Draw) -> None:
    """The constant of two classes; both of its entries, or one."""
    i, j = (draw.whole(0, len(content["pair_constants"]) - 1) for _ in range(2))
    rows, factor = content["pair_constants"], _pick_factor(draw)
    _scale(rows[i], j, factor)
    if i != j and draw.chance(0.8):
        _scale(rows[j], i, factor)


def _image(content: Json, draw: Draw) -> None:
    """A radius, a prediction, a norm, logits."""
    image = draw.pick(content["images"])
    what = draw.pick(
        ("radius", "radius", "radius", "input_norm", "prediction", "index", "label", "logits", "swap", "tie")
    )
    if what in ("radius", "input_norm"):
        _scale(image, what, _pick_factor(draw))
    elif what in ("prediction", "index", "label"):
        image[what] = draw.pick((0, 1, 2, 7, 10**30, None))
    elif what == "logits":
        _scale(image["logits"], draw.whole(0, len(image["logits"]) - 1), _pick_factor(draw))
    else:
        logits = image["logits"]
        i, j = (draw.whole(0, len(logits) - 1) for _ in range(2))
        logits[i], logits[j] = logits[j], logits[i] if what == "swap" else logits[j]


# Form ---------------------------------------------------------------------------------------------------------------


def _drop(content: Json, draw: Draw) -> None:
    """Anything."""
    container, key = draw.pick(_places(content))
    del container[key]


def _odd_value(content: Json, draw: Draw) -> None:
    """Anything, for a value of another kind."""
    container, key = draw.pick(_places(content))
    container[key] = draw.pick(_ODD)


def _add(content: Json, draw: Draw) -> None:
    """A name that is not known, or is spelled otherwise."""
    container, key = draw.pick([(c, k) for c, k in _places(content) if isinstance(c, dict)])
    container[draw.pick(("extra", key + " ", key.upper()))] = draw.pick((container[key], None, 1))


def _swap_items(content: Json, draw: Draw) -> None:
    """Two items of a list: layers, images, rows, sizes."""
    lists = [c[k] for c, k in _places(content) if isinstance(c[k], list) and len(c[k]) > 1]
    if lists:
        chosen = draw.pick(lists)
        i, j = (draw.whole(0, len(chosen) - 1) for _ in range(2))
        chosen[i], chosen[j] = chosen[j], chosen[i]


def _layer(content: Json, draw: Draw) -> None:
    """A layer removed, repeated, renamed, of another kind, or inserted."""
    layers = content["layers"]
    place = draw.whole(0, len(layers) - 1)
    what = draw.pick(("remove", "repeat", "name", "kind", "insert"))
    if what == "remove":
        del layers[place]
    elif what == "repeat":
        layers.insert(place, copy.deepcopy(layers[place]))
    elif what == "name":
        layers[place]["name"] = draw.pick((layers[place]["name"] + "0", "", "0", "model", "0.0"))
    elif what == "kind":
        layers[place]["kind"] = draw.pick(_KINDS)
    else:
        layers.insert(place, {"name": "x", "kind": draw.pick(_KINDS), "settings": {}, "lipschitz": (1.0).hex()})


def _setting(content: Json, draw: Draw) -> None:
    """A stride, a padding, a dilation, groups, a mode, a factor."""
    places = [place for layer in content["layers"] for place in _places(layer["settings"])]
    if not places:
        return
    container, key = draw.pick(places)
    value = container[key]
    if isinstance(value, int):
        container[key] = value + draw.pick((1, -1, 1, -1, 3, 1000))
    elif isinstance(value, str):
        container[key] = draw.pick(("zeros", "circular", "reflect", (0.5).hex(), (1e-3).hex()))


def _hostile(content: Json, draw: Draw) -> None:
    """A convolution whose taps lie far apart, with the padding that keeps the image's size."""
    layer = draw.pick([layer for layer in content["layers"] if layer["kind"].startswith("Conv")])
    settings, wider, reach = layer["settings"], draw.pick((1, 10, 500)), draw.whole(0, 3)
    axis = draw.whole(0, len(settings["dilation"]) - 1)
    settings["dilation"][axis] += 2 * wider
    settings["padding"][axis] += reach * wider


def _header(content: Json, draw: Draw) -> None:
    changes = (
        ("arithmetic", "float32" if content["arithmetic"] == "float64" else "float64"),
        ("version", draw.pick((0, 1.0, True, "1"))),
        ("norm", draw.pick(("1", 2, "inf"))),
        ("format", "isoconv"),
        ("claim", draw.pick(("", "Everything is certified.", None))),
        ("classes", content["classes"] + draw.pick((1, -1))),
        ("weights_sha256", draw.pick((content["weights_sha256"].upper(), "0" * 64, ""))),
        ("input_range", [x.hex() for x in draw.pick(((0.0, 255.0), (-1.0, 1.0), (0.0, 0.5), (1.0, 0.0)))]),
        ("input_shape", [n + draw.pick((0, 0, 1, -1)) for n in content["input_shape"]]),
        ("input_shape", [n * draw.pick((1, 1, 2, 101)) for n in content["input_shape"]]),
    )
    key, value = draw.pick(changes)
    content[key] = value


def _change_bytes(data: bytes, draw: Draw) -> bytes:
    """Return the file cut, with one byte changed, with a name repeated, or with something around it."""
    place = draw.whole(0, len(data) - 1)
    return (
        data[:place],
        data[:place] + bytes([data[place] ^ (1 << draw.whole(0, 7))]) + data[place + 1 :],
        b'{"version": 1, ' + data[1:],
        b"\xef\xbb\xbf" + data,
        data + draw.pick((b"\n", b"\0", b"{}")),
    )[draw.whole(0, 4)]


# Weights ------------------------------------------------------------------------------------------------------------


def _weights(content: Json, data: bytes, draw: Draw) -> bytes:
    """Some weight changed, or all of a tensor's by a factor; mostly with a hash that fits again."""
    weights = {name: values.copy() for name, values in load(data).items()}
    if not weights:
        return data
    name = draw.pick(sorted(weights))
    values = weights[name]
    place = draw.whole(0, values.size - 1)
    what = draw.pick(("one", "one", "all", "all", "nan", "sign", "drop", "rename", "extra"))
    if what == "one":
        values.flat[place] *= values.dtype.type(_pick_factor(draw))
    elif what == "all":
        values *= values.dtype.type(_pick_factor(draw))
    elif what == "nan":
        values.flat[place] = draw.pick((math.nan, math.inf))
    elif what == "sign":
        values.flat[place] *= -1
    elif what == "drop":
        del weights[name]
    elif what == "rename":
        weights[name + "s"] = weights.pop(name)
    else:
        weights["extra.weight"] = values
    if draw.chance(0.8):
        content["weights_sha256"] = weights_sha256(weights)
    return save(weights)


def _weights_bytes(content: Json, data: bytes, draw: Draw) -> bytes:
    place = draw.whole(0, len(data) - 1)
    return draw.pick((data[:place], data + b"\0", data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]))


_OF_WEIGHTS: tuple[Callable[..., bytes], ...] = (_weights, _weights_bytes)
_MUTATIONS: tuple[Callable[..., Any], ...] = (
    *(_nudge, _nudge, _claim, _claim, _consistent, _consistent, _pair, _image, _image, _image),
    *(_drop, _odd_value, _add, _swap_items, _layer, _setting, _hostile, _header, _weights, _weights, _weights_bytes),
)
