"""docs/api.md from the docstrings of all public names: `python -m tests.support.api_reference` writes it.

Signatures are read from the source: defaults stand there as they are written. Of an overloaded function the
implementation counts, which shows every option.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import stormdrop

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
ROOT = PAGE.parents[1]
SECTIONS: dict[str, tuple[str, ...]] = {
    "Models": ("compile", "load", "load_compiled", "Model", "Pool", "CompiledModule", "Graph", "CustomOperator"),
    "Tuning": ("tune", "Tuned", "TunedModel", "Store"),
    "Tasks and kernels": ("tensor", "axis", "reduce_axis", "compute", "Task", "Tensor", "Variant", "build", "Kernel"),
    "Expressions": (
        *("cast", "where", "equal", "maximum", "minimum", "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt"),
        *("erf", "sum", "prod", "max", "min"),
    ),
    "Schedules and targets": ("sketches", "Sketch", "Schedule", "Rule", "RULES", "detect", "Target"),
    "Errors": (
        *("StormdropError", "UserError", "ModelError", "UnsupportedOperator"),
        *("ScheduleError", "BuildError", "RunError", "Timeout"),
    ),
}
ELSEWHERE = {"CompiledModule": "stormdrop.pytorch.compiled"}
"""Public, but no name of the package: it needs PyTorch."""
ABOUT = {
    "RULES": "The derivation rules, in the order in which they are tried; `(*sd.RULES, Mine())` adds one.",
    "Target": "A machine as data; what `detect` returns.",
}
"""Names that have no docstring."""

INTERNAL = {"Pool": {"run", "run_alone", "bench", "profile", "account", "pin"}}
"""Methods that models call, not users: no part of what is promised."""

Definition = ast.FunctionDef | ast.ClassDef


def page() -> str:
    """The whole page."""
    names = {name for name in stormdrop.__all__ if name != "__version__"} | set(ELSEWHERE)
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


def _entry(name: str) -> Iterator[str]:
    found = _found(name)
    if found is None:
        yield f"### {name}"
        yield ""
        yield ABOUT.get(name) or f"`sd.{name}(a)`, of an expression."
        return
    shown = name if name in ELSEWHERE else f"sd.{name}"
    yield f"### {name}"
    yield ""
    if isinstance(found, ast.FunctionDef):
        yield from _fenced(_signature(shown, found))
        yield from _text(found)
        return
    bases = [ast.unparse(base) for base in found.bases]
    yield from _fenced(f"class {shown}" + (f"({', '.join(bases)})" if bases else ""))
    yield from _text(found)
    for part in _members(name, found):
        decorated = {ast.unparse(d).partition("(")[0] for d in part.decorator_list}
        is_value = bool(decorated & {"property", "cached_property"})
        returns = f": {ast.unparse(part.returns)}" if is_value and part.returns else ""
        yield from _fenced(f"{part.name}{returns}" if is_value else _signature(part.name, part))
        yield from _text(part)


def _found(name: str) -> Definition | None:
    """The definition of a public name; None for a value."""
    if name in ELSEWHERE:
        return _definitions(ELSEWHERE[name])[name]
    thing: Any = getattr(stormdrop, name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
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


def _members(name: str, found: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Public methods and properties that say what they do, and calling; inherited ones last."""
    kinds = [] if name in ELSEWHERE else getattr(stormdrop, name).__mro__[1:]
    inherited = [_definitions(k.__module__).get(k.__name__) for k in kinds if k.__module__.startswith("stormdrop.")]
    seen: set[str] = set()
    for part in (found, *inherited):
        for node in part.body if part is not None else ():
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and node.name not in seen:
                seen.add(node.name)
                is_public = not node.name.startswith("_") and node.name not in INTERNAL.get(name, ())
                if is_public or node.name == "__call__":
                    yield node


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
