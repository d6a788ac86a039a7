"""Packages are layers: a module imports from its own layer and from those below, in functions as well.

The exceptions of today are listed, exactly: the lists can only become shorter.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "stormdrop"
LAYERS = (
    "base",
    "ir",
    "target",
    "operators",
    "graph",
    "frontend",
    "zoo",
    "space",
    "lower",
    "codegen",
    "device",
    "builder",
    "model",
    "pytorch",
    "measure",
    "store",
    "compiler",
    "tuning",
    "testing",
    "export",
    "compare",
    "doctor",
    "report",
    "cli",
    "api",
)
"""Lowest first."""
LAYER_OF = {"__main__": "api"}
"""Of modules in no package; the package itself, above all others, is the API."""

UPWARDS: dict[str, set[str]] = {
    "stormdrop.tuning.tuned": {"stormdrop.report.html"},  # a notebook shows a `Tuned` as a page
}
CYCLES: set[frozenset[str]] = {
    frozenset({"stormdrop.ir.build", "stormdrop.ir.expr", "stormdrop.ir.printer"}),
    frozenset({"stormdrop.ir.serial", "stormdrop.ir.tensor"}),
    frozenset(
        {
            "stormdrop.tuning.curve",
            "stormdrop.report.html",
            "stormdrop.report.objective",
            "stormdrop.report.plot",
            "stormdrop.report.search_result",
            "stormdrop.tuning.tuned",
        }
    ),
}
"""Modules that import each other when they run: one of them does it inside a function."""

LATE: set[str] = {
    "stormdrop",
    "stormdrop.builder.building",
    "stormdrop.compare.side",
    "stormdrop.compiler.compile",
    "stormdrop.compiler.pytorch",
    "stormdrop.device.host",
    "stormdrop.device.pool.pool",
    "stormdrop.device.targets",
    "stormdrop.ir.expr",
    "stormdrop.ir.tensor",
    "stormdrop.measure.workbench",
    "stormdrop.model.container",
    "stormdrop.pytorch",
    "stormdrop.report.model_reports",
    "stormdrop.report.watching",
    "stormdrop.tuning.tune",
    "stormdrop.tuning.tuned",
    "stormdrop.zoo",
}
"""Modules that import others inside functions: to load them only when they are needed, or because of a cycle. Commands
and checks of the installation, `cli` and `doctor`, may do so anywhere."""


@dataclass(frozen=True, slots=True)
class Import:
    """`for_types`: it is there for the type checker only."""

    module: str
    for_types: bool


def imports(code: ast.AST, modules: frozenset[str]) -> Iterator[Import]:
    """Yields what a file, or a part of a file, imports of `modules`, in functions too."""

    def visit(node: ast.AST, for_types: bool) -> Iterator[Import]:
        match node:
            case ast.Import(names):
                yield from (Import(alias.name, for_types) for alias in names if alias.name in modules)
            case ast.ImportFrom(module=str(parent), names=names, level=0):
                for alias in names:
                    name = f"{parent}.{alias.name}"
                    if name in modules or parent in modules:
                        yield Import(name if name in modules else parent, for_types)
            case ast.If(test=ast.Name("TYPE_CHECKING"), body=body, orelse=orelse):
                for child in body:
                    yield from visit(child, True)
                for child in orelse:
                    yield from visit(child, for_types)
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from visit(child, for_types)

    yield from visit(code, False)


@cache
def files() -> dict[str, Path]:
    """Every module of the package, by name."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@cache
def imported_by() -> dict[str, frozenset[Import]]:
    names = frozenset(files())
    return {module: frozenset(imports(ast.parse(path.read_text()), names)) for module, path in files().items()}


def imports_in_functions(code: ast.AST, modules: frozenset[str]) -> set[str]:
    functions = (node for node in ast.walk(code) if isinstance(node, ast.FunctionDef))
    return {found.module for function in functions for found in imports(function, modules)}


def layer(module: str) -> str:
    _, _, inside = module.partition(".")
    first = inside.partition(".")[0]
    if not first:
        return "api"
    return LAYER_OF.get(first, first)


def upwards(graph: Mapping[str, frozenset[Import]]) -> dict[str, set[str]]:
    """By module, what it imports from layers above its own."""
    found: dict[str, set[str]] = {}
    for module, imported in graph.items():
        height = LAYERS.index(layer(module))
        above = {i.module for i in imported if LAYERS.index(layer(i.module)) > height}
        if above:
            found[module] = above
    return found


def cycles(graph: Mapping[str, frozenset[Import]]) -> set[frozenset[str]]:
    """Sets of modules each of which leads to every other, imports for types left out."""

    def reached(start: str) -> frozenset[str]:
        seen: set[str] = set()
        stack = [start]
        while stack:
            new = {i.module for i in graph[stack.pop()] if not i.for_types} - seen
            seen |= new
            stack += new
        return frozenset(seen)

    beyond = {module: reached(module) for module in graph}
    return {frozenset(n for n in beyond[m] if m in beyond[n]) for m in graph if m in beyond[m]}


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer(module) for module in files()} <= set(LAYERS)


def test_imports_lead_downwards_but_for_those_listed() -> None:
    assert upwards(imported_by()) == UPWARDS


def test_modules_import_each_other_only_where_listed() -> None:
    assert cycles(imported_by()) == CYCLES


def test_modules_are_imported_in_functions_only_where_listed() -> None:
    names = frozenset(files())
    late = {module for module, path in files().items() if imports_in_functions(ast.parse(path.read_text()), names)}
    assert {module for module in late if layer(module) not in ("cli", "doctor")} <= LATE


MOST_MODULES_OF_A_CONVOLUTION = 107
"""From the bytes of an ONNX file to a model that runs, tables that modules build on import left out."""
PASSED_THROUGH = """
import sys, threading
from stormdrop.zoo.builder import NetworkBuilder
from stormdrop.zoo.export import model
import stormdrop as sd

net = NetworkBuilder("layer", batch=1, opset=18)
x = net.input("x", (256, 14, 14))
x = net.relu(net.norm(net.conv(x, "conv2", 256, 3, pad=1, bias=False), "bn2"))
data = model(net.finish(x), seed=0).SerializeToString()
passed = set()
importing = 0

def profile(frame, event, argument):
    global importing
    if frame.f_code.co_name == "<module>":
        importing += {"call": 1, "return": -1}.get(event, 0)
    elif event == "call" and not importing and frame.f_code.co_name != "__annotate__":
        passed.add(frame.f_code.co_filename)

sys.setprofile(profile)
sd.compile(data)
sys.setprofile(None)
print(*passed, sep="\\n")
"""


def test_a_convolution_passes_through_few_modules(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PASSED_THROUGH],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"STORMDROP_CACHE_DIR": str(tmp_path)},
    )
    passed = {module for module, path in files().items() if str(path) in run.stdout.splitlines()}
    assert {"stormdrop.frontend.windows", "stormdrop.graph.fuse", "stormdrop.codegen.tile"} <= passed
    assert len(passed) <= MOST_MODULES_OF_A_CONVOLUTION, sorted(passed)


def test_compiling_loads_no_search_and_no_function_of_its_modules_does() -> None:
    script = "import sys, stormdrop.compiler.compile; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "stormdrop.compiler.stored" in loaded
    modules = {m for m in loaded if m in files()} - {PACKAGE}  # the package imports its API when a name is asked for
    reached = modules | {i.module for m in modules for i in imported_by()[m] if not i.for_types}
    assert not [m for m in sorted(reached) if layer(m) == "tuning"]


def test_a_call_of_compile_loads_no_module_of_tuning(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np, stormdrop as sd\n"
        "from tests.support.one_node import OneNode\n"
        "sd.compile(OneNode('Relu', [np.ones((1, 64), np.float32)]).model)\n"
        "print(*sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "STORMDROP_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    loaded = {m for m in done.stdout.split() if m in files()}
    assert "stormdrop.report.watching" in loaded
    assert not [m for m in sorted(loaded) if layer(m) == "tuning"]


def test_imports_are_found_wherever_they_stand() -> None:
    source = """
import json, p.a
from p import b
from p.c import name
from p.other import c
if TYPE_CHECKING:
    from p.d import Name
else:
    from p.e import name
def f():
    import p
"""
    code, modules = ast.parse(source), frozenset({"p", "p.a", "p.b", "p.c", "p.d", "p.e"})
    assert set(imports(code, modules)) == {Import(f"p.{x}", x == "d") for x in "abcde"} | {Import("p", False)}
    assert imports_in_functions(code, modules) == {"p"}


def test_an_import_from_above_and_a_cycle_are_seen() -> None:
    def graph(**of: str) -> dict[str, frozenset[Import]]:
        return {f"stormdrop.{m}.x": frozenset({Import(f"stormdrop.{n}.x", False)} if n else ()) for m, n in of.items()}

    assert upwards(graph(ir="graph", graph="operators", operators="")) == {"stormdrop.ir.x": {"stormdrop.graph.x"}}
    assert cycles(graph(ir="graph", graph="operators", operators="")) == set()
    assert cycles(graph(ir="graph", graph="ir", operators="ir")) == {frozenset({"stormdrop.ir.x", "stormdrop.graph.x"})}


def test_a_public_class_name_means_one_thing_in_the_whole_package() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}
