"""Importing ONNX: shapes, constants, functions, branches, and files that mean harm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

from stormdrop.base.errors import UserError  # noqa: E402
from stormdrop.compare.interpreter import interpret  # noqa: E402
from stormdrop.frontend.node_reader import NeedsConstant  # noqa: E402
from stormdrop.frontend.onnx import load  # noqa: E402
from stormdrop.graph.graph import verify  # noqa: E402
from tests.support.remarks import remarks  # noqa: E402

F, I = TensorProto.FLOAT, TensorProto.INT64


def info(name: str, shape: Sequence[int | str] | None = None, kind: int = F) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: Sequence[Any] = (), opset: int = 17
) -> Any:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def one(op: str, *, opset: int = 17, shape: Sequence[int | str] = (2, 3), **attributes: Any) -> Any:
    return model(
        [helper.make_node(op, ["x"], ["y"], name="n", **attributes)], [info("x", shape)], [info("y")], opset=opset
    )


def constant(name: str, array: Any) -> Any:
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def test_a_model_comes_from_a_path_bytes_or_a_message(tmp_path: Path) -> None:
    m = one("Relu")
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    texts = {str(load(form)) for form in (m, m.SerializeToString(), tmp_path / "m.onnx", str(tmp_path / "m.onnx"))}
    assert len(texts) == 1


def test_a_symbolic_dimension_is_bound_by_any_input_that_has_it() -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    m = model(nodes, [info("a", ("n", 3)), info("b", ("n", 1))], [info("y")])
    g = load(m, shapes={"b": (5, 1)})
    assert [v.shape for v in g.inputs] == [(5, 3), (5, 1)]
    assert g.outputs[0].shape == (5, 3)


def test_an_open_dimension_is_one_and_announced(recwarn: pytest.WarningsRecorder) -> None:
    g = load(one("Relu", shape=("batch", 3)))
    assert g.inputs[0].shape == (1, 3)
    assert "batch" in " ".join(remarks(recwarn))


def test_shape_arithmetic_folds_away() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["y"]),
    ]
    constants = [constant("zero", np.int64(0)), constant("axes", np.array([0])), constant("rest", np.array([-1]))]
    g = load(model(nodes, [info("x", ("n", 3, 4))], [info("y")], constants), shapes={"x": (2, 3, 4)})
    assert [n.op for n in g.nodes] == ["Reshape"]
    assert g.outputs[0].shape == (2, 12)
    assert not g.constants


def test_an_input_that_decides_shapes_is_asked_for_and_can_be_bound() -> None:
    m = model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])], [info("x", (2, 6)), info("shape", (2,), I)], [info("y")]
    )
    with pytest.raises(NeedsConstant, match="constants=") as caught:
        load(m)
    assert caught.value.value == "shape"
    g = load(m, constants={"shape": np.array([3, 4])})
    assert g.outputs[0].shape == (3, 4)
    assert [v.name for v in g.inputs] == ["x"]
    assert load(m, constants={"shape": np.array([3, 4], np.int32)}).outputs[0].shape == (3, 4)
    with pytest.raises(UserError, match=r"an array that has type float64; use x\.astype\(np\.int64\)"):
        load(m, constants={"shape": np.array([3.0, 4.0])})


def test_one_error_names_all_unknown_operators() -> None:
    nodes = [
        helper.make_node("NonMaxSuppression", ["x"], ["a"], name="first"),
        helper.make_node("Fancy", ["x"], ["b"], name="second", domain="my.ops"),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    with pytest.raises(UserError) as caught:
        load(model(nodes, [info("x", (2,))], [info("y")]))
    for word in ("NonMaxSuppression", "first", "my.ops.Fancy", "second", "opset 17"):
        assert word in str(caught.value)
    for remedy in ("'.[onnxruntime]'", "--fallback auto", 'fallback="auto"', "--operator", "operators="):
        assert str(caught.value).count(remedy) == 1


@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E5M2, TensorProto.INT4, TensorProto.COMPLEX64, TensorProto.STRING])
def test_an_unsupported_element_type_is_named(kind: int) -> None:
    m = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", (2,), kind)], [info("y", None, kind)])
    with pytest.raises(UserError, match=r"input x has element type (float8e5m2|int4|complex64|string)"):
        load(m)


def test_local_functions_are_expanded_and_recursion_is_refused() -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    body = [helper.make_node("Mul", ["a", "a"], ["b"])]
    square = helper.make_function("f", "Square", ["a"], ["b"], body, imports)
    graph = helper.make_graph(
        [helper.make_node("Square", ["x"], ["y"], domain="f")], "g", [info("x", (3,))], [info("y", (3,))]
    )
    g = load(helper.make_model(graph, opset_imports=imports, functions=[square]))
    assert [n.op for n in g.nodes] == ["Mul"]
    endless = helper.make_function(
        "f", "Square", ["a"], ["b"], [helper.make_node("Square", ["a"], ["b"], domain="f")], imports
    )
    with pytest.raises(UserError, match="calls itself"):
        load(helper.make_model(graph, opset_imports=imports, functions=[endless]))


def test_a_composite_operator_is_expanded_by_its_body() -> None:
    nodes = [helper.make_node("SoftmaxCrossEntropyLoss", ["x", "t"], ["y"], reduction="mean")]
    g = load(model(nodes, [info("x", (3, 5)), info("t", (3,), I)], [info("y")]))
    verify(g)
    x, t = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32), np.array([1, 0, 4])
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    np.testing.assert_allclose(interpret(g, {"x": x, "t": t})[0], -logs[np.arange(3), t].mean(), rtol=1e-5)


def test_a_branch_is_taken_where_its_condition_is_known() -> None:
    def branch(op: str) -> Any:
        return helper.make_graph([helper.make_node(op, ["x"], ["z"])], op, [], [info("z")])

    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))]
    g = load(model(nodes, [info("x", (2,))], [info("y")], [constant("c", np.array(False))]))
    assert [n.op for n in g.nodes] == ["Neg"]
    with pytest.raises(NeedsConstant, match="condition"):
        load(model(nodes, [info("x", (2,)), info("c", (), TensorProto.BOOL)], [info("y")]))


def test_a_scan_is_written_out_step_by_step() -> None:
    nodes = [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["out"])]
    body = helper.make_graph(nodes, "b", [info("s", (2,)), info("e", (2,))], [info("t", (2,)), info("out", (2,))])
    scan = helper.make_node("Scan", ["zero", "x"], ["end", "all"], body=body, num_scan_inputs=1)
    g = load(model([scan], [info("zero", (2,)), info("x", (3, 2))], [info("end"), info("all")]))
    verify(g)
    x = np.random.default_rng(1).standard_normal((3, 2)).astype(np.float32)
    end, total = interpret(g, {"zero": np.zeros(2, np.float32), "x": x})
    np.testing.assert_allclose(total, np.cumsum(x, 0), rtol=1e-6)
    np.testing.assert_array_equal(end, total[-1])


def test_a_loop_without_end_is_refused() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["s"], ["t"])],
        "b",
        [info("i", (), I), info("c", (), TensorProto.BOOL), info("s", (2,))],
        [info("d", (), TensorProto.BOOL), info("t", (2,))],
    )
    loop = helper.make_node("Loop", ["", "go", "x"], ["y"], body=body, name="endless")
    with pytest.raises(UserError, match="endless"):
        load(model([loop], [info("x", (2,))], [info("y")], [constant("go", np.array(True))]))


def test_nodes_may_stand_in_any_order_but_not_in_a_circle() -> None:
    a, b = helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])
    assert [n.op for n in load(model([b, a], [info("x", (2,))], [info("y")])).nodes] == ["Relu", "Neg"]
    with pytest.raises(UserError, match="cycle"):
        load(model([helper.make_node("Neg", ["y"], ["h"]), b], [], [info("y")]))
    with pytest.raises(UserError, match="nothing computes"):
        load(model([b], [], [info("y")]))


def test_name_clashes_are_refused() -> None:
    twice = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    with pytest.raises(UserError, match="both compute"):
        load(model(twice, [info("x", (2,))], [info("y")]))
    with pytest.raises(UserError, match="exists already"):
        load(model([helper.make_node("Relu", ["x"], ["x"])], [info("x", (2,))], [info("x")]))
    c = constant("c", np.zeros(2, np.float32))
    with pytest.raises(UserError, match="defined twice"):
        load(model([helper.make_node("Relu", ["c"], ["y"])], [], [info("y")], [c, c]))


BOMBS: list[tuple[Any, list[Any]]] = [
    (helper.make_node("ConstantOfShape", ["s"], ["y"], name="bomb"), [constant("s", np.array([10**6, 10**6]))]),
    (
        helper.make_node("Expand", ["v", "s"], ["y"], name="bomb"),
        [constant("s", np.array([10**12])), constant("v", np.float32(1))],
    ),
    (
        helper.make_node("Tile", ["v", "s"], ["y"], name="bomb"),
        [constant("s", np.array([10**12])), constant("v", np.ones(1, np.float32))],
    ),
    (
        helper.make_node("Range", ["a", "b", "c"], ["y"], name="bomb"),
        [constant("a", np.int64(0)), constant("b", np.int64(10**15)), constant("c", np.int64(1))],
    ),
]


@pytest.mark.parametrize(("node", "constants"), BOMBS, ids=lambda v: getattr(v, "op_type", ""))
def test_a_small_file_cannot_ask_for_a_huge_array(node: Any, constants: list[Any]) -> None:
    with pytest.raises(UserError, match="bomb"):
        load(model([node], [], [info("y")], constants))


def test_files_that_are_not_models_are_refused(tmp_path: Path) -> None:
    whole = model(
        [helper.make_node("Add", ["x", "c"], ["y"])],
        [info("x", (64,))],
        [info("y")],
        [constant("c", np.ones(64, np.float32))],
    )
    data = whole.SerializeToString()
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"cut\.onnx"):
        load(cut)
    for text in (b"", b"no model at all", b"\xff" * 100):
        with pytest.raises(UserError):
            load(text)
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "none.onnx")
    with pytest.raises(UserError):
        load(tmp_path)


def test_constants_that_do_not_fit_their_shape_are_refused() -> None:
    for dims, raw, word in (
        ((2, 2), bytes(12), "12 bytes"),
        ((-1, 4), bytes(16), "negative"),
        ((1 << 40,), bytes(4), "elements"),
    ):
        tensor = TensorProto(name="c", data_type=F, dims=dims, raw_data=raw)
        with pytest.raises(UserError, match=word):
            load(model([helper.make_node("Relu", ["c"], ["y"])], [], [info("y")], [tensor]))


def external(location: str, **entries: object) -> Any:
    tensor = TensorProto(name="c", data_type=F, dims=(4,), data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model([helper.make_node("Add", ["x", "c"], ["y"])], [info("x", (4,))], [info("y")], [tensor])


def stored(folder: Path, m: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "m.onnx").write_bytes(m.SerializeToString())
    return folder / "m.onnx"


def test_external_data_is_read_from_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"skip" + np.arange(4, dtype="<f4").tobytes())
    g = load(stored(tmp_path, external("w.bin", offset=4, length=16)))
    np.testing.assert_array_equal(next(iter(g.constants.values())), [0, 1, 2, 3])


def test_external_data_outside_the_folder_or_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    inner = tmp_path / "model"
    inner.mkdir()
    (inner / "short").write_bytes(bytes(8))
    os.symlink(tmp_path / "secret", inner / "link")
    os.mkfifo(inner / "pipe")
    for location in ("../secret", str(tmp_path / "secret"), "link", "pipe", "none", "", "a/../../secret", "short", "."):
        with pytest.raises(UserError, match="constant c"):
            load(stored(inner, external(location)))
    for entries in ({"offset": -4}, {"length": 4}, {"offset": "many"}):
        with pytest.raises(UserError, match="constant c"):
            load(stored(inner, external("short", **entries)))
    with pytest.raises(UserError, match="path"):
        load(external("short"))


def test_hostile_names_do_not_leave_the_graph() -> None:
    bad = 'x"\n\0<b>../../'
    nodes = [helper.make_node("Relu", [bad], ["y'\n"], name=bad)]
    text = str(load(model(nodes, [info(bad, (2,))], [info("y'\n")])))
    assert len(text.splitlines()) == 3
    assert not set(text) & set("\"'<>\0/")


def test_wrong_attributes_name_their_node() -> None:
    for m in (
        one("Softmax", axis=7),
        one("Transpose", perm=[0, 0]),
        one("Concat", axis=9),
        one("Split", axis=0, num_outputs=0, opset=18),
    ):
        with pytest.raises(UserError, match="node n"):
            load(m)


def test_operators_that_changed_since_an_old_version_are_refused() -> None:
    with pytest.raises(UserError, match="operator set 6"):
        load(one("Dropout", opset=6))


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 21])
def test_versions_that_moved_attributes_to_inputs_mean_the_same(opset: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    if opset < 13:
        nodes = [
            helper.make_node("Squeeze", ["x"], ["h"], axes=[0]),
            helper.make_node("ReduceSum", ["h"], ["y"], axes=[1]),
        ]
        constants: list[Any] = []
    else:
        nodes = [helper.make_node("Squeeze", ["x", "a"], ["h"]), helper.make_node("ReduceSum", ["h", "b"], ["y"])]
        constants = [constant("a", np.array([0])), constant("b", np.array([1]))]
    g = load(model(nodes, [info("x", (1, 2, 3))], [info("y")], constants, opset))
    np.testing.assert_array_equal(interpret(g, [x])[0], x[0].sum(1, keepdims=True))


def test_many_nodes_import_in_linear_time_without_recursion() -> None:
    count = 20_000
    nodes = [helper.make_node("Neg", [f"v{k}"], [f"v{k + 1}"]) for k in range(count)]
    g = load(model(nodes[::-1], [info("v0", (2,))], [info(f"v{count}")]))
    assert len(g.nodes) == count
