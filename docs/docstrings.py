"""Adapts isoconv to the reference pages: the names that packages load lazily, and two habits of its docstrings.

`name : what it is` is a parameter, and lines that are indented go on with it; of what has no parameters, an item of a list.
Lines from `>>>` to the next empty one are a session. Everything else is Markdown already, but for indices, as in W_i: what
is indented by four is a formula.
"""

import re
from typing import Any

from griffe import Docstring, Extension, Module, Object

_OPTION = re.compile(r"(\w+(?:, \w+)*) : (.+)")
_INDEX = re.compile(r"_\{([^}]*)\}|(?<![A-Za-z0-9_])(\w)_([^\W_ᵀ]+)")  # in braces, or of a name of one letter


class LazyFaces(Extension):
    """Exports what a package imports under `if TYPE_CHECKING:`, as `isoconv.lazy.lazy_face` does when it runs."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        for module in (pkg, *pkg.modules.values()):
            if "lazy_face" in module.members:
                module.exports = [
                    name for name, member in module.members.items() if member.is_alias and not member.runtime
                ]


class PlainDocstrings(Extension):
    """Rewrites each docstring once, when its object has been read."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if isinstance(obj.docstring, Docstring):
            obj.docstring.value = as_markdown(obj.docstring.value, obj.is_function or obj.is_class)


def as_markdown(text: str, takes_parameters: bool) -> str:
    lines: list[str] = []
    text = re.sub(r"(?m)^(?!    |>>>).*", lambda line: set_indices(line[0]), text)
    state = ""  # or "option", "session": what the line before belongs to
    others: list[str] = []  # names that share the description of the one in front of them
    for line in [*text.splitlines(), ""]:
        if state == "session" and not line.strip():
            lines.append("```")
            state = ""
        option = _OPTION.fullmatch(line)
        if option or not line.strip():
            lines, others = lines + others, []
        if state != "session" and line.startswith(">>>"):
            lines += ["", "```pycon"]
            state = "session"
        elif state != "session" and option:
            if state != "option":
                lines += ["", "Args:"] if takes_parameters else [""]
            names = option[1].split(", ")
            if takes_parameters:
                lines.append(f"    {names[0]}: {option[2]}")
                others = [f"    {name}: see `{names[0]}`" for name in names[1:]]
            else:
                lines.append(f"- {', '.join(f'`{name}`' for name in names)}: {option[2]}")
            state = "option"
            continue
        elif state == "option" and line.startswith("    ") and line.strip():
            lines.append(("        " if takes_parameters else "  ") + line.strip())
            continue
        elif state == "option" and not line.strip():
            state = ""
        lines.append(line)
    if state == "session":
        lines.append("```")
    return "\n".join(lines)


def set_indices(line: str) -> str:
    """Lower the indices outside code."""
    parts = line.split("`")
    return "`".join(p if k % 2 else _INDEX.sub(r"\2<sub>\1\3</sub>", p) for k, p in enumerate(parts))
