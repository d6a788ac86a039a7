"""Reports about models, for people and for scripts: the output of `stormdrop info`, `compile`, `run` and `show`.

Names come from files. A port's name is printed so that it can be typed again, with control characters escaped, and cut
if it is very long; all other names are formatted by `shown`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import unified_diff
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from stormdrop.base.errors import UserError
from stormdrop.device.arrays import Wanted
from stormdrop.frontend.open_dimensions import Interface
from stormdrop.graph.graph import Graph
from stormdrop.graph.partition import Partition, TaskUse
from stormdrop.graph.passes import optimise
from stormdrop.ir.shape import dimensions_text, shape_text
from stormdrop.model.image import Image, OpenPort, Port
from stormdrop.operators.node import shown
from stormdrop.report.console import block, heading, print_pairs, print_table, say, table_lines
from stormdrop.report.text import bytes_text, counted, name_text, one_line, threads_text

if TYPE_CHECKING:
    from stormdrop.compiler.choose import Choice
    from stormdrop.frontend.mixed import MixedGraph

Array = NDArray[Any]
SHORT = 8
LABEL = 40
LISTED = 6
"""Candidates that an error names."""


def finite(x: float) -> float | None:
    """Returns a number for JSON, which has neither NaN nor infinity: None for these."""
    return x if math.isfinite(x) else None


def parts_json(graph: MixedGraph) -> dict[str, Any]:
    """Returns the inputs and outputs of a model in parts, and its parts: for a tree of `model_json`."""
    from stormdrop.model.mixed import placements_of, port_of

    inputs, outputs = ([_open_port_json(port_of(p)) for p in ports] for ports in (graph.inputs, graph.outputs))
    return {"inputs": inputs, "outputs": outputs, "parts": [asdict(p) for p in placements_of(graph)]}


def _open_port_json(port: Port) -> dict[str, Any]:
    """Returns a port with open dimensions by their names."""
    from stormdrop.model.mixed import ForeignPort

    match port:
        case ForeignPort():
            return {"name": port.name, "shape": None, "dtype": port.type}
        case OpenPort():
            return {"name": port.name, "shape": port.dimensions and list(port.dimensions), "dtype": port.dtype}
        case _:
            return port_json(port)


def port_json(v: Wanted, name: str | None = None) -> dict[str, Any]:
    return {"name": v.name if name is None else name, "shape": list(v.shape), "dtype": v.dtype}


# ---- tasks


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """A task of a model, and where its schedule comes from: default, verdict or given."""

    use: TaskUse
    choice: Choice

    @property
    def is_stored(self) -> bool:
        """True if the store has a schedule of the task."""
        return self.choice.schedule is not None

    def to_json(self) -> dict[str, Any]:
        use = self.use
        return {
            "id": use.id,
            "digest": use.task.digest,
            "label": use.calls[0].label,
            "shapes": use.calls[0].shapes_text(),
            "node": use.calls[0].node,
            "count": use.count,
            "gflop": use.task.flops / 1e9,
            "stored": self.is_stored,
            "origin": self.choice.origin,
        }


def print_tasks(console: Console, listed: Sequence[Listed]) -> None:
    """Prints a table of tasks. A narrow terminal omits some of a task's operands, then the digests, then the
    schedules.
    """
    if not listed:
        say(console, "nothing is computed: there are no tasks")
        return
    titles = ("task", "what", "shapes", "count", "GFLOP", "digest", "schedule")
    words, spare = (0, 1, 2, 5, 6), (5, 6, 4)
    for most in (3, 2, 1, 0):
        rows = [_task_cells(t, most) for t in listed]
        if max(map(len, table_lines(titles, rows, words, spare[:1], console.width))) <= console.width:
            break
    print_table(console, titles, rows, words, spare)


def _task_cells(listed: Listed, most: int) -> tuple[str, ...]:
    use, schedule = listed.use, "stored" if listed.is_stored else listed.choice.origin
    what = one_line(use.calls[0].label, LABEL), use.calls[0].shapes_text(most), str(use.count)
    return use.id, *what, f"{use.task.flops / 1e9:.3f}", use.task.digest[:SHORT], schedule


def find_task(parts: Partition, wanted: str) -> TaskUse:
    """Returns the task with this id, beginning of a digest, name of a node or value, label, or part of a name or label.

    The first of these criteria with a match decides. Raises UserError, with candidates, for no match or several.
    """
    ways: tuple[Callable[[TaskUse], bool], ...] = (
        lambda u: u.id == wanted,
        lambda u: len(wanted) >= 4 and u.task.digest.startswith(wanted.lower()),
        lambda u: wanted in _names(u),
        lambda u: wanted == u.calls[0].label,
        lambda u: any(wanted.lower() in text.lower() for text in (*_names(u), u.calls[0].label)),
    )
    for fits in ways:
        matches = [u for u in parts.tasks if fits(u)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            some = _some([f"{u.id} ({u.calls[0].label}, {u.calls[0].shapes_text()})" for u in matches])
            raise UserError(f"{shown(wanted)} fits {counted(len(matches), 'task')}: {some}; give an id")
    ids = f"t0 to t{len(parts.tasks) - 1}" if parts.tasks else "none"
    raise UserError(f"no task, node or value is called {shown(wanted)}; tasks are {ids}, without one they are listed")


def calls_text(use: TaskUse) -> str:
    """Returns the main ONNX node of each call."""
    return _some([shown(call.node) for call in use.calls])


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:LISTED]) + (f" and {len(texts) - LISTED} more" if len(texts) > LISTED else "")


def _names(use: TaskUse) -> set[str]:
    """Returns the names of a task's nodes and values, as in the file and as printed."""
    names = {name for call in use.calls for n in call.nodes for name in (n.name, n.output.name) if name}
    return names | {shown(name) for name in names}


# ---- info


def model_json(
    model: str, graph: Graph, tasks: Sequence[Listed], kernels: int, arena_bytes: int, threads: int
) -> dict[str, Any]:
    """Returns the properties of a model that are known without compiling it.

    Operators are as imported, the most frequent first. Parameters are arrays; single numbers are the operators' own,
    such as the count that a mean divides by. The arena is for activations; kernels may need working memory beside it.
    """
    parameters = [v for v in graph.constants if v.dtype in ("f32", "f64") and v.rank]
    return {
        "model": model,
        "name": graph.name,
        "opset": graph.opset,
        "inputs": [port_json(v) for v in graph.inputs],
        "outputs": [port_json(v, name) for name, v in zip(graph.output_names, graph.outputs)],
        "operators": dict(Counter(n.op for n in graph.nodes).most_common()),
        "parameters": {"count": sum(v.size for v in parameters), "bytes": sum(v.nbytes for v in parameters)},
        "gflop": sum(t.use.task.flops * t.use.count for t in tasks) / 1e9,
        "kernels": kernels,
        "arena_bytes": arena_bytes,
        "threads": threads,
        "stored_tasks": sum(t.is_stored for t in tasks),
        "tasks": [t.to_json() for t in tasks],
    }


def open_json(declared: Interface | None, chosen: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Returns the dimensions of a model's inputs and outputs as its file declares them, and the size of all figures.

    Nothing if no dimension is open.
    """
    if declared is None:
        return {}
    dimensions = {
        port.name: None if port.dimensions is None else dimensions_text(port.name, port.dimensions)
        for port in (*declared.inputs, *declared.outputs)
    }
    return {"dimensions": dimensions, "size": {name: list(shape) for name, shape in chosen.items()}}


def print_model(console: Console, tree: Mapping[str, Any], listed: Sequence[Listed]) -> None:
    """Prints a tree of `model_json`."""
    heading(console, f"{tree['model']}, opset {tree['opset']}")
    console.print()
    _print_ports(console, tree)
    console.print()
    if parts := tree.get("parts"):
        heading(console, "parts, in order")
        from stormdrop.model.mixed import Placement

        for part in parts:
            say(console, str(Placement(**part)))
        console.print()
    heading(console, "operators, as imported")
    say(console, ", ".join(f"{op} {n}" for op, n in tree["operators"].items()) or "none")
    console.print()
    sizes = ", ".join(f"{name_text(name)}={shape_text(shape)}" for name, shape in tree.get("size", {}).items())
    heading(console, f"tasks at {sizes}" if sizes else "tasks")
    print_tasks(console, listed)
    console.print()
    tasks, kernels = counted(len(listed), "task"), counted(tree["kernels"], "kernel")
    rows = [
        ("parameters", f"{tree['parameters']['count']:,}, {bytes_text(tree['parameters']['bytes'])}"),
        ("work", f"{tree['gflop']:.3f} GFLOP a run, in {kernels} of {tasks}"),
        ("activations", f"{bytes_text(tree['arena_bytes'])} in one block, used again and again"),
        ("tuned", f"the store knows {tree['stored_tasks']} of {tasks}, with {threads_text(tree['threads'])}"),
    ]
    print_pairs(console, rows)


def _print_ports(console: Console, tree: Mapping[str, Any]) -> None:
    ports = [(kind, port) for kind in ("input", "output") for port in tree[f"{kind}s"]]
    dimensions: Mapping[str, Any] = tree.get("dimensions", {})

    def text(port: Mapping[str, Any]) -> str:
        declared = dimensions.get(port["name"])
        if declared or port["shape"] is None:
            return f"[{', '.join(map(name_text, declared))}]" if declared else "any"
        return shape_text([n if isinstance(n, int) else "any" for n in port["shape"]])

    rows = [(kind, name_text(p["name"]), p["dtype"], text(p)) for kind, p in ports]
    print_table(console, ("", "name", "type", "shape"), rows, words=(0, 1, 2, 3))


def image_json(model: str, image: Image) -> dict[str, Any]:
    """Returns the properties of a model that was compiled before."""
    return {
        "model": model,
        "name": image.name,
        "inputs": [port_json(p) for p in image.inputs],
        "outputs": [port_json(p) for p in image.outputs],
        "gflop": sum(s.flops for s in image.calls) / 1e9,
        "kernels": len(image.calls),
        "arena_bytes": image.arena_bytes,
        "weights_bytes": image.weights_bytes,
        "code_bytes": sum(len(k.code) for k in image.kernels),
        "threads": image.threads,
        "target": image.triple,
        "cpu": image.cpu,
    }


def print_image(console: Console, tree: Mapping[str, Any], image: Image) -> None:
    """Prints a tree of `image_json`."""
    compiled = f"compiled for {tree['cpu']} ({tree['target']})"
    heading(console, f"{tree['model']}, {compiled}, {image.units}")
    console.print()
    _print_ports(console, tree)
    console.print()
    print_pairs(console, image_rows(image))


def image_rows(image: Image) -> list[tuple[str, str]]:
    gflop, kernels = sum(s.flops for s in image.calls) / 1e9, counted(len(image.calls), "kernel")
    return [
        ("work", f"{gflop:.3f} GFLOP a run, in {kernels}, {len(image.kernels)} of them different"),
        ("weights", f"{bytes_text(image.weights_bytes)}, packed"),
        ("arena", bytes_text(image.arena_bytes)),
        ("code", bytes_text(sum(len(k.code) for k in image.kernels))),
    ]


# ---- run


def summary_json(name: str, array: Array) -> dict[str, Any]:
    """Returns a summary of one output; its least, greatest and mean are of finite values, None if there are none.

    Sequences, maps and texts, which onnxruntime gives, have a length and a type alone.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OUS":  # pyright: ignore[reportUnnecessaryIsInstance]
        shape, dtype = (array.shape, "string") if hasattr(array, "shape") else ((len(array),), type(array).__name__)
        return {
            "name": name,
            "shape": list(shape),
            "dtype": dtype,
            **dict.fromkeys(("min", "max", "mean")),
            "not_finite": 0,
        }
    values = array.astype(np.float64, copy=False)
    good = values[np.isfinite(values)]
    low, high, mean = (float(f(good)) if good.size else None for f in (np.min, np.max, np.mean))
    return {
        "name": name,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "min": low,
        "max": high,
        "mean": mean,
        "not_finite": int(values.size - good.size),
    }


def print_outputs(console: Console, outputs: Mapping[str, Array]) -> None:
    titles = ["output", "type", "shape", "min", "max", "mean", "not finite"]
    rows: list[list[str]] = []
    for s in (summary_json(name, array) for name, array in outputs.items()):
        numbers = ["" if s[k] is None else f"{s[k]:.6g}" for k in ("min", "max", "mean")]
        rows.append([name_text(s["name"]), s["dtype"], shape_text(s["shape"]), *numbers, str(s["not_finite"])])
    shown = 7 if any(row[6] != "0" for row in rows) else 6
    print_table(console, titles[:shown], [row[:shown] for row in rows], words=(0, 1, 2))


# ---- show


def print_sections(console: Console, sections: Sequence[tuple[str, str]]) -> None:
    for title, text in sections:
        console.print()
        heading(console, title)
        block(console, text.rstrip("\n"))


def passes_text(graph: Graph) -> list[str]:
    """Returns the graph as imported, then for every pass the number of nodes before and after, and the changed
    lines.
    """
    lines = [str(graph)]

    def listen(name: str, before: Graph, after: Graph) -> None:
        if after is before:
            lines.append(f"\npass {name}: changes nothing")
            return
        lines.append(f"\npass {name}: {len(before.nodes)} nodes to {len(after.nodes)}")
        changes = unified_diff(list(before.lines()), list(after.lines()), n=0, lineterm="")
        lines.extend(line for line in changes if not line.startswith(("---", "+++", "@@")))

    optimise(graph, listen)
    return lines
