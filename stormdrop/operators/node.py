"""The nodes of a graph and their operators: one record for each operator holds all facts that passes read about it.

    RELU = pointwise("Relu", build.relu, repeated="idempotent")             # operators/pointwise.py
    node = Node(RELU, (x,), (y,));  infer(node)                             # the shape and element type of the result

A value is a name, a shape and an element type; all shapes are numbers. Every node has exactly one output and its
attributes are plain data: axes, pads, sizes and the like are attributes, never inputs.

Records stand in the modules of this package, one module a family, and `table` lists all of them. The fields that an
operator leaves out have safe defaults: such an operator is a kernel of its own, and keeps the layout of the file.

Names come from files and may hold any text. They are data inside the graph; `shown` makes them fit to print.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.ir.dtypes import ACCUMULATOR, FLOATS, ITEMSIZE, NUMPY, Dtype
from stormdrop.ir.expr import Combiner, Expr
from stormdrop.ir.interp import evaluate
from stormdrop.ir.tensor import Task, Tensor, tensor

Array = NDArray[Any]
Attribute = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[tuple[int, ...], ...]
Shape = tuple[int, ...]
SHOWN = 80


def shown(name: str) -> str:
    """Returns a name as printed: short, one line, without quotes, markup, path separators or control characters."""
    kept = [c if c.isalnum() or c in "_.:-+@#" else _escape(c) for c in name[:SHOWN]]
    return "".join(kept) + ("…" if len(name) > SHOWN else "")


def _escape(c: str) -> str:
    if c in "/ ":
        return "|" if c == "/" else "_"
    return c if unicodedata.category(c)[0] == "L" else f"~{ord(c):x}"


@dataclass(frozen=True, slots=True)
class Value:
    """An edge of the graph: a tensor with a name, a shape and an element type."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype

    def __hash__(self) -> int:
        # Python keeps the hash of a text; names are unique in a graph, and passes look up values all the time.
        return hash(self.name)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]

    def __str__(self) -> str:
        return f"%{shown(self.name)}: {self.dtype}[{', '.join(map(str, self.shape))}]"


_NONE: Mapping[str, Attribute] = MappingProxyType({})


class AttributeReader:
    """Attributes by their type; a node of the graph and a node of the file read theirs alike."""

    __slots__ = ()
    attributes: Mapping[str, Any]

    def fail(self, message: str) -> UserError:
        raise NotImplementedError

    def typed(self, key: str, default: object, kinds: type | tuple[type, ...], what: str) -> Any:
        value = self.attributes.get(key, default)
        if not isinstance(value, kinds):
            given = "missing" if value is None else shown(repr(value))
            raise self.fail(f"attribute {key} is {given}, not {what}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self.typed(key, default, int, "an integer"))

    def flag(self, key: str, default: int | None = None) -> bool:
        return bool(self.integer(key, default))

    def number(self, key: str, default: float | None = None) -> float:
        return float(self.typed(key, default, (int, float), "a number"))

    def text(self, key: str, default: str | None = None) -> str:
        return self.typed(key, default, str, "a text")

    def integers(self, key: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        values = self.typed(key, default, (list, tuple), "a list of integers")
        if not all(isinstance(v, int) for v in values):
            raise self.fail(f"attribute {key} is {shown(repr(values))}, not a list of integers")
        return tuple(values)


class OperatorKind(Enum):
    """The role of an operator in a fused kernel."""

    POINTWISE = "pointwise"
    """A function of one element of each operand; operands broadcast. Every kernel may compute such a node in place."""
    MOVEMENT = "movement"
    """Index arithmetic alone, which a reader may compute in place."""
    VIEW = "view"
    """Another shape for the same elements in row-major order: no work if the input is materialised."""
    PRODUCT = "product"
    REDUCTION = "reduction"
    POOL = "pool"
    NORM = "norm"
    OPAQUE = "opaque"
    """A kernel of its own."""


ANCHORS = (OperatorKind.PRODUCT, OperatorKind.REDUCTION, OperatorKind.POOL, OperatorKind.NORM)
"""The kinds of operators that a kernel is built around."""


def of_first(node: Node) -> Dtype:
    """Returns the first input's element type, or the wider type of its sums if the operator accumulates."""
    dtype = node.inputs[0].dtype
    return ACCUMULATOR.get(dtype, dtype) if node.operator.accumulates else dtype


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """A graph operator: the facts that the importers, the passes and the reference interpreter read."""

    name: str
    shape: Callable[[Node], Shape]
    """Returns the shape of the result, from inputs and attributes alone. Raises UserError for unfit inputs."""
    express: Callable[[Node, Sequence[Tensor]], Tensor]
    """Returns the result, computed from the tensors of the inputs: no arrays, no layout changes."""
    _: KW_ONLY
    kind: OperatorKind = OperatorKind.OPAQUE
    dtype: Callable[[Node], Dtype] = of_first
    """Returns the element type of the result."""
    scalar: Callable[..., Expr] | None = None
    """Only for the kind POINTWISE: returns one element from a node and one element of each operand."""
    is_costly: bool = False
    """Only for the kind POINTWISE: true if readers must not compute it again (divisions, roots, exp, sin, …)."""
    combiner: Combiner | None = None
    """The combination of elements along summed or compared dimensions: decides padding and results over nothing."""
    accumulates: bool = False
    """True if factors of narrow types are summed in a wider type (`ACCUMULATOR`)."""
    commutes: Literal["no", "but for zeros", "exactly"] = "no"
    """The effect of exchanging both operands: Max and Min may then return 0.0 instead of -0.0 (`but for zeros`)."""
    neutral: int | None = None
    """The constant c with x op c = x."""
    repeated: Literal["", "idempotent", "involution"] = ""
    """The effect of applying the operator twice: as once (`idempotent`), or as not at all (`involution`)."""
    moves: Literal["", "some", "all"] = ""
    """The elements of the only input in the result: some of them, perhaps repeatedly, or all of them once."""
    followers: int | None = 0
    """The number of inputs that may be held in another order of dimensions, which the result follows; None: all."""
    by_dimension: tuple[str, ...] = ()
    """The attributes with one number for each dimension of the first input."""
    numpy: Callable[[Node, Sequence[Array]], Any] | None = None
    """Returns the result for arrays, equal to the reference interpreter's; None if NumPy has no equal function."""


@dataclass(frozen=True, slots=True, eq=False)
class Node(AttributeReader):
    """One operation. `name` is that of the file's node it came from, for messages."""

    operator: Operator
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: _NONE)
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    @property
    def op(self) -> str:
        return self.operator.name

    @property
    def is_pointwise(self) -> bool:
        return self.operator.kind is OperatorKind.POINTWISE

    @property
    def output(self) -> Value:
        return self.outputs[0]

    def fail(self, message: str) -> UserError:
        return UserError(f"{self}: {message}")

    def constant(self, key: str, dtype: Dtype) -> bool | int | float:
        """Returns a number that stands for an element of this type: integers keep all their bits."""
        value = self.typed(key, None, (int, float), "a number")
        return float(value) if dtype in FLOATS else bool(value) if dtype == "bool" else int(value)

    def __str__(self) -> str:
        given = ", ".join(f"%{shown(v.name)}" for v in self.inputs)
        attributes = "".join(f", {k}={_attribute(v)}" for k, v in sorted(self.attributes.items()))
        made = ", ".join(map(str, self.outputs))
        return f"{made} = {self.op}({given}{attributes})"


def _attribute(value: Attribute) -> str:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, tuple):
        return "(" + ", ".join(_attribute(v) for v in value) + ")"
    return repr(value)


def infer(node: Node) -> tuple[Shape, Dtype]:
    """Returns the shape and element type of a node's result; its outputs are not read.

    The result of `express` must agree; tests compare both on every node they meet. Raises UserError for unfit inputs.
    """
    return node.operator.shape(node), node.operator.dtype(node)


def task_of(node: Node, constants: Collection[Value] = ()) -> Task:
    """Returns one node as a task; equal inputs are one tensor.

    The inputs are named x0, x1, …, so equal nodes have equal tasks.
    """
    tensors: dict[Value, Tensor] = {}
    for v in node.inputs:
        if v not in tensors:
            tensors[v] = tensor(f"x{len(tensors)}", v.shape, v.dtype, v in constants)
    return Task([node.operator.express(node, [tensors[v] for v in node.inputs])], name=node.op)


def evaluate_node(
    node: Node,
    task: Task,
    inputs: Mapping[Value, Array],
    precision: Literal["f64"] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Array:
    """Returns a node's value on the reference interpreter, where `task` is `task_of(node)`."""
    arrays = {f"x{k}": inputs[v] for k, v in enumerate(dict.fromkeys(node.inputs))}
    (result,) = evaluate(task, arrays, 0, precision, tick).values()
    is_wide = precision == "f64" and node.output.dtype in FLOATS
    return np.asarray(result, np.float64 if is_wide else NUMPY[node.output.dtype])


# ---- Shape rules of several families


def dims_of(node: Node) -> tuple[int, ...]:
    """Returns the dimensions in the attribute `axes` or `axis`. Raises UserError if the first input lacks one."""
    dims = node.integers("axes") if "axes" in node.attributes else (node.integer("axis"),)
    if any(not 0 <= d < node.inputs[0].rank for d in dims) or len(set(dims)) != len(dims):
        raise UserError(f"{node.inputs[0]} has no dimensions {list(dims)}")
    return dims


def shape_of_first(node: Node) -> Shape:
    return node.inputs[0].shape


def with_extent(node: Node, extent: int) -> Shape:
    """Returns the shape of the first input with another extent in the dimension `axis`."""
    (along,) = dims_of(node)
    return tuple(extent if d == along else n for d, n in enumerate(node.inputs[0].shape))


def same_dims(node: Node) -> Shape:
    dims_of(node)
    return node.inputs[0].shape


def reduced(node: Node) -> Shape:
    dims, keep = dims_of(node), node.flag("keepdims", 1)
    return tuple(1 if d in dims else e for d, e in enumerate(node.inputs[0].shape) if keep or d not in dims)


def positions(_: Node) -> Dtype:
    return "i64"
