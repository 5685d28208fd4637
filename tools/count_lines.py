"""Count lines of code per room of src/isoconv: docstrings, comments and blank lines do not count.

python tools/count_lines.py              # beside the lines of before the rebuild, results/code_lines.json
python tools/count_lines.py reproduction # the files of another folder
"""

import ast
import io
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count_code(text: str) -> int:
    """Return the number of lines that hold code."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            documentation.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for token in tokens if token.type not in _SILENT for n in range(token.start[0], token.end[0] + 1)}
    return len(lines - documentation)


def count_rooms(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Return lines of code and number of files, by room: a folder of `folder`, or \".\" for its own files."""
    lines, files = Counter[str](), Counter[str]()
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        room = parts[0] if len(parts) > 1 else "."
        lines[room] += count_code(path.read_text(encoding="utf-8"))
        files[room] += 1
    return lines, files


if __name__ == "__main__":
    before = {} if sys.argv[1:] else json.loads((ROOT / "results" / "code_lines.json").read_text())["rooms"]
    lines, files = count_rooms(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "src" / "isoconv")
    print(f"{'room':14}{'before':>8}{'files':>7}{'now':>8}{'files':>7}")
    for room in sorted(before.keys() | lines.keys()):
        print(f"{room:14}{''.join(f'{n:8}' for n in before.get(room, ['', '']))}{lines[room]:8}{files[room]:7}")
    total = [sum(room[k] for room in before.values()) for k in (0, 1)]
    print(f"{'all':14}{total[0]:8}{total[1]:8}{lines.total():8}{files.total():7}")
