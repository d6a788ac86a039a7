"""Graphs at rounded sizes: nothing that padding holds reaches an element that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, helper

from stormdrop.compare.interpreter import interpret
from stormdrop.frontend.onnx import load
from stormdrop.graph.padding import padded
from stormdrop.ir.shape import Padding, valid_part
from tests.support.open_onnx import decoder, open_onnx

Array = NDArray[Any]
Ports = Mapping[str, tuple[str, Sequence[int | str]]]
EXACT, ROUNDED = 5, 8
TRI = np.tril(np.ones((ROUNDED, ROUNDED), bool))


def node(op: str, inputs: str, output: str = "y", **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


X: Ports = {"x": ("f32", [2, "n", 6])}
SQUARE: Ports = {"x": ("f32", ["b", "n", "n"])}
KEPT: dict[str, tuple[list[NodeProto], Ports, dict[str, Array]]] = {
    "rows of a product": ([node("MatMul", "x w")], X, {"w": np.ones((6, 3), np.float32)}),
    "a sum over the sequence": ([node("ReduceSum", "x axes", keepdims=0)], X, {"axes": ints(1)}),
    "a maximum over the sequence": ([node("ReduceMax", "x", axes=[1], keepdims=1)], X, {}),
    "a minimum over everything": ([node("ReduceMin", "x", axes=[0, 1, 2], keepdims=0)], X, {}),
    "a product over the sequence": ([node("ReduceProd", "x", axes=[1], keepdims=0)], X, {}),
    "softmax over the sequence": ([node("Softmax", "x", axis=1)], X, {}),
    "softmax over another dimension": ([node("Softmax", "x", axis=2)], X, {}),
    "attention without a mask": (
        [
            node("Transpose", "x", "t", perm=[0, 2, 1]),
            node("MatMul", "x t", "s"),
            node("Softmax", "s", "p", axis=2),
            node("MatMul", "p x"),
        ],
        X,
        {},
    ),
    "a product of two that are padded": ([node("MatMul", "t x")], {**X, "t": ("f32", [2, 4, "n"])}, {}),
    "flattened rows": (
        [node("Reshape", "x flat", "r"), node("MatMul", "r w", "m"), node("Reshape", "m back")],
        X,
        {"flat": ints(-1, 6), "w": np.ones((6, 4), np.float32), "back": ints(2, -1, 4)},
    ),
    "flattened rows as an output": ([node("Reshape", "x flat")], X, {"flat": ints(-1, 3)}),
    "layer normalisation": (
        [node("LayerNormalization", "x g", axis=-1)],
        X,
        {"g": np.linspace(0.5, 2, 6).astype(np.float32)},
    ),
    "a mean over another dimension": ([node("ReduceMean", "x", axes=[2])], X, {}),
    "a triangle": ([node("Trilu", "x", upper=0)], SQUARE, {}),
    "a running sum": ([node("CumSum", "x axis")], X, {"axis": np.array(1, np.int64)}),
    "a fixed beginning": (
        [node("Slice", "x zero one axis")],
        X,
        {"zero": ints(0), "one": ints(1), "axis": ints(1)},
    ),
    "the first row": ([node("Gather", "x first", axis=1)], X, {"first": np.array(0, np.int64)}),
    "a row put before": (
        [node("Concat", "token x", axis=1)],
        X,
        {"token": np.ones((2, 1, 6), np.float32)},
    ),
    "a row put before, and attention": (
        [
            node("Concat", "token x", "c", axis=1),
            node("Transpose", "c", "t", perm=[0, 2, 1]),
            node("MatMul", "c t", "s"),
            node("Softmax", "s", "p", axis=-1),
            node("MatMul", "p c"),
        ],
        X,
        {"token": np.ones((2, 1, 6), np.float32)},
    ),
    "an Einsum": ([node("Einsum", "x x", equation="bnc,bnd->bcd")], X, {}),
    "a constant of the sequence's length": (
        [
            node("Shape", "x", "s"),
            node("Gather", "s i", "n"),
            node("Range", "zero n one", "r"),
            node("Cast", "r", "f", to=1),
            node("Unsqueeze", "f last", "u"),
            node("Add", "x u"),
        ],
        X,
        {
            "i": np.array(1, np.int64),
            "zero": np.array(0, np.int64),
            "one": np.array(1, np.int64),
            "last": ints(1),
        },
    ),
    "looked up": (
        [node("Gather", "table ids")],
        {"ids": ("i64", [2, "n"])},
        {"table": np.arange(12, dtype=np.float32).reshape(4, 3)},
    ),
}
REFUSED: dict[str, tuple[list[NodeProto], Ports, dict[str, Array]]] = {
    "a mean over the sequence": ([node("ReduceMean", "x", axes=[1])], X, {}),
    "the last row": (
        [node("Slice", "x last end axis")],
        X,
        {"last": ints(-1), "end": ints(1 << 40), "axis": ints(1)},
    ),
    "the last row, looked up": ([node("Gather", "x last", axis=1)], X, {"last": np.array(-1, np.int64)}),
    "a row put behind": ([node("Concat", "x token", axis=1)], X, {"token": np.ones((2, 1, 6), np.float32)}),
    "a reversed running sum": ([node("CumSum", "x axis", reverse=1)], X, {"axis": np.array(1, np.int64)}),
    "reversed rows": (
        [node("Slice", "x last first axis back")],
        X,
        {"last": ints(-1), "first": ints(-(1 << 40)), "axis": ints(1), "back": ints(-1)},
    ),
    "normalised over the sequence": (
        [
            node("Transpose", "x", "t", perm=[0, 2, 1]),
            node("Shape", "t", "s", start=2),
            node("ConstantOfShape", "s", "g", value=helper.make_tensor("v", 1, [1], [1.0])),
            node("LayerNormalization", "t g", axis=-1),
        ],
        X,
        {},
    ),
    "a convolution along the sequence": (
        [
            node("Transpose", "x", "t", perm=[0, 2, 1]),
            node("Conv", "t w", kernel_shape=[3], pads=[1, 1]),
        ],
        X,
        {"w": np.ones((2, 6, 3), np.float32)},
    ),
    "scaled by the length": (
        [
            node("Shape", "x", "s"),
            node("Gather", "s i", "n"),
            node("Cast", "n", "f", to=1),
            node("Div", "x f"),
        ],
        X,
        {"i": np.array(1, np.int64)},
    ),
    "sequence and batch mixed": (
        [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Reshape", "t flat", "r"), node("Reshape", "r back")],
        X,
        {"flat": ints(-1), "back": ints(4, -1)},
    ),
    "the largest of the sequence": ([node("ArgMax", "x", axis=1)], X, {}),
}


def graphs(name: str, cases: Mapping[str, tuple[list[NodeProto], Ports, dict[str, Array]]]) -> list[Any]:
    nodes, ports, constants = cases[name]
    proto = open_onnx(nodes, ports, {"y": ("i64" if "ArgMax" in str(nodes) else "f32", [])}, constants)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    sizes = [
        {key: [3 if d == "b" else n if d == "n" else d for d in dims] for key, (_, dims) in ports.items()}
        for n in (ROUNDED, EXACT)
    ]
    return [load(proto.SerializeToString(), shapes) for shapes in sizes]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_does_not_depend_on_what_the_padding_holds(name: str) -> None:
    rounded, exact = graphs(name, KEPT)
    plan = padded(rounded, exact)
    assert plan is not None
    rng = np.random.default_rng(1)
    arrays: dict[str, Array] = {}
    larger: dict[str, Array] = {}
    for v, w in zip(exact.inputs, rounded.inputs):
        if v.dtype == "i64":
            arrays[v.name], larger[v.name] = rng.integers(0, 4, v.shape), np.full(w.shape, 10**6)
        else:
            arrays[v.name] = rng.standard_normal(v.shape).astype(np.float32)
            larger[v.name] = np.full(w.shape, np.nan, np.float32)
        larger[v.name][tuple(map(slice, v.shape))] = arrays[v.name]
    masks = zip(plan.graph.inputs[len(exact.inputs) :], plan.masks)
    larger.update((v.name, padding.mask(v.shape[0])) for v, padding in masks)
    (expected,) = interpret(exact, arrays)
    (found,) = interpret(plan.graph, larger)
    np.testing.assert_allclose(valid_part(found, plan.outputs[0]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_there_is_no_proof_for(name: str) -> None:
    assert padded(*graphs(name, REFUSED)) is None


def test_work_that_is_done_row_by_row_needs_no_mask() -> None:
    plan = padded(*graphs("flattened rows", KEPT))
    assert plan is not None
    assert not plan.masks


def test_a_causal_decoder_needs_one_mask_for_all_its_layers() -> None:
    proto = decoder(layers=2).SerializeToString()
    plan = padded(*(load(proto, {"ids": (2, n)}) for n in (ROUNDED, EXACT)))
    assert plan is not None
    assert plan.masks == (Padding(1, ROUNDED, EXACT),)


def test_constants_that_change_with_the_size_are_no_prefixes() -> None:
    """Positions counted from the end: the rounded graph would number all rows otherwise."""
    nodes, ports, constants = KEPT["a constant of the sequence's length"]
    changed = [node("Neg", "f", "g"), node("Unsqueeze", "g last", "u")]
    backwards = [*nodes[:2], node("Range", "n zero down", "r"), nodes[3], *changed, nodes[5]]
    case = {"backwards": (backwards, ports, {**constants, "down": np.array(-1, np.int64)})}
    assert padded(*graphs("backwards", case)) is None
