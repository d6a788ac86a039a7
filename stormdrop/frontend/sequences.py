"""ONNX's operators of sequences and optional values, none of which reach the graph.

Lengths, positions, and whether an optional value has an element, are constants when a model is loaded.
"""

from __future__ import annotations

from itertools import accumulate

from stormdrop.frontend.node_reader import Binding, EmptyOptional, NodeReader, ValueSequence
from stormdrop.frontend.pointwise import Importer, element_type
from stormdrop.graph.builder import MOST_NODES
from stormdrop.operators.node import Value


def _construct(n: NodeReader) -> ValueSequence:
    parts = n.given()
    if not parts:
        raise n.fail("a sequence needs at least one tensor; SequenceEmpty makes an empty one")
    return ValueSequence(tuple(parts), parts[0].dtype)


def _empty(n: NodeReader) -> ValueSequence:
    return ValueSequence((), element_type(n.integer("dtype", 1), "the sequence"))


def _split(n: NodeReader) -> ValueSequence:
    """Returns parts of `split` elements each, the last part perhaps smaller, or parts of the sizes in `split`."""
    x, sizes = n.input(0), n.optional_array(1)
    along = n.axis(0, x.rank)
    extent = x.shape[along]
    if sizes is None or sizes.ndim == 0:
        each = 1 if sizes is None else int(sizes)
        if each < 1:
            raise n.fail(f"split must be a positive size, got {each}")
        count = -(-extent // each)
        if count > MOST_NODES:
            raise n.fail(f"a sequence of {count:,} tensors is too long; at most {MOST_NODES:,} are supported")
        lengths = [min(each, extent - start) for start in range(0, extent, each)]
    else:
        lengths = [int(v) for v in n.vector(1)]
        if sum(lengths) != extent or min(lengths, default=0) < 0:
            raise n.fail(f"parts {lengths} do not make {extent}")
    starts = [0, *accumulate(lengths)]
    parts = [n.build.cut(x, {along: (start, 1, length)}) for start, length in zip(starts, lengths)]
    if sizes is None and not n.integer("keepdims", 1):
        shape = [e for d, e in enumerate(x.shape) if d != along]
        parts = [n.build.reshape(v, shape) for v in parts]
    return ValueSequence(tuple(parts), x.dtype)


def _concat(n: NodeReader) -> Value:
    parts, b = n.sequence(0).elements, n.build
    if not parts:
        raise n.fail("an empty sequence cannot be joined")
    is_new = bool(n.integer("new_axis", 0))
    ranks = {v.rank for v in parts}
    if len(ranks) != 1 or (is_new and len({v.shape for v in parts}) != 1):
        raise n.fail(f"tensors of the shapes {sorted({v.shape for v in parts})} cannot be joined")
    along = n.dim(n.integer("axis"), parts[0].rank + is_new)
    if is_new:
        parts = [b.reshape(v, (*v.shape[:along], 1, *v.shape[along:])) for v in parts]
    return b.concat(parts, along)


def _position(n: NodeReader, k: int, count: int) -> int:
    """Returns a position among `count`; negative positions count from the end."""
    given = int(n.scalar(k))
    least = -len(n.sequence(0).elements)
    if not least <= given < count:
        raise n.fail(f"position {given} lies outside {n.sequence(0)}")
    return given - least if given < 0 else given


def _at(n: NodeReader) -> Value:
    elements = n.sequence(0).elements
    return elements[_position(n, 1, len(elements))]


def _insert(n: NodeReader) -> ValueSequence:
    sequence, x = n.sequence(0), n.input(1)
    if x.dtype != sequence.dtype:
        raise n.fail(f"{x} does not fit {sequence}")
    elements, count = list(sequence.elements), len(sequence.elements)
    elements.insert(count if n.optional(2) is None else _position(n, 2, count + 1), x)
    return ValueSequence(tuple(elements), sequence.dtype)


def _erase(n: NodeReader) -> ValueSequence:
    sequence = n.sequence(0)
    elements = list(sequence.elements)
    if not elements:
        raise n.fail("no element can be erased from an empty sequence")
    del elements[-1 if n.optional(1) is None else _position(n, 1, len(elements))]
    return ValueSequence(tuple(elements), sequence.dtype)


def _length(n: NodeReader) -> Value:
    return n.build.constant(len(n.sequence(0).elements), "i64")


def _optional(n: NodeReader) -> Binding:
    return n.binding(0) or EmptyOptional()


def _element(n: NodeReader) -> Binding:
    binding = n.binding(0)
    if binding is None or isinstance(binding, EmptyOptional):
        raise n.unsupported("an optional value that is not there")
    return binding


def _has_element(n: NodeReader) -> Value:
    return n.build.constant(not isinstance(n.binding(0), EmptyOptional | None))


SEQUENCES: dict[str, Importer] = {
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceLength": _length,
    "Optional": _optional,
    "OptionalGetElement": _element,
    "OptionalHasElement": _has_element,
}
