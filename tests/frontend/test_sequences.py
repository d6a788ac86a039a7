"""Sequences and optional values whose length is known when a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import stormdrop as sd
from stormdrop.base.errors import Unsupported, UserError
from stormdrop.compare.interpreter import interpret
from stormdrop.compiler.compile import compile as compile_model
from stormdrop.frontend.node_reader import NeedsConstant
from stormdrop.frontend.onnx import load
from stormdrop.model.mixed import MixedModel

pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(4)
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Arrays = Mapping[str, NDArray[Any]]
X = RNG.standard_normal((5, 3)).astype(np.float32)
Y = RNG.standard_normal((2, 3)).astype(np.float32)


def node(op: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, **attributes)


def model(
    nodes: Sequence[Any], outputs: Sequence[Any], constants: Arrays | None = None, inputs: Arrays | None = None
) -> ModelProto:
    """A model of `x`, `y` and further inputs; an output is a name of f32, or a value info."""
    feeds = {"x": X, "y": Y, **(inputs or {})}
    graph = helper.make_graph(
        nodes,
        "sequences",
        [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in feeds.items()],
        [helper.make_tensor_value_info(o, FLOAT, None) if isinstance(o, str) else o for o in outputs],
        [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def on_onnxruntime(proto: ModelProto, inputs: Arrays | None = None) -> list[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {i.name for i in proto.graph.input}
    return list(session.run(None, {k: a for k, a in {"x": X, "y": Y, **(inputs or {})}.items() if k in names}))


def compiled(proto: ModelProto, inputs: Arrays | None = None) -> list[NDArray[Any]]:
    feeds = {"x": X, "y": Y, **(inputs or {})}
    assert all(a.shape == b.shape for a, b in zip(interpret(load(proto), list(feeds.values())), [*_run(proto, feeds)]))
    return _run(proto, feeds)


def _run(proto: ModelProto, feeds: Arrays) -> list[NDArray[Any]]:
    return [np.asarray(a) for a in compile_model(proto, schedules=lambda task: None).run(dict(feeds)).values()]


def assert_as_onnxruntime(proto: ModelProto) -> list[NDArray[Any]]:
    results, wanted = compiled(proto), on_onnxruntime(proto)
    for y, right in zip(results, wanted, strict=True):
        assert y.dtype == right.dtype
        assert y.shape == right.shape
        np.testing.assert_allclose(y, right, rtol=1e-6)
    return results


def tensor(name: str, kind: int, shape: Sequence[int] | None = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


SPLITS: list[tuple[dict[str, Any], NDArray[Any] | None, tuple[int, ...]]] = [
    ({"axis": 0}, None, (1, 3)),
    ({"axis": -2, "keepdims": 0}, None, (3,)),
    ({"axis": 1, "keepdims": 0}, None, (5,)),
    ({"axis": 0}, np.array(2), (1, 3)),
    ({"axis": 0}, np.array([1, 3, 1]), (1, 3)),
    ({"axis": 1}, np.array([3], np.int32), (5, 3)),
]


@pytest.mark.parametrize(("attributes", "split", "shape"), SPLITS)
def test_a_split_sequence_has_parts_of_one_size_or_of_listed_sizes(
    attributes: dict[str, Any], split: NDArray[Any] | None, shape: tuple[int, ...]
) -> None:
    nodes = [
        node("SplitToSequence", ["x"] if split is None else ["x", "split"], "s", **attributes),
        node("SequenceAt", ["s", "last"], "part"),
        node("SequenceLength", ["s"], "count"),
        node("Neg", ["part"], "z"),
    ]
    constants = {"last": np.array(-1), **({} if split is None else {"split": split})}
    proto = model(nodes, ["z", tensor("count", INT, ())], constants)
    assert assert_as_onnxruntime(proto)[0].shape == shape


@pytest.mark.parametrize("split", [np.array(1), np.array([1, 4])])
def test_a_split_of_given_sizes_keeps_its_dimension(split: NDArray[Any]) -> None:
    """As ONNX has it: `keepdims` is ignored then. onnxruntime drops the dimension of a scalar split all the same."""
    nodes = [
        node("SplitToSequence", ["x", "split"], "s", axis=0, keepdims=0),
        node("SequenceAt", ["s", "zero"], "z"),
    ]
    (z,) = compiled(model(nodes, ["z"], {"split": split, "zero": np.array(0)}))
    np.testing.assert_array_equal(z, X[:1])


@pytest.mark.parametrize(("axis", "new_axis"), [(0, 0), (-1, 0), (0, 1), (1, 1), (-1, 1), (2, 1)])
def test_a_sequence_is_joined_along_an_old_or_a_new_dimension(axis: int, new_axis: int) -> None:
    nodes = [
        node("Neg", ["x"], "n"),
        node("SequenceConstruct", ["x", "n", "x"], "s"),
        node("ConcatFromSequence", ["s"], "z", axis=axis, new_axis=new_axis),
    ]
    assert_as_onnxruntime(model(nodes, ["z"]))


@pytest.mark.parametrize("position", [None, 0, 1, 2, -1, -2])
def test_elements_are_inserted_and_erased_at_positions_of_either_sign(position: int | None) -> None:
    at = [] if position is None else ["at"]
    nodes = [
        node("SequenceConstruct", ["x", "y"], "s"),
        node("Neg", ["y"], "n"),
        node("SequenceInsert", ["s", "n", *at], "longer"),
        node("ConcatFromSequence", ["longer"], "z", axis=0),
        node("SequenceErase", ["longer", *at], "shorter"),
        node("ConcatFromSequence", ["shorter"], "w", axis=0),
    ]
    assert_as_onnxruntime(model(nodes, ["z", "w"], {} if position is None else {"at": np.array(position)}))


def test_an_empty_sequence_grows() -> None:
    nodes = [
        node("SequenceEmpty", [], "s", dtype=FLOAT),
        node("SequenceLength", ["s"], "none"),
        node("SequenceInsert", ["s", "x"], "one"),
        node("SequenceInsert", ["one", "y", "zero"], "two"),
        node("ConcatFromSequence", ["two"], "z", axis=0),
    ]
    assert_as_onnxruntime(model(nodes, ["z", tensor("none", INT, ())], {"zero": np.array(0)}))


def test_halves_stay_halves_in_a_sequence() -> None:
    nodes = [
        node("Cast", ["x"], "h", to=TensorProto.FLOAT16),
        node("SplitToSequence", ["h"], "s", axis=0),
        node("ConcatFromSequence", ["s"], "z", axis=1),
    ]
    (z,) = assert_as_onnxruntime(model(nodes, [tensor("z", TensorProto.FLOAT16)]))
    assert z.dtype == np.float16


@pytest.mark.parametrize(
    ("nodes", "constants", "fault"),
    [
        ([node("SequenceAt", ["s", "at"], "z")], {"at": np.array(2)}, "position 2 lies outside a sequence of 2 f32"),
        ([node("SequenceAt", ["s", "at"], "z")], {"at": np.array(-3)}, "position -3 lies outside"),
        (
            [node("SequenceInsert", ["s", "x", "at"], "t"), node("SequenceAt", ["t", "at"], "z")],
            {"at": np.array(3)},
            "3",
        ),
        ([node("SequenceInsert", ["s", "i"], "t"), node("SequenceAt", ["t", "i"], "z")], {"i": np.array(0)}, "not fit"),
        ([node("ConcatFromSequence", ["s"], "z", axis=1)], {}, "do not|cannot"),
        ([node("ConcatFromSequence", ["s"], "z", axis=0, new_axis=1)], {}, "cannot be joined"),
        ([node("ConcatFromSequence", ["s"], "z", axis=2)], {}, "no dimension 2"),
        ([node("Relu", ["s"], "z")], {}, "is a sequence of 2 f32 tensors; it may be a tensor"),
        ([node("SequenceAt", ["x", "at"], "z")], {"at": np.array(0)}, "it may be a sequence"),
        (
            [node("SequenceEmpty", [], "t"), node("SequenceErase", ["t"], "u"), node("Relu", ["x"], "z")],
            {},
            "be erased",
        ),
        ([node("SequenceEmpty", [], "t"), node("ConcatFromSequence", ["t"], "z", axis=0)], {}, "empty sequence"),
        ([node("SplitToSequence", ["x", "k"], "t"), node("Relu", ["x"], "z")], {"k": np.array(0)}, "positive size"),
        ([node("SplitToSequence", ["x", "k"], "t"), node("Relu", ["x"], "z")], {"k": np.array([4])}, "do not make 5"),
    ],
)
def test_operators_of_sequences_refuse_wrong_operands(nodes: list[Any], constants: Arrays, fault: str) -> None:
    with pytest.raises(UserError, match=fault) as caught:
        load(model([node("SequenceConstruct", ["x", "y"], "s"), *nodes], ["z"], constants))
    assert not isinstance(caught.value, Unsupported)


def test_a_position_that_is_computed_at_run_time_must_be_bound() -> None:
    proto = model(
        [node("SequenceConstruct", ["x", "y"], "s"), node("SequenceAt", ["s", "at"], "z")],
        ["z"],
        inputs={"at": np.array(1)},
    )
    with pytest.raises(NeedsConstant, match=r"constants=\{'at': array\}") as caught:
        load(proto)
    assert caught.value.value == "at"
    assert load(proto, constants={"at": np.array(1)}).outputs[0].shape == Y.shape


def test_a_sequence_as_output_is_not_supported() -> None:
    proto = model([node("SequenceConstruct", ["x", "y"], "s")], [tensor("s", FLOAT)])
    with pytest.raises(Unsupported, match="output s is a sequence of 2 f32 tensors"):
        load(proto)


def body(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return helper.make_graph(nodes, "body", inputs, outputs)


def sequence(name: str) -> Any:
    return helper.make_tensor_sequence_value_info(name, FLOAT, None)


def test_a_loop_fills_a_sequence() -> None:
    loop = body(
        [
            node("Cast", ["i"], "f", to=FLOAT),
            node("Mul", ["x", "f"], "row"),
            node("SequenceInsert", ["before", "row"], "after"),
            node("Identity", ["go"], "on"),
        ],
        [tensor("i", INT, ()), tensor("go", BOOL, ()), sequence("before")],
        [tensor("on", BOOL, ()), sequence("after")],
    )
    nodes = [
        node("SequenceConstruct", ["y"], "s"),
        node("Loop", ["trips", "", "s"], "t", body=loop),
        node("ConcatFromSequence", ["t"], "z", axis=0),
    ]
    (z,) = assert_as_onnxruntime(model(nodes, ["z"], {"trips": np.array(3)}))
    assert z.shape == (17, 3)


@pytest.mark.parametrize("go", [True, False])
def test_a_branch_gives_a_sequence(go: bool) -> None:
    then = body([node("Identity", ["s"], "a")], [], [sequence("a")])
    other = body([node("SequenceErase", ["s", "zero"], "b")], [], [sequence("b")])
    nodes = [
        node("SequenceConstruct", ["x", "y"], "s"),
        node("If", ["go"], "t", then_branch=then, else_branch=other),
        node("ConcatFromSequence", ["t"], "z", axis=0),
    ]
    assert_as_onnxruntime(model(nodes, ["z"], {"go": np.array(go), "zero": np.array(0)}))


def test_a_sequence_is_mapped_element_by_element() -> None:
    inner = body(
        [node("Add", ["a", "b"], "c"), node("Shape", ["a"], "d")], [tensor("a", FLOAT), tensor("b", FLOAT)], []
    )
    inner.output.extend([tensor("c", FLOAT), tensor("d", INT)])
    nodes = [
        node("SequenceConstruct", ["x", "y"], "s"),
        node("Relu", ["bias"], "r"),
        node("SequenceMap", ["s", "r"], "t", "shapes", body=inner),
        node("ConcatFromSequence", ["t"], "z", axis=0),
        node("ConcatFromSequence", ["shapes"], "sizes", axis=0, new_axis=1),
    ]
    proto = model(nodes, ["z", tensor("sizes", INT)], {"bias": np.array([1, -2, 3], np.float32)})
    assert_as_onnxruntime(proto)


def optional(name: str) -> Any:
    return helper.make_value_info(name, helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, None)))


def test_an_optional_value_holds_a_sequence_or_nothing() -> None:
    kind = helper.make_tensor_type_proto(FLOAT, None)
    nodes = [
        node("SequenceConstruct", ["x", "y"], "s"),
        node("Optional", ["s"], "o"),
        node("OptionalHasElement", ["o"], "yes"),
        node("OptionalGetElement", ["o"], "t"),
        node("ConcatFromSequence", ["t"], "z", axis=0),
        node("Optional", [], "nothing", type=kind),
        node("OptionalHasElement", ["nothing"], "no"),
    ]
    outputs = ["z", tensor("yes", BOOL, ()), tensor("no", BOOL, ())]
    z, yes, no = compiled(model(nodes, outputs))
    np.testing.assert_array_equal(z, np.concatenate([X, Y]))
    assert yes
    assert not no


def test_the_element_of_an_empty_optional_value_is_not_supported() -> None:
    kind = helper.make_tensor_type_proto(FLOAT, None)
    nodes = [node("Optional", [], "o", type=kind), node("OptionalGetElement", ["o"], "z")]
    with pytest.raises(Unsupported, match="an optional value that is not there"):
        load(model(nodes, ["z"]))


# Sequences beside onnxruntime


def mixed(proto: ModelProto) -> MixedModel:
    made = sd.compile(proto, fallback="onnxruntime", schedules=lambda task: None)
    assert isinstance(made, MixedModel)
    return made


def assert_mixed(proto: ModelProto, inputs: Arrays, places: Sequence[str]) -> MixedModel:
    made = mixed(proto)
    assert [p.where for p in made.placements] == list(places)
    results = made.run({"x": X, "y": Y, **inputs}).values()
    for y, right in zip(results, on_onnxruntime(proto, inputs), strict=True):
        for a, b in zip(y, right, strict=True) if isinstance(right, list) else [(y, right)]:
            np.testing.assert_allclose(a, b, rtol=1e-6)
    return made


def test_a_sequence_that_a_foreign_node_reads_is_made_by_the_runtime_too() -> None:
    """The part of a known position stays native; the position of the other is an input."""
    nodes = [
        node("Neg", ["x"], "n"),
        node("SplitToSequence", ["n"], "s", axis=0),
        node("SequenceInsert", ["s", "y"], "longer"),
        node("SequenceAt", ["longer", "first"], "head"),
        node("Relu", ["head"], "z"),
        node("SequenceAt", ["longer", "at"], "w"),
    ]
    inputs = {"at": np.array(-1)}
    proto = model(nodes, ["z", tensor("w", FLOAT)], {"first": np.array(0)}, inputs)
    made = assert_mixed(proto, inputs, ["stormdrop", "onnxruntime"])
    assert made.placements[1].operators == ("SplitToSequence", "SequenceInsert", "SequenceAt")


def test_a_sequence_of_values_of_unknown_shape_is_made_by_the_runtime() -> None:
    nodes = [
        node("NonZero", ["x"], "places"),
        node("SequenceConstruct", ["places", "places"], "s"),
        node("ConcatFromSequence", ["s"], "w", axis=1),
    ]
    made = assert_mixed(model(nodes, [tensor("w", INT)]), {}, ["onnxruntime"])
    assert made.placements[0].operators == ("NonZero", "SequenceConstruct", "ConcatFromSequence")


def test_a_sequence_as_output_comes_from_the_runtime_and_its_tensors_stay_native() -> None:
    nodes = [
        node("Neg", ["x"], "n"),
        node("SequenceConstruct", ["n", "y"], "s"),
        node("ConcatFromSequence", ["s"], "z", axis=0),
    ]
    assert_mixed(model(nodes, [sequence("s"), "z"]), {}, ["stormdrop", "onnxruntime"])


def test_tensors_beside_a_sequence_are_computed_once_for_their_own_readers() -> None:
    """The branch gives a tensor and a sequence; the runtime computes both, and the tensor's reader stays native."""
    then = body(
        [node("Neg", ["x"], "a"), node("SequenceConstruct", ["a", "y"], "b")], [], [tensor("a", FLOAT), sequence("b")]
    )
    nodes = [
        node("If", ["go"], "n", "s", then_branch=then, else_branch=then),
        node("Relu", ["n"], "z"),
        node("SequenceAt", ["s", "at"], "w"),
    ]
    inputs = {"at": np.array(1)}
    proto = model(nodes, ["z", tensor("w", FLOAT)], {"go": np.array(True)}, inputs)
    assert_mixed(proto, inputs, ["stormdrop", "onnxruntime"])
