"""Models of which onnxruntime runs what is not supported here."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import stormdrop as sd
from stormdrop.compiler import compile as compile_module
from stormdrop.frontend.mixed import cut
from stormdrop.frontend.parsed import parsed
from stormdrop.graph.graph import verify
from stormdrop.model import mixed
from stormdrop.model.fallback import OnnxRuntimeFallback
from stormdrop.model.mixed import MixedModel
from tests.support.mixed_models import (
    BOOL,
    FLOAT,
    INT,
    OURS,
    RNG,
    THEIRS,
    Shapes,
    W,
    X,
    detections,
    model,
    opened,
    positives,
)

pytest.importorskip("onnxruntime")


def compiled(proto: ModelProto, **options: Any) -> MixedModel:
    found = sd.compile(proto, fallback="onnxruntime", schedules=lambda task: None, **options)
    assert isinstance(found, MixedModel)
    return found


def expected(proto: ModelProto, inputs: Mapping[str, NDArray[Any]]) -> list[Any]:
    return list(ReferenceEvaluator(proto).run(None, dict(inputs)))  # pyright: ignore[reportArgumentType]


def assert_right(proto: ModelProto, inputs: Mapping[str, NDArray[Any]], places: Sequence[str]) -> MixedModel:
    found = compiled(proto)
    assert [p.where for p in found.placements] == list(places)
    for y, right in zip(found.run(inputs).values(), expected(proto, inputs)):
        assert y.dtype == right.dtype
        np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-5)
    return found


def test_shapes_that_data_decide_go_to_the_fallback_until_they_are_known_again() -> None:
    found = assert_right(positives(), {"x": X}, [OURS, THEIRS, OURS])
    assert found.placements[1].operators == ("NonZero", "Transpose", "GatherND", "ReduceSum")
    assert len(found.placements[1].reasons) == 1
    assert "NonZero" in found.placements[1].reasons[0]
    assert repr(found.outputs) == "(y: f32[3, 8], values: f32[any])"
    assert "2. onnxruntime: NonZero, Transpose" in str(found)


def test_without_the_fallback_the_error_is_ours() -> None:
    with pytest.raises(sd.UserError, match="NonZero"):
        sd.compile(positives(), fallback="none")


def test_a_model_that_needs_no_fallback_is_an_ordinary_one() -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, (3, 8))}, {"y": (FLOAT, (3, 8))}, {"w": W}
    )
    assert isinstance(sd.compile(proto, fallback="onnxruntime", schedules=lambda task: None), sd.Model)


def test_a_branch_that_data_choose_runs_elsewhere_with_the_values_it_reads_from_outside() -> None:
    def branch(op: str, other: str) -> Any:
        node = helper.make_node(op, ["h", other], [f"out{op}"])
        return helper.make_graph([node], op, [], [helper.make_tensor_value_info(f"out{op}", FLOAT, (3, 8))])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("If", ["go"], ["z"], then_branch=branch("MatMul", "w"), else_branch=branch("Add", "x")),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    inputs: Shapes = {"x": (FLOAT, (3, 8)), "go": (BOOL, ())}
    proto = model(nodes, inputs, {"y": (FLOAT, (3, 8))}, {"w": W})
    for go in (True, False):
        assert_right(proto, {"x": X, "go": np.array(go)}, [OURS, THEIRS, OURS])


def test_parts_are_as_few_as_the_order_allows() -> None:
    """Two foreign nodes side by side are one part; a third behind one of our own is another."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["a"]),
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("NonZero", ["t"], ["b"]),
        helper.make_node("ReduceSum", ["a"], ["na"], keepdims=0),
        helper.make_node("ReduceSum", ["b"], ["nb"], keepdims=0),
        helper.make_node("Add", ["na", "nb"], ["n"]),
        helper.make_node("ConstantOfShape", ["one"], ["ones"]),
        helper.make_node("Unsqueeze", ["n", "zero"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["y"]),
    ]
    constants = {"one": np.array([1]), "zero": np.array([0])}
    proto = model(nodes, {"x": (FLOAT, (3, 4))}, {"y": (FLOAT, ("n",))}, constants)
    assert_right(proto, {"x": np.eye(3, 4, dtype=np.float32)}, [OURS, THEIRS, OURS, THEIRS])


def test_suppression_of_boxes_runs_elsewhere_with_everything_behind_it() -> None:
    proto, inputs = detections()
    found = assert_right(proto, inputs, [OURS, THEIRS])
    assert found.placements[1].operators == ("NonMaxSuppression", "Gather")


def test_types_that_are_not_supported_pass_through() -> None:
    nodes = [
        helper.make_node("Equal", ["words", "word"], ["same"]),
        helper.make_node("Cast", ["same"], ["number"], to=FLOAT),
        helper.make_node("Mul", ["number", "x"], ["y"]),
    ]
    proto = model(
        nodes,
        {"words": (TensorProto.STRING, (3,)), "x": (FLOAT, (3,))},
        {"y": (FLOAT, (3,))},
        {"word": np.array(["a"], object)},
        opset=19,
    )
    found = compiled(proto)
    assert [p.where for p in found.placements] == [THEIRS, OURS]
    words = np.array(["a", "b", "a"], object)
    np.testing.assert_array_equal(found(words, np.array([1, 2, 3], np.float32)), [1, 0, 3])


def test_an_operator_that_neither_knows_is_refused_by_name() -> None:
    node = helper.make_node("Wobble", ["x"], ["y"], domain="com.microsoft")
    proto = model([node], {"x": (FLOAT, (3,))}, {"y": (FLOAT, (3,))}, {})
    with pytest.raises(
        sd.UnsupportedOperator, match=r"not supported \(opset 18\): com.microsoft.Wobble .*; and onnxruntime does not"
    ) as caught:
        compiled(proto)
    assert caught.value.operators == ("com.microsoft.Wobble",)


def test_a_wrong_model_is_an_error_and_does_not_move_elsewhere() -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    proto = model([node], {"x": (FLOAT, (3, 4))}, {"y": (FLOAT, (5,))}, {"shape": np.array([5])})
    with pytest.raises(sd.UserError, match="cannot be reshaped"):
        sd.compile(proto, fallback="onnxruntime")


def test_a_model_with_open_dimensions_is_cut_for_each_size_it_meets() -> None:
    proto = positives()
    for info in (proto.graph.input[0], proto.graph.output[0]):
        info.type.tensor_type.shape.dim[0].dim_param = "batch"
    found = sd.compile(proto, fallback="onnxruntime", schedules=lambda task: None, shapes=[{"x": (2, 8)}])
    assert isinstance(found, sd.OpenModel)
    assert "1 size" in repr(found)
    for rows in (1, 3, 2, 3):
        x = RNG.standard_normal((rows, 8)).astype(np.float32)
        for y, right in zip(found(x), expected(proto, {"x": x})):
            np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-5)
    assert "3 sizes" in repr(found)
    settled = sd.compile(proto, fallback="onnxruntime", schedules=lambda task: None, shapes={"x": (3, 8)})
    assert isinstance(settled, MixedModel)


def test_sessions_sleep_between_two_runs() -> None:
    import onnxruntime

    entries: dict[str, str] = {}

    class Options(onnxruntime.SessionOptions):  # pyright: ignore[reportUntypedBaseClass]
        def add_session_config_entry(self, key: str, value: str) -> None:
            entries[key] = value
            super().add_session_config_entry(key, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "SessionOptions", Options)
        compiled(positives(), threads=1)
    assert entries == {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}


def test_threads_may_call_at_once() -> None:
    found = compiled(positives(), threads=1)
    inputs = [RNG.standard_normal((3, 8)).astype(np.float32) for _ in range(16)]
    one_by_one = [found(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for (y, values), (right_y, right_values) in zip(pool.map(found, inputs), one_by_one):
            np.testing.assert_array_equal(y, right_y)
            np.testing.assert_array_equal(values, right_values)


def test_outputs_are_never_the_callers_inputs_or_the_models_constants() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("NonZero", ["x"], ["places"])]
    outputs: Shapes = {"same": (FLOAT, (3, 8)), "places": (INT, (2, "n")), "w": (FLOAT, (8, 8))}
    found = compiled(model(nodes, {"x": (FLOAT, (3, 8))}, outputs, {"w": W}))
    x = X.copy()
    same, _, w = found(x)
    assert not np.shares_memory(same, x)
    w[:] = 0
    np.testing.assert_array_equal(found(x)[2], W)


def test_doubles_are_converted_before_the_first_part_runs() -> None:
    found, x = compiled(positives()), X.astype(np.float64) / 3
    for array, right in zip(found(x), found(x.astype(np.float32))):
        np.testing.assert_array_equal(array, right)
    with pytest.raises(sd.UserError, match=r"use x.astype\(np.float32\)"):
        found(X.astype(np.int64))


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    found = compiled(positives())
    with pytest.raises(sd.UserError, match="takes 1 arrays"):
        found(X, X)
    with pytest.raises(sd.UserError, match="shape"):
        found(X[:2])
    with pytest.raises(sd.UserError, match="needs 'x'"):
        found.run({})
    with pytest.raises(sd.UserError, match="cannot be saved"):
        found.save(tmp_path / "m.sd")
    with pytest.raises(sd.UserError, match="none of auto, onnxruntime, none"):
        sd.compile(positives(), fallback="tea leaves")


def test_auto_is_the_default_and_one_warning_names_the_cut() -> None:
    line = r"onnxruntime runs a part of mixed: NonZero, Transpose, .*NonZero needs input 0.*; the rest is native"
    with pytest.warns(UserWarning, match=line) as caught:
        found = sd.compile(positives(), schedules=lambda task: None)
    assert isinstance(found, MixedModel)
    assert [(w.filename, w.category) for w in caught] == [(__file__, sd.StormdropWarning)]
    for y, right in zip(found(X), expected(positives(), {"x": X})):
        np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-5)


def test_a_model_of_which_nothing_is_native_says_so() -> None:
    proto = model([helper.make_node("NonZero", ["x"], ["y"])], {"x": (FLOAT, (3, 8))}, {"y": (INT, (2, "n"))}, {})
    with pytest.warns(UserWarning, match="onnxruntime runs all of mixed: NonZero"):
        found = sd.compile(proto)
    np.testing.assert_array_equal(found(X), np.nonzero(X))
    with pytest.warns(UserWarning, match="all of mixed"), pytest.raises(sd.UserError, match="nothing is left to tune"):
        sd.tune(proto, trials=1)


@pytest.fixture
def no_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


@pytest.mark.usefixtures("no_onnxruntime")
def test_without_onnxruntime_the_error_names_the_extra() -> None:
    nms, _ = detections()
    with pytest.raises(sd.UnsupportedOperator, match=r"NonMaxSuppression .* pip install '.\[onnxruntime\]'") as caught:
        sd.compile(nms)
    assert caught.value.operators == ("NonMaxSuppression",)
    with pytest.raises(sd.UserError, match=r"NonZero needs input 0 .* pip install '.\[onnxruntime\]'"):
        sd.compile(opened(positives()), shapes=[{"x": (2, 8)}])
    with pytest.raises(sd.UserError, match=r"pip install '.\[onnxruntime\]'"):
        sd.compile(nms, fallback="onnxruntime")


def test_what_no_runtime_is_for_is_refused() -> None:
    with pytest.raises(sd.UserError, match="the CPU"):
        sd.compile(sd.read_graph(model([helper.make_node("Relu", ["x"], ["y"])], *RELU, {})), fallback="onnxruntime")
    with pytest.raises(sd.UserError, match="NonZero"):
        sd.compile(positives(), target="cuda:sm_80")
    nms, _ = detections()
    with pytest.raises(sd.UnsupportedOperator, match="NonMaxSuppression"):
        sd.compile(nms, fallback="none")


RELU: tuple[Shapes, Shapes] = {"x": (FLOAT, (3, 8))}, {"y": (FLOAT, (3, 8))}


def test_operators_that_neither_knows_are_refused_before_a_model_is_called() -> None:
    node = helper.make_node("Wobble", ["x"], ["y"], domain="com.microsoft")
    with pytest.raises(sd.UnsupportedOperator, match=r"Wobble .*; and onnxruntime does not take the model"):
        sd.compile(opened(model([node], *RELU, {})))


def test_threads_at_a_new_size_compile_it_once_and_block_no_other_size(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sd.compile(opened(positives()), fallback="onnxruntime", schedules=lambda task: None, threads=1)
    sizes: list[tuple[int, ...]] = []
    begun, go = Event(), Event()

    def counted(*args: Any) -> Any:
        sizes.append(args[0].inputs[0].value.shape)
        if sizes[-1] == X.shape:
            begun.set()
            assert go.wait(60)
        return mixed.mixed_model(*args)

    monkeypatch.setattr(compile_module, "mixed_model", counted)
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(found, X) for _ in range(3)]
        assert begun.wait(60)
        assert found(X[:2])[0].shape[1:] == (8,)
        go.set()
        assert all(call.result()[0].shape[1:] == (8,) for call in slow)
    assert sizes == [(3, 8), (2, 8)]


@pytest.mark.parametrize("go", [True, False])
def test_branches_of_different_shapes_leave_the_shape_to_the_run(go: bool) -> None:
    """A branch reads an outer value, a constant of the model and one of its own; another branch is inside it."""
    small = helper.make_graph(
        [helper.make_node("ReduceSum", ["h", "first"], ["out1"], keepdims=1)],
        "then",
        [],
        [helper.make_tensor_value_info("out1", FLOAT, None)],
        [numpy_helper.from_array(np.array([0]), "first")],
    )
    inner = [
        helper.make_graph(
            [helper.make_node(op, ["h", "w"], [name])], op, [], [helper.make_empty_tensor_value_info(name)]
        )
        for op, name in (("MatMul", "in1"), ("Gemm", "in2"))
    ]
    large = helper.make_graph(
        [helper.make_node("If", ["go"], ["out2"], then_branch=inner[0], else_branch=inner[1])],
        "else",
        [],
        [helper.make_tensor_value_info("out2", FLOAT, None)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("If", ["go"], ["z"], then_branch=small, else_branch=large),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    proto = model(nodes, {"x": (FLOAT, (3, 8)), "go": (BOOL, ())}, {"y": (FLOAT, ("n", 8))}, {"w": W})
    found = assert_right(proto, {"x": X, "go": np.array(go)}, [OURS, THEIRS])
    assert found.placements[1].operators == ("If", "Relu")


def test_a_loop_of_unknown_length_has_outputs_of_unknown_shape() -> None:
    """onnxruntime describes them like scalars."""
    body = helper.make_graph(
        [
            helper.make_node("Concat", ["rows", "h"], ["more"], axis=0),
            helper.make_node("Identity", ["go"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("k", INT, ()),
            helper.make_tensor_value_info("go", BOOL, ()),
            helper.make_tensor_value_info("rows", FLOAT, None),
        ],
        [helper.make_tensor_value_info("still", BOOL, ()), helper.make_tensor_value_info("more", FLOAT, None)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Loop", ["trips", "true", "h"], ["z"], body=body),
        helper.make_node("Softmax", ["z"], ["y"], axis=-1),
    ]
    proto = model(
        nodes, {"x": (FLOAT, (3, 8)), "trips": (INT, ())}, {"y": (FLOAT, ("n", 8))}, {"w": W, "true": np.array(True)}
    )
    assert_right(proto, {"x": X, "trips": np.array(2)}, [OURS, THEIRS])


def test_a_branch_that_these_sizes_never_enter_may_contradict_them() -> None:
    """onnxruntime refuses the node where it infers the shapes of both branches from the sizes of one row."""

    def branch(name: str, *nodes: Any) -> Any:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, FLOAT, None)])

    several = [
        helper.make_node("Squeeze", ["h"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["b"], perm=[1, 0]),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(
            "If",
            ["one"],
            ["y"],
            then_branch=branch("a", helper.make_node("Tanh", ["h"], ["a"])),
            else_branch=branch("b", *several),
        ),
    ]
    proto = model(nodes, {"x": (FLOAT, (1, 8)), "one": (BOOL, ())}, {"y": (FLOAT, ("n", "m"))}, {"w": W})
    assert_right(proto, {"x": X[:1], "one": np.array(True)}, [OURS, THEIRS])


@pytest.mark.parametrize(
    ("node", "outputs"),
    [
        (helper.make_node("Compress", ["r", "kept"], ["z"], axis=0), {"y": (FLOAT, ("n", 8))}),
        (helper.make_node("Unique", ["r"], ["z"], sorted=1), {"y": (FLOAT, ("n",))}),
    ],
)
def test_values_of_which_data_decide_the_number_are_in_the_middle(node: Any, outputs: Shapes) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gather", ["x", "column"], ["first"], axis=1),
        helper.make_node("Greater", ["first", "zero"], ["kept"]),
        node,
        helper.make_node("Tanh", ["z"], ["y"]),
    ]
    constants = {"w": W, "zero": np.array(0, np.float32), "column": np.array(0)}
    assert_right(model(nodes, {"x": (FLOAT, (3, 8))}, outputs, constants), {"x": X}, [OURS, THEIRS])


def test_a_mixed_model_is_a_model_in_typed_code() -> None:
    def first(model: sd.Model, x: NDArray[Any]) -> Any:
        return model.run({"x": x}, outputs=["y"])["y"]

    found = compiled(positives())
    assert isinstance(found, sd.Model)
    with pytest.raises(AttributeError, match="one image for each of its `models`"):
        _ = found.image
    assert found.origins
    right = found(X)[0]
    np.testing.assert_array_equal(first(found, X), right)
    np.testing.assert_array_equal(found(x=X)[0], right)
    y, values = np.empty_like(right), np.empty_like(found(X)[1])
    assert found(X, out=[y, values])[0] is y
    np.testing.assert_array_equal(y, right)
    assert len(found.bench(X, repeats=4)) == 4
    profile = found.profile(X, repeats=5)
    assert [row.label for row in profile.rows if row.origin == THEIRS] == [
        "onnxruntime: NonZero, Transpose, GatherND, ReduceSum"
    ]
    assert {row.digest for row in profile.rows} >= {c.digest for m in found.models for c in m.image.calls}
    assert sum(row.share for row in profile.rows) == pytest.approx(1)
    with found:
        pass
    with pytest.raises(sd.UserError, match="closed"):
        found(X)


def test_files_and_libraries_refuse_models_in_parts(tmp_path: Path) -> None:
    in_sizes = sd.compile(opened(positives()), fallback="onnxruntime", shapes=[{"x": (2, 8)}])
    for found in (compiled(positives()), in_sizes):
        with pytest.raises(sd.UserError, match=r"\(NonZero, .*\) and cannot be saved or exported: sd.compile"):
            found.save(tmp_path / "m.sd")
        with pytest.raises(sd.UserError, match="cannot be saved or exported"):
            sd.export_library(found, tmp_path / "m.so")
    assert not list(tmp_path.iterdir())


def test_tuning_takes_the_parts_that_run_here() -> None:
    proto, store = positives(), sd.Store.in_memory()
    with pytest.warns(UserWarning, match="onnxruntime runs a part"):
        tuned = sd.tune(proto, trials=4, threads=1, store=store)
    kernels = {c.digest for m in compiled(proto, threads=1).models for c in m.image.calls}
    assert {t.task.digest for t in tuned.tasks} <= kernels
    assert tuned.in_model is not None
    with pytest.raises(sd.UserError, match="NonZero"):
        sd.tune(proto, trials=1, fallback="none")


def test_parts_side_by_side_are_one_graph() -> None:
    """A value that one part computes and another reads is an output, and an input of its own."""
    graph = cut(parsed(positives()), OnnxRuntimeFallback())
    assert not isinstance(graph, sd.Graph)
    verify(graph.native)
    assert len(graph.own) == 2
    assert graph.native.input_names == ("x", "h, read by part 1", "total")
    assert set(graph.native.output_names) == {"h", "r", "y"}
