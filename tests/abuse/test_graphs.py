"""Graphs that are broken or odd: nodes of the wrong form are refused by name, what is only unusual is computed
right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.defs import get_all_schemas

import stormdrop as sd
from stormdrop.compiler.compile import tasks_of
from stormdrop.frontend.node_reader import NeedsConstant
from stormdrop.frontend.schema import form_of
from tests.support.abused_onnx import B, D, F, I, L, expected, model, node, one, ones, port, random_feeds

SCANS: dict[str, tuple[str, dict[str, Any]]] = {
    "no body": ("z x", {"num_scan_inputs": 1}),
    "no count": ("z x", {"body": 2}),
    "too many scanned": ("z x", {"body": 2, "num_scan_inputs": 7}),
    "none scanned": ("z x", {"body": 2, "num_scan_inputs": 0}),
    "another body": ("z x", {"body": 3, "num_scan_inputs": 1}),
    "no such axis": ("z x", {"body": 2, "num_scan_inputs": 1, "scan_input_axes": [5]}),
    "too many axes": ("z x", {"body": 2, "num_scan_inputs": 1, "scan_output_axes": [0, 0, 0]}),
    "no such output axis": ("z x", {"body": 2, "num_scan_inputs": 1, "scan_output_axes": [9]}),
    "a scalar": ("z z", {"body": 2, "num_scan_inputs": 1}),
}


@pytest.mark.parametrize("what", SCANS)
def test_a_scan_that_does_not_fit_is_refused_by_name(what: str) -> None:
    names, attributes = SCANS[what]
    if "body" in attributes:
        starts = [port(f"s{k}", ()) for k in range(attributes["body"])]
        inner = helper.make_graph(
            [node("Add", "s0 s1", "t"), node("Identity", "t", "o")], "b", starts, [port("t", ()), port("o", ())]
        )
        attributes = {**attributes, "body": inner}
    with pytest.raises(sd.UserError, match="node n"):
        sd.read_graph(
            model([node("Scan", names, "e a", name="n", **attributes)], [port("z", ()), port("x", (3,))], "e a")
        )


# ---- nodes that are not of their operator's form


def test_inputs_outputs_and_attributes_are_counted_and_typed() -> None:
    x, i = port("x", (2, 3)), port("i", (2, 3), L)
    mistakes: list[tuple[Any, str]] = [
        (node("Relu", "x x", "y"), "2 inputs"),
        (node("Add", "x", "y"), "1 inputs"),
        (node("Relu", "", "y"), "0 inputs"),
        (node("Add", "x _", "y"), "input 1 .B. is missing"),
        (node("Relu", "x", "y z"), "2 outputs"),
        (node("Relu", "x", ""), "0 outputs"),
        (node("Exp", "i", "y"), "is i64; it may be f32, f64"),
        (node("And", "x x", "y"), "is f32; it may be bool"),
        (node("Add", "x i", "y"), "must be alike"),
        (node("Gather", "x x", "y"), "is f32; it may be i32, i64"),
        (node("Concat", "x x", "y"), "attribute axis is missing"),
        (node("Concat", "x x", "y", axis=1.5), "attribute axis is a number, not an integer"),
        (node("Concat", "x x", "y", axis=[1]), "a list of integers, not an integer"),
        (node("Softmax", "x", "y", axis="last"), "a text, not an integer"),
        (node("LeakyRelu", "x", "y", alpha="much"), "a text, not a number"),
        (node("Transpose", "x", "y", perm=[0.5, 1.0]), "a list of numbers, not a list of integers"),
        (node("Cast", "x", "y", to=TensorProto.FLOAT8E5M2), "element type float8e5m2"),
        (node("Cast", "x", "y", to=999), "type 999"),
    ]
    for wrong, message in mistakes:
        last = node("Identity", "x", "end")
        with pytest.raises(sd.UserError, match=rf"{wrong.op_type} node n.*{message}"):
            sd.read_graph(model([wrong, last], [x, i], "end"))


def test_forms_of_old_new_and_forgotten_operators_are_known() -> None:
    upsample = form_of("Upsample", 18)
    assert upsample is not None
    assert [f.name for f in upsample.formals] == ["X", "scales"]
    assert form_of("Gelu", 7) == form_of("Gelu", 20)
    assert form_of("Fancy", 18) is None
    clip = form_of("Clip", 11)
    assert clip is not None
    assert clip.formals[0].dtypes >= {"f32", "i64"}  # as later versions have it


SHAPES: dict[str, Callable[[], Any]] = {
    "indices of another rank": lambda: model(
        [node("GatherElements", "x i", "y")], [port("x", (2, 3)), port("i", (2,), L)], "y"
    ),
    "indices of another extent": lambda: model(
        [node("GatherElements", "x i", "y")], [port("x", (2, 3)), port("i", (2, 4), L)], "y"
    ),
    "fewer updates": lambda: model(
        [node("ScatterElements", "x i u", "y")], [port("x", (2, 3)), port("i", (2, 3), L), port("u", (1, 3))], "y"
    ),
    "an unknown reduction": lambda: model(
        [node("ScatterElements", "x i x", "y", reduction="[red]")], [port("x", (2, 3)), port("i", (2, 3), L)], "y"
    ),
    "updates of another shape": lambda: model(
        [node("ScatterND", "x i u", "y")], [port("x", (2, 3)), port("i", (2, 1), L), port("u", (7,))], "y"
    ),
    "batches before the first": lambda: one("GatherND", (2, 3), {"i": np.array([[0, 1]])}, batch_dims=-1),
    "no matrix": lambda: one("Trilu", (3,)),
    "no image": lambda: one("MaxPool", (3,), kernel_shape=[2]),
    "a label of two extents": lambda: model(
        [node("Einsum", "x z", "y", equation="ij,jk->ik")], [port("x", (2, 3)), port("z", (4, 5))], "y"
    ),
    "a label twice": lambda: one("Einsum", (3, 3), equation="ij->ii"),
    "a dimension of a scalar": lambda: one("Softmax", ()),
    "two of one": lambda: one("Trilu", (3, 3), {"k": np.array([1, 2])}),
    "sequences of another rank": lambda: one("RNN", (3, 3), {"w": ones(1, 2, 3), "r": ones(1, 2, 2)}, hidden_size=2),
    "more parts than outputs": lambda: one("Split", (6,), num_outputs=3),
    "pads for others": lambda: one("Conv", (1, 1, 5), {"w": ones(1, 1, 3)}, pads=[1]),
    "no norm": lambda: one("LpPool", (1, 1, 5), kernel_shape=[2], p=0),
    "integers to sample": lambda: model(
        [node("GridSample", "x g", "y")], [port("x", (1, 1, 3, 3), L), port("g", (1, 2, 2, 2))], [port("y", None, L)]
    ),
    "seventy dimensions": lambda: one("Relu", (1,) * 70),
    "nothing to join": lambda: model([node("Concat", "_", "y", axis=0)], [], "y"),
}


@pytest.mark.parametrize("what", SHAPES)
def test_shapes_that_do_not_fit_are_refused_by_name(what: str) -> None:
    with pytest.raises(sd.UserError, match=r"node (n_y|n)\b|%x has 70 dimensions"):
        tasks_of(sd.read_graph(SHAPES[what]()))


@pytest.mark.parametrize("kind", ["sequence_type", "optional_type", "map_type", "sparse_tensor_type", "nothing"])
def test_inputs_and_outputs_that_are_no_tensors_are_refused(kind: str) -> None:
    m = model([node("Relu", "x", "y")], [port("x", (2,))], "y")
    for what, value in (("input", m.graph.input[0]), ("output", m.graph.output[0])):
        other = ModelProto.FromString(m.SerializeToString())
        listed = other.graph.input if what == "input" else other.graph.output
        value = listed[0]
        value.ClearField("type")
        if kind == "nothing":
            if what == "output":
                continue  # what is computed says what it is
        elif kind == "map_type":
            value.type.map_type.key_type = L
        else:
            getattr(value.type, kind).SetInParent()
        with pytest.raises(sd.UserError, match=rf"{what} [xy] is no tensor"):
            sd.read_graph(other)


# ---- mutated models: whatever happens, it is a UserError

WILD = (0, 1, -1, 2, 7, -7, 100, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 10**9)


def seeds() -> list[Any]:
    """Models of one node each that are right, of many operators."""
    image, matrix, flat = (1, 4, 6, 6), (3, 4), (6,)
    weights = {"w": ones(4, 4, 3, 3)}
    axes = {"axes": np.array([1])}
    plain = (
        "Relu",
        "Exp",
        "Softmax",
        "LogSoftmax",
        "Transpose",
        "Flatten",
        "Squeeze",
        "Shape",
        "Hardmax",
        "ArgMax",
        "Trilu",
        "Identity",
    )
    return [
        *(one(op, matrix) for op in plain),
        one("Conv", image, weights, pads=[1, 1, 1, 1], strides=[2, 2]),
        one("ConvTranspose", image, weights),
        one("Size", matrix),
        one("MaxPool", image, kernel_shape=[2, 2], ceil_mode=1),
        one("AveragePool", image, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        one("LRN", image, size=3),
        one("DepthToSpace", image, blocksize=2),
        one("SpaceToDepth", image, blocksize=2),
        one("Reshape", matrix, {"s": np.array([2, -1])}),
        one("Slice", matrix, {"a": np.array([0]), "b": np.array([2]), "c": np.array([1])}),
        one("Pad", matrix, {"p": np.array([1, 0, 0, 1])}, mode="reflect"),
        one("Tile", matrix, {"t": np.array([2, 1])}),
        one("Expand", matrix, {"s": np.array([2, 3, 4])}),
        one("Unsqueeze", matrix, {"axes": np.array([0])}),
        one("Split", flat, axis=0, num_outputs=1),
        one("Gather", matrix, {"i": np.array([[0, 2]])}),
        one("GatherElements", matrix, {"i": np.array([[0, 1, 0, 2]])}),
        one("GatherND", matrix, {"i": np.array([[0, 1]])}),
        one("ScatterND", matrix, {"i": np.array([[0]]), "u": ones(1, 4)}),
        one("ScatterElements", matrix, {"i": np.array([[0, 1, 0, 2]]), "u": ones(1, 4)}),
        one("TopK", matrix, {"k": np.array([2])}),
        one("CumSum", matrix, {"axis": np.array(0)}),
        one("OneHot", flat, {"d": np.array(3), "v": np.array([0, 1], np.float32)}, kind=L),
        one("ReduceSum", matrix, axes),
        one("ReduceMax", matrix, axes),
        one("ReduceLogSumExp", matrix, axes),
        one("LpNormalization", matrix),
        one("MatMul", matrix, {"b": ones(4, 2)}),
        one("Gemm", matrix, {"b": ones(2, 4)}, transB=1, alpha=0.5),
        one("Einsum", matrix, equation="ij->ji"),
        one("Resize", image, {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)}),
        one("LayerNormalization", matrix, {"s": ones(4)}),
        one("InstanceNormalization", image, {"s": ones(4), "b": ones(4)}),
        one("BatchNormalization", image, dict.fromkeys("abcd", ones(4))),
        one("Clip", matrix, {"a": np.float32(0), "b": np.float32(1)}),
        one("GroupNormalization", image, {"s": ones(4), "b": ones(4)}, num_groups=2, opset=21),
        one("GRU", (3, 2, 4), {"w": ones(1, 6, 4), "r": ones(1, 6, 2)}, hidden_size=2),
        one("SoftmaxCrossEntropyLoss", matrix, {"l": np.array([0, 1, 2])}),
        one("CenterCropPad", matrix, {"s": np.array([2, 2])}),
    ]


def mutate(m: Any, rng: random.Random) -> None:
    """One small change that a broken exporter, or somebody with bad intentions, might make."""
    n, x = m.graph.node[0], m.graph.input[0].type.tensor_type
    match rng.randrange(9):
        case 0 if n.input:
            del n.input[rng.randrange(len(n.input))]
        case 1 if n.input:
            n.input[rng.randrange(len(n.input))] = rng.choice(["", *n.input])
        case 2 if n.attribute:
            rng.choice(n.attribute).type = rng.choice((0, 1, 2, 3, 4, 6, 7, 8))
        case 3 if n.attribute:
            del n.attribute[rng.randrange(len(n.attribute))]
        case 4 if n.attribute:
            a = rng.choice(n.attribute)
            a.i, a.s, a.f = (
                rng.choice(WILD),
                rng.choice((b"", b"\xff", b"...->", b"linear")),
                rng.choice((0.0, -1.0, float("nan"), 1e30)),
            )
            a.ints[:] = [rng.choice(WILD) for _ in range(rng.randrange(5))]
        case 5 if m.graph.initializer:
            t = rng.choice(m.graph.initializer)
            array = np.asarray(numpy_helper.to_array(t))
            values = np.array([rng.choice(WILD) for _ in range(array.size)]).reshape(array.shape)
            t.CopyFrom(numpy_helper.from_array(values.astype(array.dtype), t.name))
        case 6 if m.graph.initializer:
            t = rng.choice(m.graph.initializer)
            array = np.ones(rng.choice(((), (0,), (2,), (2, 2))), rng.choice((np.float32, np.int64)))
            t.CopyFrom(numpy_helper.from_array(array, t.name))
        case 7:
            del x.shape.dim[:]
            for _ in range(rng.randrange(6)):
                x.shape.dim.add().dim_value = rng.choice((0, 1, 2, 3, 7, 10**6, 2**62, -1))
        case _:
            x.elem_type = rng.choice((F, D, I, L, B))


def test_whatever_is_wrong_with_a_model_is_said_as_a_user_error() -> None:
    rng, right = random.Random(11), seeds()
    for m in right:
        tasks_of(sd.read_graph(m))
    taken, refusals = 0, list[str]()
    for k in range(1500):
        m = ModelProto.FromString(right[k % len(right)].SerializeToString())
        for _ in range(rng.randint(1, 3)):
            mutate(m, rng)
        try:
            tasks_of(sd.read_graph(m))
            taken += 1
        except NeedsConstant:
            continue
        except sd.UserError as error:
            refusals.append(str(error))
    assert min(taken, len(refusals)) > 200
    assert not [text for text in refusals if not any(word in text for word in ("node n", "constant", "input", "%x"))]


# ---- graphs that are large or odd, and right


@pytest.mark.parametrize("op", ["Relu", "Add", "Sigmoid"])
def test_long_chains_need_no_recursion(op: str) -> None:
    count = 3000
    nodes = [node(op, f"v{k} v0" if op == "Add" else f"v{k}", f"v{k + 1}") for k in range(count)]
    compiled = sd.compile(model(nodes, [port("v0", (3,))], f"v{count}"))
    x = np.array([1.0, -2.0, 0.5], np.float32)
    right = {"Relu": np.maximum(x, 0), "Add": x * (count + 1), "Sigmoid": np.full(3, 0.659046, np.float32)}
    np.testing.assert_allclose(compiled(x), right[op], rtol=1e-5)


def two() -> list[Any]:
    return [port("x", (2, 3))]


def taken(start: int, stop: int) -> dict[str, Any]:
    return {"from": np.array([start]), "to": np.array([stop])}


ODD: dict[str, Callable[[], Any]] = {
    "an input is the output": lambda: model([], two(), "x"),
    "an input, and what is made of it": lambda: model([node("Relu", "x", "y")], two(), "x y"),
    "a constant is the output": lambda: model([], two(), "c", {"c": np.arange(6, dtype=np.float32)}),
    "constants alone": lambda: model(
        [node("Add", "c c", "y"), node("Identity", "c", "z")], [], "c y z", {"c": ones(6)}
    ),
    "one value under three names": lambda: model(
        [node("Relu", "x", "y"), node("Identity", "y", "z"), node("Relu", "x", "w")], two(), "y z w"
    ),
    "inputs that nothing reads": lambda: model(
        [node("Relu", "x", "y")], [port("u", (4,)), *two(), port("e", (0,)), port("s", (), L)], "y"
    ),
    "a part beside itself": lambda: model([node("Concat", "x x x", "y", axis=0)], two(), "y"),
    "views of views": lambda: model(
        [
            node("Transpose", "x", "a", perm=[1, 0]),
            node("Reshape", "a s", "b"),
            node("Slice", "b from to", "c"),
            node("Concat", "c c", "d", axis=0),
            node("Reshape", "d flat", "e"),
        ],
        two(),
        "a b c d e",
        {"s": np.array([6, 1]), "flat": np.array([-1]), **taken(1, 5)},
    ),
    "slices that overlap": lambda: model(
        [
            node("Slice", "x from to", "a"),
            node("Slice", "x one four", "b"),
            node("Relu", "a", "c"),
            node("Relu", "b", "d"),
        ],
        [port("x", (4, 3))],
        "a b c d",
        {**taken(0, 3), "one": np.array([1]), "four": np.array([4])},
    ),
    "a slice of a concatenation": lambda: model(
        [node("Concat", "x x", "c", axis=0), node("Slice", "c from to", "y")], two(), "y c", taken(1, 3)
    ),
    "concatenations of concatenations": lambda: model(
        [
            node("Relu", "x", "r"),
            node("Concat", "r x", "a", axis=0),
            node("Concat", "a r", "b", axis=0),
            node("Concat", "r b", "c", axis=0),
        ],
        two(),
        "a b c r",
    ),
    "a constant that is an input too": lambda: model(
        [node("Add", "x c", "y")], [*two(), port("c", (3,))], "y c", {"c": ones(3)}
    ),
    "nothing comes in": lambda: model([node("Relu", "x", "y")], [port("x", (0, 3))], "y x"),
    "nothing and something": lambda: model(
        [node("Concat", "x z", "y", axis=0)], [port("x", (0, 3)), port("z", (2, 3))], "y"
    ),
    "a product of nothing": lambda: model([node("MatMul", "x z", "y")], [port("x", (2, 0)), port("z", (0, 3))], "y"),
    "sums of nothing": lambda: model(
        [node("ReduceSum", "x a", "y"), node("ReduceMax", "x a", "z")],
        [port("x", (2, 0, 3))],
        "y z",
        {"a": np.array([1])},
        20,
    ),
    "a scalar": lambda: model(
        [node("Neg", "x", "y"), node("Reshape", "x s", "z")], [port("x", ())], "y z", {"s": np.array([1, 1, 1])}
    ),
    "whole numbers moved": lambda: model(
        [node("Transpose", "x", "y"), node("Concat", "x x", "z", axis=1)],
        [port("x", (2, 3), L)],
        [port("y", None, L), port("z", None, L)],
    ),
    "truth values moved": lambda: model(
        [node("Transpose", "x", "y"), node("Slice", "x from to", "z")],
        [port("x", (2, 3), B)],
        [port("y", None, B), port("z", None, B)],
        taken(1, 2),
    ),
    "ten dimensions": lambda: model(
        [node("Transpose", "x", "t"), node("Add", "x t", "y")], [port("x", (2,) * 10)], "y"
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_graphs_compute_what_onnxruntime_computes(what: str) -> None:
    m = ODD[what]()
    feeds = {name: a for name, a in random_feeds(m).items() if not any(t.name == name for t in m.graph.initializer)}
    compiled = sd.compile(m)
    first = compiled.run(feeds)
    wanted = expected(m, feeds)
    assert list(first) == list(wanted)
    arrays = [*first.values(), *feeds.values()]
    for k, a in enumerate(arrays):
        assert not any(np.shares_memory(a, b) for b in arrays[:k])
    for a in first.values():
        a[...] = 0 if a.dtype == np.bool_ else 77  # a caller may do with results what it likes
    for name, a in compiled.run(feeds).items():
        assert a.dtype == wanted[name].dtype
        np.testing.assert_allclose(a, wanted[name], rtol=1e-5, atol=1e-6)


def test_every_operator_of_onnx_is_imported_or_refused_by_name() -> None:
    """Of a scalar, as often as it takes, or of nothing: no operator falls over."""
    names = sorted({s.name for s in get_all_schemas() if s.domain == ""})
    assert len(names) > 150
    refusals: list[tuple[str, str]] = []
    for name in names:
        for given in ("", "x", "x x", "x x x", "x x x x x x"):
            try:
                sd.read_graph(model([node(name, given, "y", name="n")], [port("x", ())], "y"))
            except sd.UserError as error:
                refusals.append((name, str(error)))
    assert len(refusals) > 3 * len(names)
    assert all(name in text or "only tensors are" in text for name, text in refusals)
