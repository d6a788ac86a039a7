"""The partition of a graph into tasks, in the order in which their kernels run.

    parts = partition(optimise(load("model.onnx")))
    for use in parts.tasks: print(use.count, use.task)

A `TaskCall` is one fused kernel: several nodes put together as one task. Equal tasks (same digest) are one `TaskUse`
with a count: they are tuned and compiled once. A convolution that Winograd's algorithm fits has it as further variants
of its task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from stormdrop.base.errors import UserError
from stormdrop.graph.fuse import groups
from stormdrop.graph.graph import Graph
from stormdrop.ir.dtypes import HALVES
from stormdrop.ir.expr import Const, Expr
from stormdrop.ir.shape import shape_text
from stormdrop.ir.tensor import Task, Tensor, Variant, compute, tensor
from stormdrop.operators.broadcast import axes_for, read
from stormdrop.operators.node import ANCHORS, Array, Node, Value, shown
from stormdrop.operators.winograd import TRANSFORMS, winograd_conv2d
from stormdrop.target import Surroundings

OUTPUT = "out"
"""The name of every call's result; no other tensor of a task has it."""
WINOGRAD_CHANNELS = 16
"""The fewest input channels for F(4,3): with fewer channels it loses accuracy and gains little."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskCall:
    """One kernel of the model.

    `inputs` stand for `task.inputs` in order, constants among them; the kernel computes `nodes`.
    """

    task: Task
    inputs: tuple[Value, ...]
    output: Value
    nodes: tuple[Node, ...]
    label: str

    @property
    def node(self) -> str:
        """The name of the main ONNX node: the first anchor, else the last node. An unnamed node has the name of its
        first output.
        """
        main = next((n for n in self.nodes if n.operator.kind in ANCHORS), self.nodes[-1])
        return main.name or main.output.name

    def shapes_text(self, most: int = 3) -> str:
        """Returns the shapes of at most `most` operands, without numbers and biases, and of the output.

        1x56x56x64, 3x3x64x64 → 1x56x56x64
        """
        large = [v for v in self.inputs if v.rank > 1 and v.size > max(v.shape)]
        operands = large or [v for v in self.inputs if v.size > 1]
        listed = [shape_text(v.shape) for v in operands[:most]] + (["…"] if len(operands) > most else [])
        return f"{', '.join(listed) or 'numbers'} → {shape_text(self.output.shape)}"


@dataclass(frozen=True, slots=True, eq=False)
class TaskUse:
    """A task and the calls that need it. `id` is "t0", "t1", … in the order of first use."""

    id: str
    task: Task
    calls: tuple[TaskCall, ...]

    @property
    def count(self) -> int:
        return len(self.calls)


@dataclass(frozen=True, eq=False)
class Partition:
    """The optimised graph and its kernels, in the order in which they run. Nodes outside all calls are aliases."""

    graph: Graph
    calls: tuple[TaskCall, ...]

    @cached_property
    def tasks(self) -> tuple[TaskUse, ...]:
        calls_by_digest: dict[str, list[TaskCall]] = {}
        for call in self.calls:
            calls_by_digest.setdefault(call.task.digest, []).append(call)
        return tuple(TaskUse(f"t{k}", calls[0].task, tuple(calls)) for k, calls in enumerate(calls_by_digest.values()))

    @cached_property
    def digest(self) -> str:
        """The identity of the model for stored schedules: its tasks, and the operands of each call."""
        numbers: dict[Value, int] = {}

        def numbered(values: Iterable[Value]) -> list[int]:
            return [numbers.setdefault(v, len(numbers)) for v in values]

        calls = [[c.task.digest, numbered(c.inputs), numbered([c.output])] for c in self.calls]
        text = json.dumps([numbered(self.graph.inputs), calls, numbered(self.graph.outputs)])
        return sha256(text.encode()).hexdigest()[:32]

    @property
    def constant_bytes(self) -> int:
        """The bytes of the weights that one run of the model reads."""
        return sum(v.nbytes for v in self.graph.constants)

    @property
    def surroundings(self) -> Surroundings:
        """The surroundings of the model's kernels: its constants, and an arena that fits each kernel's operands."""
        constants = self.graph.constants
        operands = ([c.output, *(v for v in c.inputs if v not in constants)] for c in self.calls)
        return Surroundings(self.constant_bytes, max((sum(v.nbytes for v in some) for some in operands), default=0))

    def __str__(self) -> str:
        reads = [", ".join(f"%{shown(v.name)}" for v in call.inputs) for call in self.calls]
        return "\n".join(f"{call.output} = {call.label}({read})" for call, read in zip(self.calls, reads))


def partition(graph: Graph, winograd: Sequence[int] = tuple(TRANSFORMS)) -> Partition:
    """Fuses the graph into kernels; `winograd` lists the output tile sizes F(m, 3) that may be used."""
    return Partition(graph, tuple(call_of(g, graph.constants, winograd) for g in groups(graph) if g[-1].output.size))


def call_of(nodes: Sequence[Node], constants: Mapping[Value, Array], winograd: Sequence[int] = ()) -> TaskCall:
    """Returns nodes, of which only the last node's output is used, as one task."""
    inside = {n.output for n in nodes}
    given = dict.fromkeys(v for n in nodes for v in n.inputs if v not in inside)
    numbers = {v: c for v in given if (c := _number(v, constants)) is not None}
    known = any(v not in constants for v in given)  # if all inputs are constant, no work would remain at run time
    leaves = {v: tensor(f"x{k}", v.shape, v.dtype, known and v in constants) for k, v in enumerate(given)}

    def expressed(how: Callable[[Node, Sequence[Tensor]], Tensor]) -> Tensor:
        tensors = dict(leaves)
        for n in nodes:
            try:
                if n.operator.scalar is not None:
                    tensors[n.output] = _elementwise(n, n.operator.scalar, tensors, numbers)
                else:
                    tensors[n.output] = how(n, [tensors[v] for v in n.inputs])
            except UserError as error:
                raise UserError(f"{n.op} node {shown(n.name or n.output.name)}: {error}") from error
        return replace(tensors[nodes[-1].output], name=OUTPUT)

    variants = [Variant((expressed(_express),))]
    for tile in winograd:
        if any(_winograd_fits(n, constants) for n in nodes):
            result = expressed(lambda n, x, m=tile: _winograd(n, x, m))
            variants.append(Variant((result,), f"winograd F({tile},3)", TRANSFORMS[tile].error_bound))
    label = label_of(nodes)
    task = Task(variants=variants, name=label)
    by_tensor = {t: v for v, t in leaves.items()}
    return TaskCall(task, tuple(by_tensor[t] for t in task.inputs), nodes[-1].output, tuple(nodes), label)


def _express(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    return node.operator.express(node, inputs)


def _elementwise(
    node: Node, scalar: Callable[..., Expr], tensors: Mapping[Value, Tensor], numbers: Mapping[Value, Const]
) -> Tensor:
    """Returns an elementwise node with constant numbers written out; numbers alone are read as operands instead."""
    axes = axes_for(node.output.shape)
    written = numbers if any(v not in numbers for v in node.inputs) else {}
    operands: list[Expr] = [written[v] if v in written else read(tensors[v], axes) for v in node.inputs]
    return compute("Y", axes, scalar(node, *operands))


def _number(v: Value, constants: Mapping[Value, Array]) -> Const | None:
    array = constants.get(v)
    return Const(array.reshape(()).item(), v.dtype) if array is not None and array.size == 1 else None


def _winograd_fits(node: Node, constants: Mapping[Value, Array]) -> bool:
    if node.op != "Conv" or node.text("layout") != "NHWC":
        return False
    if node.inputs[1] not in constants or node.inputs[0].dtype not in ("f32", *HALVES):
        return False
    plain = node.integers("kernel") == (3, 3) and node.integers("strides") == node.integers("dilations") == (1, 1)
    pads = {*node.integers("before"), *node.integers("after")}
    return plain and node.integer("groups") == 1 and len(pads) == 1 and node.inputs[1].shape[2] >= WINOGRAD_CHANNELS


def _winograd(node: Node, x: Sequence[Tensor], tile: int) -> Tensor:
    return winograd_conv2d(x[0], x[1], node.integers("before")[0], tile) if node.op == "Conv" else _express(node, x)


def label_of(nodes: Sequence[Node]) -> str:
    """Returns a short description of a kernel: Conv3x3/2+Add+Relu."""
    words: list[str] = []
    for n in nodes:
        word = n.text("label", n.op)
        if n.operator.kind in ANCHORS and "kernel" in n.attributes:
            word += "x".join(map(str, n.integers("kernel")))
            strides = n.integers("strides")
            word += f"/{max(strides)}" if max(strides) > 1 else ""
        words.append(word)
    anchors = [k for k, n in enumerate(nodes) if n.operator.kind in ANCHORS]
    if len(words) > 5:
        keep = {0, len(words) - 1, *anchors}
        words = [w if k in keep else "…" for k, w in enumerate(words)]
        words = [w for k, w in enumerate(words) if w != "…" or words[k - 1] != "…"]
    return "+".join(words)
