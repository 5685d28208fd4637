"""Tables as Markdown and as LaTeX (booktabs)."""

from isoconv.report.reproduction.table import Table, Text

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "ε": r"$\epsilon$",
    "≤": r"$\leq$",
    "∗": r"$\ast$",
    "‖": r"$\Vert$",
    "−": r"$-$",
    "–": "--",
    "—": "---",
    "µ": r"$\mu$",
    "²": r"\textsuperscript{2}",
    "³": r"\textsuperscript{3}",
}


def to_markdown(table: Table, heading: bool = False) -> str:
    """A Markdown table with its notes below; with `heading`, its title above."""
    lines = [f"### {_md(table.title)}", ""] if heading else []
    lines.append(f"| {' | '.join(_md(text) for text in table.headings)} |")
    lines.append("|" + "|".join("---" if k < table.texts else "---:" for k in range(len(table.headings))) + "|")
    lines += [f"| {' | '.join(_md_place(place) for place in line)} |" for line in table.lines]
    return "\n".join([*lines, *(part for note in table.notes for part in ("", _md(note)))]) + "\n"


def to_latex(table: Table) -> str:
    """A table environment; needs \\usepackage{booktabs}."""
    columns = "".join("l" if k < table.texts else "r" for k in range(len(table.headings)))
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [" & ".join(_tex(text) for text in table.headings) + r" \\", r"\midrule"]
    for k, line in enumerate(table.lines):
        lines.append(" & ".join(_tex_place(place) for place in line) + r" \\")
        if k in table.rules and k + 1 < len(table.lines):
            lines.append(r"\midrule")
    lines += [r"\bottomrule", r"\end{tabular}"]
    caption = ". ".join(part.rstrip(".") for part in (table.title, *table.notes))
    return "\n".join([*lines, rf"\caption{{{_tex(caption)}.}}", r"\end{table}"]) + "\n"


def _md(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def _md_place(place: Text) -> str:
    return f"**{_md(place.text)}**" if place.bold else _md(place.text)


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _tex_place(place: Text) -> str:
    return rf"\textbf{{{_tex(place.text)}}}" if place.bold else _tex(place.text)
