"""Where values live: what costs nothing, and what must be copied."""

from __future__ import annotations

import numpy as np

from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph
from stormdrop.graph.partition import partition
from stormdrop.graph.storage import Storage, reshaped_strides, storage
from stormdrop.operators.node import Value


def _stored(b: GraphBuilder, *outputs: Value) -> Storage:
    return storage(partition(_graph(b, *outputs)))


def _graph(b: GraphBuilder, *outputs: Value) -> Graph:
    return b.graph(outputs, [v.name for v in outputs], "g", 20)


def _labels(s: Storage) -> list[str]:
    return [c.label for c in s.calls]


def test_parts_of_a_concatenation_are_written_into_the_whole() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3), "f32")
    left, right = b.emit("Relu", x), b.emit("Exp", x)
    whole = b.emit("Concat", left, right, axis=1)
    s = _stored(b, b.emit("MatMul", whole, b.constant(np.ones((6, 6), np.float32))))
    assert _labels(s) == ["Relu", "Exp", "MatMul"]
    assert s.places[left].buffer is s.places[right].buffer is s.places[whole].buffer
    assert (s.places[left].offset, s.places[right].offset) == (0, 3)
    assert s.places[right].strides == (6, 1)


def test_concatenations_that_grow_share_one_buffer() -> None:
    """A dense block: each layer reads all before it."""
    b = GraphBuilder()
    x = b.emit("Relu", b.input("x", (4, 2), "f32"))
    parts = [x]
    wholes: list[Value] = []
    for _ in range(4):
        whole = b.emit("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
        wholes.append(whole)
        parts.append(b.emit("MatMul", whole, b.constant(np.ones((whole.shape[1], 3), np.float32))))
    s = _stored(b, b.emit("ReduceSum", b.emit("Concat", *parts, axis=1), axes=(0,), keepdims=0))
    assert all(not label.startswith("Copy") for label in _labels(s))
    assert len({s.places[v].buffer for v in wholes}) == 1


def test_concatenations_that_grow_in_groups_share_one_buffer_too() -> None:
    """As an importer writes them that never joins more than a few parts at once."""
    b = GraphBuilder()
    x = b.emit("Relu", b.input("x", (4, 2), "f32"))
    parts = [x]
    for _ in range(5):
        whole = x if len(parts) == 1 else b.emit("Concat", parts[0], b.emit("Concat", *parts[1:], axis=1), axis=1)
        parts.append(b.emit("MatMul", whole, b.constant(np.ones((whole.shape[1], 3), np.float32))))
    s = _stored(
        b,
        b.emit(
            "ReduceSum", b.emit("Concat", parts[0], b.emit("Concat", *parts[1:], axis=1), axis=1), axes=(0,), keepdims=0
        ),
    )
    assert "Copy" not in _labels(s)


def test_nested_concatenations_need_no_copy() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 2), "f32")
    inner = b.emit("Concat", b.emit("Relu", x), b.emit("Exp", x), axis=1)
    outer = b.emit("Concat", b.emit("Neg", x), inner, axis=1)
    s = _stored(b, outer)
    assert sorted(_labels(s)) == ["Exp", "Neg", "Relu"]
    assert s.places[outer].buffer.kind == "output"


def test_an_input_and_a_repeated_part_are_copied_into_a_concatenation() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 2), "f32")
    y = b.emit("Relu", x)
    s = _stored(b, b.emit("Concat", x, y, y, axis=1))
    assert sorted(_labels(s)) == ["Copy", "Copy", "Relu"]


def test_a_value_wanted_in_two_wholes_is_copied_into_one() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 2), "f32")
    shared, other = b.emit("Relu", x), b.emit("Exp", x)
    s = _stored(b, b.emit("Concat", shared, other, axis=1), b.emit("Concat", other, shared, axis=1))
    assert sorted(_labels(s)) == ["Copy", "Copy", "Exp", "Relu"]


def test_slices_are_read_where_they_lie() -> None:
    b = GraphBuilder()
    x = b.emit("Relu", b.input("x", (4, 6), "f32"))
    right = b.emit("Slice", x, starts=(0, 2), steps=(1, 1), shape=(4, 4))
    s = _stored(b, b.emit("Exp", right))
    assert _labels(s) == ["Relu", "Exp"]
    assert (s.places[right].offset, s.places[right].strides) == (2, (6, 1))


def test_heads_are_written_side_by_side_for_the_reshape_behind_the_transpose() -> None:
    """Attention's end: [heads, rows, d] -> [rows, heads, d] -> [rows, heads·d]."""
    b = GraphBuilder()
    x, w = b.input("x", (3, 4, 5), "f32"), b.input("w", (3, 5, 2), "f32")
    heads = b.emit("MatMul", x, w)
    flat = b.reshape(b.emit("Transpose", heads, perm=(1, 0, 2)), (4, 6))
    s = _stored(b, b.emit("MatMul", flat, b.constant(np.ones((6, 6), np.float32))))
    assert _labels(s) == ["MatMul", "MatMul"]
    assert s.places[heads].strides == (2, 6, 1)


def test_a_reshape_that_a_slice_cannot_serve_is_copied() -> None:
    b = GraphBuilder()
    x = b.emit("Relu", b.input("x", (4, 6), "f32"))
    part = b.emit("Slice", x, starts=(0, 0), steps=(1, 1), shape=(4, 4))
    s = _stored(b, b.emit("Exp", b.reshape(part, (16,))))
    assert _labels(s) == ["Relu", "Reshape", "Exp"]


def test_strides_of_a_reshape_agree_with_numpy() -> None:
    rng = np.random.default_rng(0)
    agreed = refused = 0
    for _ in range(500):
        shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 6], size=rng.integers(1, 5)))
        base = np.zeros(tuple(int(n + e) for n, e in zip(shape, rng.integers(0, 2, len(shape)))), np.int8)
        view = base[tuple(slice(0, n) for n in shape)].transpose(rng.permutation(len(shape)))
        factors = [int(p) for n in view.shape for p in ((2, 2) if n == 4 else (2, 3) if n == 6 else (n,))]
        cut = sorted(rng.integers(0, len(factors) + 1, size=rng.integers(0, 4)))
        wanted = tuple(int(np.prod(part)) for part in np.split(np.array(factors), cut))
        found = reshaped_strides(view.shape, view.strides, wanted)
        same = view.reshape(wanted)
        if found is None:
            assert not np.shares_memory(same, base)
            refused += 1
        elif base.size:
            assert [f for f, n in zip(found, wanted) if n > 1] == [s for s, n in zip(same.strides, wanted) if n > 1]
            assert np.shares_memory(same, base)
            agreed += 1
    assert agreed > 50
    assert refused > 20
