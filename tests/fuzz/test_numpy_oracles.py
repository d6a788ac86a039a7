"""NumPy's oracles against onnxruntime, where that is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from tests.fuzz import oracle
from tests.fuzz.numpy_windows import Undetermined
from tests.fuzz.recipe import Node

Array = NDArray[Any]
RNG = np.random.default_rng(3)


def floats(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def whole(*values: int) -> Array:
    return np.array(values, np.int64)


def node(op: str, *inputs: Array | None, results: int = 1, **attributes: Any) -> tuple[Node, dict[str, Array]]:
    names = [f"x{k}" if a is not None else "" for k, a in enumerate(inputs)]
    given = {name: a for name, a in zip(names, inputs) if a is not None}
    return Node(op, tuple(names), tuple(f"y{k}" for k in range(results)), attributes), given


IMAGE, VOLUME, SIGNAL = floats(2, 6, 9, 8), floats(1, 2, 4, 5, 3), floats(1, 3, 17)
GRID = np.asarray(RNG.uniform(-1.7, 1.7, (2, 5, 4, 2)), np.float32)
X, W3, R3, B3 = floats(4, 2, 3), floats(2, 15, 3), floats(2, 15, 5), floats(2, 30)
W4, R4, B4, P = floats(2, 20, 3), floats(2, 20, 5), floats(2, 40), floats(2, 15)
STATE = floats(2, 2, 5)

CASES = {
    "conv in groups": node("Conv", IMAGE, floats(4, 3, 3, 2), floats(4), group=2, strides=[2, 1], pads=[1, 0, 2, 1]),
    "dilated conv of a volume": node(
        "Conv", VOLUME, floats(3, 2, 2, 3, 2), dilations=[1, 2, 1], pads=[1, 0, 0, 0, 2, 1]
    ),
    "conv with automatic pads": node("Conv", IMAGE, floats(3, 6, 4, 2), strides=[2, 1], auto_pad="SAME_LOWER"),
    "transposed conv in groups": node(
        "ConvTranspose",
        IMAGE,
        floats(6, 2, 3, 2),
        floats(4),
        group=2,
        strides=[2, 3],
        output_padding=[1, 0],
        pads=[1, 0, 0, 1],
    ),
    "transposed conv of a given shape": node("ConvTranspose", SIGNAL, floats(3, 2, 4), strides=[2], output_shape=[35]),
    "max pool with positions": node(
        "MaxPool",
        IMAGE,
        results=2,
        kernel_shape=[3, 2],
        strides=[2, 3],
        pads=[1, 1, 2, 0],
        ceil_mode=1,
        storage_order=1,
    ),
    "average pool of the padded image": node(
        "AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 2, 2], ceil_mode=1, count_include_pad=1
    ),
    "average pool of the image": node("AveragePool", SIGNAL, kernel_shape=[4], strides=[3], pads=[2, 3], dilations=[2]),
    "norm pool": node("LpPool", IMAGE, kernel_shape=[2, 3], strides=[1, 2], pads=[0, 1, 1, 1], p=3),
    "norm of an image": node("GlobalLpPool", IMAGE, p=1),
    "mean of an image": node("GlobalAveragePool", VOLUME),
    "maximum of an image": node("GlobalMaxPool", VOLUME),
    "columns to an image": node(
        "Col2Im", floats(1, 12, 16), whole(5, 6), whole(2, 3), dilations=[1, 2], pads=[0, 1, 0, 1], strides=[1, 1]
    ),
    "marks": node("OneHot", whole(1, -2, 7, -9), whole(4), np.array([0.5, 2], np.float32), axis=0),
    "cubic resize": node(
        "Resize",
        IMAGE,
        None,
        np.array([1, 1, 1.5, 0.5], np.float32),
        mode="cubic",
        cubic_coeff_a=-0.5,
        exclude_outside=1,
    ),
    "linear resize": node(
        "Resize", IMAGE, None, None, whole(2, 6, 5, 11), mode="linear", coordinate_transformation_mode="align_corners"
    ),
    "nearest resize": node(
        "Resize",
        SIGNAL,
        None,
        np.array([1, 1, 0.75], np.float32),
        mode="nearest",
        nearest_mode="ceil",
        coordinate_transformation_mode="asymmetric",
    ),
    "linear samples": node("GridSample", IMAGE, GRID, mode="linear", padding_mode="zeros", align_corners=1),
    "cubic samples": node("GridSample", IMAGE, GRID, mode="cubic", padding_mode="border"),
    "nearest samples": node("GridSample", IMAGE, GRID, mode="nearest", padding_mode="reflection"),
    "recurrent": node(
        "RNN", X, W3[:1, :5], R3[:1, :5], B3[:1, :10], None, STATE[:1], results=2, hidden_size=5, direction="reverse"
    ),
    "gated": node(
        "GRU",
        X,
        W3,
        R3,
        B3,
        None,
        STATE,
        results=2,
        hidden_size=5,
        direction="bidirectional",
        activations=["Sigmoid", "Softsign", "Tanh", "Relu"],
    ),
    "gated, linear before reset": node(
        "GRU", X, W3[:1], R3[:1], B3[:1], results=2, hidden_size=5, linear_before_reset=1
    ),
    "long short-term memory": node(
        "LSTM", X, W4, R4, B4, None, STATE, STATE, P, results=3, hidden_size=5, direction="bidirectional"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_numpy_and_onnxruntime_agree(name: str) -> None:
    n, given = CASES[name]
    expected = oracle.ORACLES["onnxruntime"](n, given, 21)
    found = oracle.ORACLES["numpy"](n, given, 21)
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_onnx_leaves_open_has_no_oracle() -> None:
    hidden = node("MaxPool", floats(1, 1, 1), kernel_shape=[2], dilations=[2], pads=[1, 1])
    with pytest.raises(oracle.NoOracle, match="wholly outside"):
        oracle.evaluate(*hidden, 21)
    third = np.array([1, 1, 1.3], np.float32)
    with pytest.raises(Undetermined, match="hair"):  # 1.3 as f32 is less than 1.3: 12 or 13 elements
        oracle.NUMPY["Resize"](Node("Resize", ("x", "", "s"), ("y",)), floats(1, 1, 10), None, third)


def _loop_body() -> onnx.GraphProto:
    """state, row = state + outer, state * step."""

    def port(name: str, code: int, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, code, shape)

    nodes = [
        helper.make_node("Add", ["s", "outer"], ["next"]),
        helper.make_node("Cast", ["i"], ["step"], to=1),
        helper.make_node("Mul", ["s", "step"], ["row"]),
        helper.make_node("Less", ["i", "two"], ["go_on"]),
    ]
    two = helper.make_tensor("two", 7, [], [2])
    inputs = [port("i", 7, []), port("go", 9, []), port("s", 1, [3])]
    return helper.make_graph(
        nodes, "body", inputs, [port("go_on", 9, []), port("next", 1, [3]), port("row", 1, [3])], [two]
    )


def test_a_loop_is_interpreted_as_onnxruntime_runs_it() -> None:
    n = Node("Loop", ("count", "", "x"), ("y", "rows"), {"body": _loop_body()})
    given = {"count": np.array(9, np.int64), "x": floats(3), "outer": floats(3)}
    expected = oracle.ORACLES["onnxruntime"](n, given, 21)
    found = oracle.ORACLES["control flow"](n, given, 21)
    assert found[1].shape == (3, 3)  # the condition ends it
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-6)
