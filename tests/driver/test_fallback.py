"""Models of which onnxruntime runs what is not supported here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper, save
from onnx.reference import ReferenceEvaluator

import stormdrop as sd
from stormdrop.cli.main import main
from stormdrop.driver.fallback import OnnxRuntimeFallback
from stormdrop.driver.mixed import MixedModel, OpenMixedModel
from stormdrop.frontend.mixed import cut
from stormdrop.frontend.parsed import parsed
from tests.support.command import refusal

pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(1)
W = RNG.standard_normal((8, 8)).astype(np.float32)
X = RNG.standard_normal((3, 8)).astype(np.float32)
INT, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
Shapes = Mapping[str, tuple[int, Sequence[int | str]]]


def model(
    nodes: Sequence[Any],
    inputs: Shapes,
    outputs: Shapes,
    constants: Mapping[str, NDArray[Any]],
    opset: int = 18,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "mixed",
        [helper.make_tensor_value_info(name, *given) for name, given in inputs.items()],
        [helper.make_tensor_value_info(name, *given) for name, given in outputs.items()],
        [numpy_helper.from_array(a, name) for name, a in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


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


OURS, THEIRS = "stormdrop", "onnxruntime"


def positives() -> ModelProto:
    """The positive elements of a product, and the product times their sum: a scalar, of known shape again."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("NonZero", ["r"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["h", "rows"], ["values"]),
        helper.make_node("ReduceSum", ["values"], ["total"], keepdims=0),
        helper.make_node("Mul", ["h", "total"], ["scaled"]),
        helper.make_node("Tanh", ["scaled"], ["y"]),
    ]
    return model(nodes, {"x": (FLOAT, (3, 8))}, {"y": (FLOAT, (3, 8)), "values": (FLOAT, ("n",))}, {"w": W})


def test_shapes_that_data_decide_go_to_the_fallback_until_they_are_known_again() -> None:
    found = assert_right(positives(), {"x": X}, [OURS, THEIRS, OURS])
    assert found.placements[1].operators == ("NonZero", "Transpose", "GatherND", "ReduceSum")
    assert len(found.placements[1].reasons) == 1
    assert "NonZero" in found.placements[1].reasons[0]
    assert repr(found.outputs) == "(y: f32[3, 8], values: float[?])"
    assert "2. onnxruntime: NonZero, Transpose" in str(found)


def test_without_the_fallback_the_error_is_ours() -> None:
    with pytest.raises(sd.UserError, match="NonZero"):
        sd.compile(positives())


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


def detections() -> tuple[ModelProto, dict[str, NDArray[Any]]]:
    nodes = [
        helper.make_node("Sigmoid", ["logits"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["chosen"]),
        helper.make_node("Gather", ["chosen", "two"], ["at"], axis=1),
        helper.make_node("Gather", ["boxes", "at"], ["kept"], axis=1),
    ]
    constants = {"most": np.array([5]), "iou": np.array([0.4], np.float32), "two": np.array(2)}
    proto = model(
        nodes,
        {"boxes": (FLOAT, (1, 20, 4)), "logits": (FLOAT, (1, 2, 20))},
        {"kept": (FLOAT, (1, "n", 4)), "scores": (FLOAT, (1, 2, 20))},
        constants,
    )
    corners = RNG.uniform(0, 5, (1, 20, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + RNG.uniform(1, 3, (1, 20, 2)).astype(np.float32)], -1)
    return proto, {"boxes": boxes, "logits": RNG.standard_normal((1, 2, 20)).astype(np.float32)}


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
        sd.UnsupportedOperator, match=r"com.microsoft.Wobble is not supported .*; and onnxruntime does not"
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
    assert isinstance(found, OpenMixedModel)
    assert "1 sizes" in repr(found)
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

    runtime = OnnxRuntimeFallback(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "SessionOptions", Options)
        found = cut(parsed(positives()), runtime)
    assert not isinstance(found, sd.Graph)
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


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    found = compiled(positives())
    with pytest.raises(sd.UserError, match="takes 1 arrays"):
        found(X, X)
    with pytest.raises(sd.UserError, match="shape"):
        found(X[:2])
    with pytest.raises(sd.UserError, match="no 'x'"):
        found.run({})
    with pytest.raises(sd.UserError, match="cannot be saved"):
        found.save(tmp_path / "m.sd")
    with pytest.raises(sd.UserError, match="none of onnxruntime"):
        sd.compile(positives(), fallback="tea leaves")


def test_the_command_line_runs_and_checks_with_another_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    path = str(tmp_path / "m.onnx")
    save(positives(), path)

    def ran(*args: str) -> Any:
        return CliRunner().invoke(main, [*args, "--untuned"])

    assert "NonZero" in refusal(ran("run", path), 1)
    result = ran("run", path, "--fallback", "onnxruntime")
    assert result.exit_code == 0, result.output
    assert "onnxruntime: NonZero, Transpose, GatherND" in result.stderr
    checked = ran("check", path, "--fallback", "onnxruntime", "--json")
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.stdout)["against"] == "ONNX's reference evaluator"
    assert "cannot judge" in refusal(ran("check", path, "--fallback", "onnxruntime", "--against", "onnxruntime"), 2)
