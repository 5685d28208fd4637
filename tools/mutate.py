"""Mutation testing: break the source in one place, and see whether the room's tests notice.

    python tools/mutate.py TREE --out FILE.json [--rooms linalg nn certify check] [--count 20]

Mutants are chosen by a seed among all places of a room where an operator applies, and run in a copy of TREE at low
priority (nice 15): first against at most four cases of each test function that take less than a second, then, if none
fails, against all. A mutant whose tests need far more processor time than without it counts as killed.
"""

import argparse
import ast
import difflib
import json
import os
import platform
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED, CASES, CAP = 14, 4, 90.0  # CAP: processor seconds, for the sampled tests; three times as many for all
# Source and tests of a room, as patterns below src/isoconv and tests.
ROOMS = {
    "linalg": ("linalg/*.py", "linalg/test_*.py"),
    "nn": ("nn/*.py", "nn/test_*.py"),
    "certify": ("certify/*.py", "certify/test_*.py judge/test_judge.py"),
    "check": ("check/*.py", "check/test_*.py certify/test_certificate_*.py judge/test_judge.py"),
}
_PLUGIN = """
import json, pathlib, pytest, time
slow, known = [], pathlib.Path(__file__).with_name("slow_cases.json")

def pytest_collection_modifyitems(items):
    by_function = {}
    for item in items:
        by_function.setdefault(item.nodeid.split("[")[0], []).append(item)
    left_out = json.loads(known.read_text()) if known.exists() else []
    sample = [item for group in by_function.values() for item in group[:: -(-len(group) // CASES)]]
    items[:] = [item for item in sample if item.nodeid not in left_out]

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    start = time.process_time()
    result = yield
    if time.process_time() - start > 1:
        slow.append(item.nodeid)
    return result

def pytest_sessionfinish():
    if not known.exists():
        known.write_text(json.dumps(slow))
"""
_COMPARE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
_BINARY |= {ast.FloorDiv: ast.Mult}
_NAMES = {a: b for pair in ("min max", "amin amax", "minimum maximum") for a, b in (pair.split(), pair.split()[::-1])}
_PLACES = ("dim", "axis", "dim1", "dim2", "strict")
_ROUNDING = ("up", "_up", "down", "_down", "nextafter")


@dataclass(frozen=True)
class Mutant:
    """One change of a source file: the bytes from `start` to `end` become `text`."""

    file: str
    operator: str
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        lines = [data.decode().splitlines() for data in (source, self.apply(source))]
        return "\n".join(list(difflib.unified_diff(*lines, n=0, lineterm=""))[2:])


def mutants(file: str, source: bytes) -> Iterator[Mutant]:
    """Yield every mutant of a source file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    for node in _code(ast.parse(source)):
        for operator, changed in _changes(node):
            text = changed if isinstance(changed, str) else f"({ast.unparse(changed)})"
            place: Any = node.test if isinstance(node, ast.If) else node
            start = starts[place.lineno - 1] + place.col_offset
            yield Mutant(file, operator, start, starts[place.end_lineno - 1] + place.end_col_offset, text)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of what is computed: not annotations, docstrings, messages, or what only says what is exported."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "slice") or getattr(node, "arg", "") in _PLACES:
            continue  # "slice" and _PLACES: another axis is an error at once
        for child in value if isinstance(value, list) else [value]:
            text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            exports = isinstance(child, ast.Assign) and getattr(child.targets[0], "id", "") == "__all__"
            unseen = (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Assert)
            if isinstance(child, ast.AST) and not (text or exports or isinstance(child, unseen)):
                yield child
                yield from _code(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST | str]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
        yield "comparison", ast.Compare(node.left, [_COMPARE[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        yield "arithmetic", ast.BinOp(node.left, _BINARY[type(node.op)](), node.right)
    if isinstance(node, ast.BoolOp):
        yield "and or", ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "drop a not", node.operand
    if isinstance(node, ast.IfExp):
        yield "swap branches", ast.IfExp(node.test, node.orelse, node.body)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        step = 1 if isinstance(node.value, int) else node.value * 2.0**-10 or 1.0
        yield "constant", ast.Constant(node.value + step)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        arguments = [a for a in node.args if not isinstance(a, ast.Starred)]
        if name in _NAMES:
            other = _NAMES[name]
            function = ast.Name(other) if isinstance(node.func, ast.Name) else ast.Attribute(node.func.value, other)
            yield "min max", ast.Call(function, node.args, node.keywords)
        if name in _ROUNDING and arguments:
            yield "drop rounding", node.args[0]
        plain = len(node.args) == 2 and all(isinstance(a, (ast.Name, ast.Attribute)) for a in node.args)
        if plain and name not in ("isinstance", "getattr", "hasattr", *_NAMES):
            yield "swap arguments", ast.Call(node.func, node.args[::-1], node.keywords)
    if isinstance(node, ast.If):
        yield "drop a branch", "False"
    if isinstance(node, (ast.AugAssign, ast.Expr)):
        yield "drop a statement", "pass"
    if isinstance(node, ast.Return) and isinstance(node.value, (ast.BinOp, ast.Call)):
        inner = node.value.left if isinstance(node.value, ast.BinOp) else (node.value.args or [None])[0]
        if inner is not None and not isinstance(inner, (ast.Starred, ast.GeneratorExp)):
            yield "return early", f"return {ast.unparse(inner)}"


def matching(root: Path, patterns: str) -> list[Path]:
    return sorted({path for pattern in patterns.split() for path in root.glob(pattern)})


def choose(tree: Path, room: str, count: int) -> list[Mutant]:
    """Return the room's mutants, chosen by the seed: of each operator about as many."""
    root = tree / "src/isoconv"
    by_operator: dict[str, list[Mutant]] = {}
    for path in matching(root, ROOMS[room][0]):
        for mutant in mutants(str(path.relative_to(root)), path.read_bytes()):
            by_operator.setdefault(mutant.operator, []).append(mutant)
    chance = random.Random(f"{SEED} {room}")
    chosen: list[Mutant] = []
    while len(chosen) < count:
        for operator in chance.sample(sorted(by_operator), len(by_operator)):
            left = [mutant for mutant in by_operator[operator] if mutant not in chosen]
            chosen += [chance.choice(left)] if left and len(chosen) < count else []
    return chosen


def run_tests(tree: Path, room: str, cases: int | None, cap: float) -> tuple[str, float]:
    """Return "passed", "failed" or "timeout", and the seconds of processor time; all cases for None."""
    plugin = tree / "sampled_cases.py"
    plugin.write_text(_PLUGIN.replace("CASES", str(cases)))
    files = [str(path) for path in matching(tree / "tests", ROOMS[room][1])]
    sampled = ["-p", "sampled_cases"] if cases else []
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *sampled, *files]
    settings = {"PYTHONPATH": f"{tree}/src:{tree}", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def limit() -> None:
        os.nice(15)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cap) + 1, int(cap) + 5))
        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))

    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:  # the machine may have other work
        code = subprocess.run(
            command, cwd=tree, env=os.environ | settings, preexec_fn=limit, timeout=40 * cap, **quiet
        ).returncode
    except subprocess.TimeoutExpired:
        code = -1
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - begun.ru_utime - begun.ru_stime
    return "passed" if code == 0 else "timeout" if code < 0 else "failed", round(seconds, 1)


def try_mutant(tree: Path, room: str, mutant: Mutant) -> dict[str, Any]:
    """Run the tests on a mutant: the sampled ones, and if none fails all."""
    path = tree / "src/isoconv" / mutant.file
    source = path.read_bytes()
    record: dict[str, Any] = {"file": mutant.file, "operator": mutant.operator, "diff": mutant.diff(source)}
    path.write_bytes(mutant.apply(source))
    for tests, cases, cap in (("sampled", CASES, CAP), ("all", None, 3 * CAP)):
        outcome, seconds = run_tests(tree, room, cases, cap)
        record |= {"killed": outcome != "passed", "outcome": outcome, "seconds": seconds, "tests": tests}
        if record["killed"]:
            break
    path.write_bytes(source)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description="Break the source in one place, and see whether the tests notice.")
    parser.add_argument("tree", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="where results are kept, and not measured again")
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--count", type=int, default=20, help="mutants per room")
    parser.add_argument("--minutes", type=float, default=45, help="no further mutant is begun after so long")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    head = subprocess.run(["git", "-C", str(options.tree), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    results: dict[str, Any] = {"commit": head.strip(), "python": platform.python_version(), "seed": SEED, "rooms": {}}
    if options.out.exists():
        results = json.loads(options.out.read_text())
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(options.tree, tree, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache"))
        for room in options.rooms:
            records = results["rooms"].setdefault(room, [])
            known = {(record["file"], record["diff"]) for record in records}
            (tree / "slow_cases.json").unlink(missing_ok=True)
            if (outcome := run_tests(tree, room, CASES, 3 * CAP))[0] != "passed":
                raise SystemExit(f"Expected tests of {room} that pass without a mutation. Got: {outcome}.")
            for mutant in choose(tree, room, options.count):
                diff = mutant.diff((tree / "src/isoconv" / mutant.file).read_bytes())
                if (mutant.file, diff) not in known and time.monotonic() < end:
                    records.append(try_mutant(tree, room, mutant))
                    options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
            print(f"{room}: {sum(r['killed'] for r in records)} of {len(records)} killed", flush=True)


if __name__ == "__main__":
    main()
