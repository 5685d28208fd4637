"""Draws certified_accuracy.svg from the folder that `isoconv demo` leaves.

    python docs/pictures/certified_accuracy.py isoconv-demo docs/pictures/certified_accuracy.svg

Lines: certified accuracy. Dots: accuracy under PGD.
"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 340, 58, 20, 20, 52
LARGEST = 2.4  # ε at the right edge
NETWORKS = (
    ("bcop", "BCOP", "#2f6fb5"),
    ("rko", "RKO", "#cf6a0b"),
    ("ordinary", "ordinary network", "#168566"),
)


def x(epsilon: float) -> float:
    return LEFT + epsilon / LARGEST * (WIDTH - LEFT - RIGHT)


def y(percent: float) -> float:
    return HEIGHT - BOTTOM - percent / 100 * (HEIGHT - TOP - BOTTOM)


def text(at_x: float, at_y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" {more}>{words}</text>'


def axes() -> list[str]:
    parts = []
    for percent in range(0, 101, 20):
        parts.append(f'<path d="M{LEFT} {y(percent):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y(percent) + 4, str(percent), "end"))
    for tenths in range(0, 25, 4):
        parts.append(text(x(tenths / 10), HEIGHT - BOTTOM + 18, f"{tenths / 10:g}"))
    below = "ε (L2, pixels from 0 to 1)"
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, below))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(text(16, middle, "correct digits, %", more=f'transform="rotate(-90 16 {middle:.1f})"'))
    return parts


def curves(folder: Path) -> list[str]:
    parts = []
    for number, (name, title, colour) in enumerate(NETWORKS):
        record = json.loads((folder / name / "certified.json").read_text())
        radii = [radius for radius in record["radii"] if radius > 0]  # 0: wrong, or not proved
        steps = [LARGEST * i / 200 for i in range(201)]
        points = [(e, 100 * sum(r >= e for r in radii) / record["images"]) for e in steps]
        line = " ".join(f"{x(e):.1f},{y(percent):.1f}" for e, percent in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        for row in json.loads((folder / name / "attacks.json").read_text()):
            if row["attack"] == "pgd":
                centre = f'cx="{x(row["epsilon"]):.1f}" cy="{y(row["accuracy"]):.1f}"'
                parts.append(f'<circle {centre} r="4.5" fill="#fff" stroke="{colour}" stroke-width="2"/>')
        at = TOP + 22 + 20 * number
        parts.append(f'<path d="M{WIDTH - 174} {at - 4}h26" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(text(WIDTH - 140, at, title, "start"))
    at = TOP + 22 + 20 * len(NETWORKS)
    parts.append(f'<circle cx="{WIDTH - 161}" cy="{at - 4}" r="4.5" fill="#fff" stroke="#555" stroke-width="2"/>')
    parts.append(text(WIDTH - 140, at, "under PGD", "start"))
    return parts


def main() -> None:
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="14">'
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff"/>'
    title = "<title>Certified accuracy against the radius, three networks on 1,000 digits</title>"
    target.write_text("\n".join([head, title, paper, *axes(), *curves(folder), "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
