"""Writes the tables of the paper into README.md and docs/paper.md, from the results that are committed.

Between <!-- TARGET --> and <!-- /TARGET --> comes what `isoconv reproduce TARGET --format markdown` prints.

    python docs/tables.py
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "paper.md")


def markdown(target: str) -> str:
    command = [sys.executable, "-m", "isoconv", "reproduce", target, "--format", "markdown"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"<!-- ([a-z0-9-]+) -->\n", text):
            mark, end = f"<!-- {target} -->\n", f"<!-- /{target} -->"
            before, rest = text.split(mark, 1)
            text = before + mark + markdown(target) + "\n" + end + rest.split(end, 1)[1]
        page.write_text(text)


if __name__ == "__main__":
    main()
