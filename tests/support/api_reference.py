"""docs/api.md from the docstrings of all public names: `python -m tests.support.api_reference` writes it.

Signatures are read from the source: defaults stand there as they are written. Of an overloaded function the
implementation counts, which shows every option. The members of a class are its methods, properties and annotated
attributes; a string after an attribute is its docstring.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import Any

import stormdrop

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
ROOT = PAGE.parents[1]
SECTIONS: dict[str, tuple[str, ...]] = {
    "Models": (
        *("compile", "load", "read_graph", "export_library", "Model", "OpenModel", "MixedModel", "Pool"),
        *("CompiledModule", "Graph", "CustomOperator"),
    ),
    "Tuning": ("tune", "Tuned", "TunedModel", "Store"),
    "Tasks and kernels": ("tensor", "axis", "reduce_axis", "compute", "Task", "Tensor", "Variant", "build", "Kernel"),
    "Expressions": (
        *("cast", "where", "equal", "maximum", "minimum", "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt"),
        *("erf", "sum", "prod", "mean", "max", "min"),
    ),
    "Schedules and targets": ("sketches", "Sketch", "Schedule", "Rule", "RULES", "detect", "Target"),
    "Recorded tables": ("run_on_table", "Replayed", "Table", "TableMeasurer", "AnsweringMeasurer", "Request"),
    "Errors": (
        *("StormdropError", "UserError", "ModelError", "Unsupported", "UnsupportedOperator"),
        *("ScheduleError", "BuildError", "RunError", "Timeout", "StormdropWarning"),
    ),
}
TESTING = "stormdrop.testing"
ELSEWHERE = {
    "CompiledModule": "stormdrop.pytorch.compiled",
    "run_on_table": f"{TESTING}.replay",
    "Replayed": f"{TESTING}.replay",
    "Table": f"{TESTING}.tables",
    "TableMeasurer": f"{TESTING}.tables",
    "AnsweringMeasurer": f"{TESTING}.tables",
    "Request": f"{TESTING}.tables",
}
"""Public names outside the package itself, with their modules: PyTorch's module, and `stormdrop.testing`."""
ABOUT = {
    "RULES": "The derivation rules, in the order in which they are tried; `(*sd.RULES, Mine())` adds one.",
    "Target": "A machine as data; what `detect` returns.",
    "TunedModel": "Another name of `sd.Tuned`, for the results of models.",
}
"""Names that have no docstring."""

INTERNAL = {"Pool": {"run", "run_alone", "bench", "profile", "account", "pin"}}
"""Methods that models call, not users: no part of what is promised."""

Definition = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Member:
    """A public attribute, property or method of a class: its heading on the page, and its docstring."""

    name: str
    heading: str
    text: str


def page() -> str:
    """The whole page."""
    names = public_names()
    sections = dict(SECTIONS)
    if rest := tuple(sorted(names - {name for listed in SECTIONS.values() for name in listed})):
        sections["Others"] = rest
    lines = [
        "# API reference",
        "",
        "All that `import stormdrop as sd` gives, from the docstrings (`python -m tests.support.api_reference` writes",
        "this page). What is not listed here, and every name that begins with an underscore, may change at any time;",
        "`docs/compatibility.md` says what is promised of the rest.",
    ]
    for title, listed in sections.items():
        lines += ["", f"## {title}"]
        for name in listed:
            if name in names:
                lines += ["", *_entry(name)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def public_names() -> set[str]:
    return {name for name in stormdrop.__all__ if name != "__version__"} | set(ELSEWHERE)


def _entry(name: str) -> Iterator[str]:
    found = definition(name)
    yield f"### {name}"
    yield ""
    if found is None:
        yield ABOUT.get(name) or f"`{heading(name)}`, of an expression."
        return
    yield from _fenced(heading(name))
    yield from _text(found)
    if isinstance(found, ast.ClassDef):
        yield from _member_lines(name, found)


def heading(name: str) -> str:
    """Returns the signature of a public function, or the name and bases of a public class."""
    shown = f"sd.{name}"
    if name in ELSEWHERE:
        shown = f"{TESTING}.{name}" if ELSEWHERE[name].startswith(TESTING) else name
    match definition(name):
        case ast.FunctionDef() as function:
            return _signature(shown, function)
        case ast.ClassDef(bases=bases):
            return f"class {shown}({', '.join(map(ast.unparse, bases))})" if bases else f"class {shown}"
        case None:
            return f"{shown}(a)"


def _member_lines(name: str, kind: ast.ClassDef) -> Iterator[str]:
    """Yields the entries of a class's members, and the names of members that have their entries at a base.

    An override without a docstring counts as inherited.
    """
    bases = bases_of(name)
    first = next((k for k, base in enumerate(bases) if base.name in public_names()), len(bases))
    inherited = dict.fromkeys(member.name for base in bases for member in members(base))
    shown = set(INTERNAL.get(name, ()))
    own = [member for member in members(kind) if member.text or member.name not in inherited]
    for member in (*own, *(member for base in bases[:first] for member in members(base))):
        if member.name not in shown:
            shown.add(member.name)
            yield from _fenced(member.heading)
            yield from (*member.text.splitlines(), "")
    if rest := [f"`{other}`" for other in inherited if other not in shown]:
        yield from (*wrap(f"Inherited from `sd.{bases[first].name}`: {', '.join(rest)}.", 120), "")


def definition(name: str) -> Definition | None:
    """Returns the definition of a public name; None for a value, and for another name of a class."""
    if name in ELSEWHERE:
        return _definitions(ELSEWHERE[name])[name]
    thing: Any = getattr(stormdrop, name)
    if name in ABOUT or not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return None
    return _definitions(thing.__module__).get(thing.__name__)


@cache
def _definitions(module: str) -> dict[str, Definition]:
    """The top-level functions and classes of a module, by name; the last of several."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if not path.exists():
        path = Path(inspect.getsourcefile(import_module(module)) or "")
    body = ast.parse(path.read_text()).body
    return {node.name: node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def bases_of(name: str) -> list[ast.ClassDef]:
    """Returns the definitions of a public class's bases in this package, the nearest first."""
    kinds = [] if name in ELSEWHERE else getattr(stormdrop, name).__mro__[1:]
    found = [_definitions(k.__module__).get(k.__name__) for k in kinds if k.__module__.startswith("stormdrop.")]
    return [base for base in found if isinstance(base, ast.ClassDef)]


def members(kind: ast.ClassDef) -> list[Member]:
    """Returns the public members that a class defines, and calling, in the order of the source."""
    found: dict[str, Member] = {}
    for node, after in zip_longest(kind.body, kind.body[1:]):
        match node:
            case ast.FunctionDef(name=name):
                found[name] = Member(name, _heading(node), ast.get_docstring(node) or "")
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                found[name] = Member(name, f"{name}: {ast.unparse(annotation)}", _string(after))
            case _:
                pass
    return [member for name, member in found.items() if not name.startswith("_") or name == "__call__"]


def _heading(method: ast.FunctionDef) -> str:
    decorated = {ast.unparse(d).partition("(")[0] for d in method.decorator_list}
    if not decorated & {"property", "cached_property"}:
        return _signature(method.name, method)
    return method.name + (f": {ast.unparse(method.returns)}" if method.returns else "")


def _string(node: ast.stmt | None) -> str:
    """Returns the text of a statement that is a string, as a docstring is read; empty for other statements."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
        case _:
            return ""


def _signature(name: str, function: ast.FunctionDef) -> str:
    """One line, or one parameter a line where that is too long."""
    parameters = [p for k, p in enumerate(_parameters(function.args)) if k or p not in ("self", "cls")]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= 118:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parameters) + f"){returns}"


def _parameters(given: ast.arguments) -> Iterator[str]:
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    for argument, default in zip(positional, defaults):
        yield _parameter(argument, default)
    if given.vararg:
        yield f"*{_parameter(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    for argument, default in zip(given.kwonlyargs, given.kw_defaults):
        yield _parameter(argument, default)
    if given.kwarg:
        yield f"**{_parameter(given.kwarg, None)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _fenced(text: str) -> Iterator[str]:
    yield from ("```text", text, "```")
    yield ""


def _text(node: Definition) -> Iterator[str]:
    yield from (ast.get_docstring(node) or "").splitlines()
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page())
