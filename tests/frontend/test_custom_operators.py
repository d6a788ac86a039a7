"""Operators of the user's own, from the model to native code, saved files and tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

import stormdrop as sd
from stormdrop.cli.main import main
from stormdrop.compare.interpreter import interpret
from tests.support.command import refusal

RNG = np.random.default_rng(2)
W = RNG.standard_normal((8, 16)).astype(np.float32)
CENTRES = RNG.standard_normal((5, 16)).astype(np.float32)
X = RNG.standard_normal((3, 8)).astype(np.float32)


def scaled_silu(x: sd.Tensor, scale: float = 1.0) -> sd.Tensor:
    i = [sd.axis(n) for n in x.shape]
    return sd.compute("Y", i, x[tuple(i)] * sd.sigmoid(x[tuple(i)] * scale))


def distances(a: sd.Tensor, b: sd.Tensor) -> tuple[sd.Tensor, sd.Tensor]:
    """Of all rows of a from all rows of b: the sums of absolute differences, and the largest one."""
    found: list[sd.Tensor] = []
    for reduce in (sd.sum, sd.max):
        n, m, k = sd.axis(a.shape[0]), sd.axis(b.shape[0]), sd.reduce_axis(a.shape[1])
        gap = a[n, k] - b[m, k]
        found.append(sd.compute("D", (n, m), reduce(sd.maximum(gap, -gap), k)))
    return found[0], found[1]


OPERATORS = [
    sd.CustomOperator("my.ops", "ScaledSilu", scaled_silu),
    sd.CustomOperator("my.ops", "Distances", distances),
]


def model(scale: float = 1.5, outputs: Sequence[str] = ("sum", "most"), **attributes: Any) -> ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ScaledSilu", ["h"], ["s"], domain="my.ops", scale=scale, **attributes),
        helper.make_node("Distances", ["s", "centres"], list(outputs), domain="my.ops"),
    ]
    graph = helper.make_graph(
        nodes,
        "clusters",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, (3, 5)) for o in outputs if o],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(CENTRES, "centres")],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my.ops", 1)]
    return helper.make_model(graph, opset_imports=imports)


def expected(scale: float = 1.5) -> list[NDArray[Any]]:
    h = X.astype(np.float64) @ W
    gaps = np.abs((h / (1 + np.exp(-scale * h)))[:, None] - CENTRES)
    return [gaps.sum(-1), gaps.max(-1)]


def assert_right(found: Sequence[NDArray[Any]], scale: float = 1.5) -> None:
    for y, right in zip(found, expected(scale)):
        np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-5)


def compiled(proto: ModelProto, operators: Sequence[sd.CustomOperator] = OPERATORS) -> sd.Model:
    return sd.compile(proto, operators=operators, schedules=lambda task: None)


def test_a_formula_is_compiled_and_interpreted_alike() -> None:
    assert_right(compiled(model())(X))
    assert_right(compiled(model(0.25))(X), 0.25)
    assert_right(interpret(sd.read_graph(model(), operators=OPERATORS), [X]))


def test_a_pointwise_formula_runs_in_the_epilogue_of_the_product_before_it() -> None:
    assert [call.label for call in compiled(model()).image.calls] == ["MatMul+ScaledSilu", "Distances", "Distances"]


def test_an_output_that_nobody_wants_is_not_computed() -> None:
    found = compiled(model(outputs=("", "most")))(X)
    np.testing.assert_allclose(found, expected()[1], rtol=1e-5, atol=1e-5)


def test_a_saved_model_needs_the_operators_no_more(tmp_path: Path) -> None:
    compiled(model()).save(tmp_path / "m.sd")
    assert_right(sd.load(tmp_path / "m.sd")(X))


def test_tuning_finds_schedules_for_a_formula(tmp_path: Path) -> None:
    with sd.Store.open(tmp_path / "store.db") as store:
        tuned = sd.tune(model(), operators=OPERATORS, trials=6, store=store, threads=1)
    assert_right(sd.compile(model(), operators=OPERATORS, schedules=tuned.schedules)(X))


def test_without_its_formula_the_error_names_the_operator() -> None:
    with pytest.raises(sd.UnsupportedOperator) as caught:
        compiled(model(), OPERATORS[:1])
    assert caught.value.operators == ("my.ops.Distances",)


def test_an_operator_of_onnx_can_be_defined_anew() -> None:
    def doubled(x: sd.Tensor) -> sd.Tensor:
        i = [sd.axis(n) for n in x.shape]
        return sd.compute("Y", i, x[tuple(i)] * 2.0)

    node = helper.make_node("Relu", ["x"], ["y"])
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 8)) for name in "xy"]
    proto = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:]))
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("", 18))
    np.testing.assert_array_equal(compiled(proto, [sd.CustomOperator("", "Relu", doubled)])(X), 2 * X)


def _without_attributes(x: sd.Tensor) -> sd.Tensor:
    return scaled_silu(x)


def _input_itself(x: sd.Tensor, scale: float) -> sd.Tensor:
    return x


def _of_another(x: sd.Tensor, scale: float) -> sd.Tensor:
    i = sd.axis(3)
    return sd.compute("Y", i, sd.tensor("other", 3)[i] * scale)


def _nothing(x: sd.Tensor, scale: float) -> Sequence[sd.Tensor]:
    return ()


@pytest.mark.parametrize(
    ("formula", "told"),
    [
        (_without_attributes, "does not take 1 inputs"),
        (_input_itself, "tensors made by sd.compute"),
        (_of_another, "reads other"),
        (_nothing, "gives 0 outputs"),
    ],
)
def test_a_formula_that_does_not_fit_is_refused_at_its_node(formula: Any, told: str) -> None:
    with pytest.raises(sd.UserError, match=told) as caught:
        compiled(model(), [sd.CustomOperator("my.ops", "ScaledSilu", formula), OPERATORS[1]])
    assert "ScaledSilu node s" in str(caught.value)


def test_one_name_has_one_formula() -> None:
    with pytest.raises(sd.UserError, match="defined twice"):
        compiled(model(), [*OPERATORS, OPERATORS[0]])


def test_the_command_line_finds_operators_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("Twice", ["x"], ["y"], domain="my.ops")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 8)) for name in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("my.ops", 1)]), str(tmp_path / "m.onnx"))
    (tmp_path / "their_operators.py").write_text(
        "import stormdrop as sd\n"
        "def twice(x):\n"
        "    i = [sd.axis(n) for n in x.shape]\n"
        "    return sd.compute('Y', i, x[tuple(i)] + x[tuple(i)])\n"
        "TWICE = sd.CustomOperator('my.ops', 'Twice', twice)\n"
    )
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "x.npy", X)
    command = ["run", "m.onnx", "--untuned", "--input", "x.npy", "--output", "y.npz"]

    def ran(*more: str) -> Result:
        return CliRunner().invoke(main, [*command, *more])

    result = ran("--operator", "their_operators:TWICE")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], 2 * X)
    assert "no sd.CustomOperator" in refusal(ran("--operator", "their_operators:twice"), 2)
    assert "my.ops.Twice" in refusal(ran(), 1)
