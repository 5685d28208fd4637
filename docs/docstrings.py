"""Adapts isoconv to the reference pages: the names that packages load lazily, and a few habits of its docstrings.

`name : what it is` is a parameter, and lines that are indented go on with it; of what has no parameters, an item of a list.
Lines from `>>>` to the next empty one are a session, and `Note [Name]` on a line of its own is a heading. Everything else is
Markdown already, but for indices and exponents, as in W_i and 2^(n+1): what is indented by four is a formula.
"""

import re
from typing import Any

from griffe import Class, Docstring, Extension, Function, Module, Object, Parameter, ParameterKind, Parameters

_OPTION = re.compile(r"(\w+(?:, \w+)*) +: +(.+)")
_NOTE = re.compile(r"Note \[[^]]+\]")
# In braces, or of a name of one letter or of what is in brackets.
_INDEX = re.compile(r"_\{([^}]*)\}|(?:(?<![A-Za-z0-9_])(\w)|(?<=[‖|)\]]))_(∞|\*|[^\W_⁰¹²³⁴-ⁿᴬ-ᵿ]+)")
_EXPONENT = re.compile(r"\^(?:\{([^}]*)\}|\(((?:[^()]|\([^()]*\))*)\)|([−-]?[\w½⅛¼]+(?:\.\d+)?))")


class LazyFaces(Extension):
    """Exports what a package imports under `if TYPE_CHECKING:`, as `isoconv.lazy.lazy_face` does when it runs."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        for module in (pkg, *pkg.modules.values()):
            if "lazy_face" in module.members:
                module.exports = [
                    name for name, member in module.members.items() if member.is_alias and not member.runtime
                ]


class PlainDocstrings(Extension):
    """Gives named tuples their signatures, and rewrites each docstring once, when everything has been read."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if isinstance(obj, Class) and "NamedTuple" in map(str, obj.bases):
            obj.set_member("__init__", make_init(obj))
        if isinstance(obj.docstring, Docstring):
            obj.docstring.value = as_markdown(obj.docstring.value, obj if obj.is_function or obj.is_class else None)


def make_init(named_tuple: Class) -> Function:
    fields = [
        member for member in named_tuple.attributes.values() if member.annotation and not member.has_labels("property")
    ]
    kind = ParameterKind.positional_or_keyword
    parameters = [Parameter(f.name, annotation=f.annotation, kind=kind, default=f.value) for f in fields]
    return Function("__init__", parameters=Parameters(Parameter("self", kind=kind), *parameters), returns="None")


def section_of(name: str, owner: Object) -> str:
    """Return what a name is in a class or function: what neither knows is a keyword that it passes on."""
    return "Args" if name in owner.parameters else "Attributes" if name in owner.members else "Keyword Args"


def as_markdown(text: str, owner: Object | None) -> str:
    lines: list[str] = []
    state = ""  # or "session", "list", a section: what the line before belongs to
    nested = False  # in a list within the description of an option
    others: list[str] = []  # names that share the description of the one in front of them
    for line in [*text.splitlines(), ""]:
        option, indented, rest = _OPTION.fullmatch(line), line.startswith("    "), line.strip()
        if state == "session":
            lines += [line] if rest else ["```", ""]
            state = state if rest else ""
            continue
        if option or not rest:
            lines, others, nested = lines + others, [], False
        if line.startswith(">>>"):
            lines += ["", "```pycon", line]
            state = "session"
        elif option:
            names, what = option[1].split(", "), set_indices(option[2])
            section = section_of(names[0], owner) if owner else "list"
            if state != section:
                lines += ["", f"{section}:"] if owner else [""]
            if owner:
                lines.append(f"    {names[0]}: {what}")
                others = [f"    {name}: see `{names[0]}`" for name in names[1:]]
            else:
                lines.append(f"- {', '.join(f'`{name}`' for name in names)}: {what}")
            state = section
        elif state and indented and rest:
            indent = "        " if owner else "  "
            if inner := _OPTION.fullmatch(rest):
                lines += [] if nested else [""]
                lines.append(f"{indent}- `{inner[1]}`: {set_indices(inner[2])}")
                nested = True
            else:
                lines.append(indent + "  " * nested + set_indices(rest))
        else:
            state = ""
            lines += ["", f"**{rest}**", ""] if _NOTE.fullmatch(line) else [line if indented else set_indices(line)]
    return "\n".join(lines)


def set_indices(line: str) -> str:
    """Lower the indices and raise the exponents outside code, and keep what Markdown or HTML would take for its own."""
    parts = line.split("`")
    return "`".join(p if k % 2 else _set(p) for k, p in enumerate(parts))


def _set(text: str) -> str:
    text = re.sub(r"(?<![\w*])([^\W_])\*(?!\w)", r"\1\*", text.replace("<", "&lt;"))  # x* is no emphasis
    return _raise(_INDEX.sub(_lower, text))


def _lower(found: re.Match[str]) -> str:
    return f"{found[2] or ''}<sub>{found[1] or found[3]}</sub>"


def _raise(text: str) -> str:
    return _EXPONENT.sub(lambda found: f"<sup>{_raise(found[1] or found[2] or found[3])}</sup>", text)
