"""Quantised models, made by onnxruntime's static quantisation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from tests.support.abused_onnx import model, port

Array = NDArray[Any]
TYPES = {"u8": QuantType.QUInt8, "i8": QuantType.QInt8}


def network(rng: np.random.Generator) -> onnx.ModelProto:
    """Convolutions with a window, of one pixel and by channel, a residual sum, pools and a dense layer, in f32."""

    shapes = {
        "w1": (16, 5, 3, 3),
        "b1": (16,),
        "w2": (32, 16, 1, 1),
        "w3": (32, 1, 3, 3),
        "b3": (32,),
        "w4": (32, 10),
        "b4": (10,),
    }
    weights: dict[str, Array] = {}
    for name, shape in shapes.items():
        scale = np.sqrt(max(1, int(np.prod(shape[1:]))))
        weights[name] = (rng.standard_normal(shape) / scale).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["m1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m1", "w2"], ["c2"]),
        helper.make_node("Conv", ["c2", "w3", "b3"], ["c3"], pads=[1, 1, 1, 1], group=32),
        helper.make_node("Add", ["c2", "c3"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["y"]),
    ]
    return model(nodes, [port("x", [2, 5, 12, 12])], [port("y", [2, 10])], weights, 21)


class _Samples(CalibrationDataReader):
    def __init__(self, model: onnx.ModelProto, count: int = 3) -> None:
        (port,) = model.graph.input
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        self._drawn: Iterator[dict[str, Array]] = iter(
            [{port.name: np.random.default_rng(k).standard_normal(shape).astype(np.float32)} for k in range(count)]
        )

    def get_next(self) -> Any:
        return next(self._drawn, None)


def quantized(
    model: onnx.ModelProto, folder: Path, as_operators: bool, per_channel: bool, activations: str, weights: str
) -> onnx.ModelProto:
    """The model as onnxruntime quantises it: with QuantizeLinear and DequantizeLinear, or with quantised operators."""
    source, result = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(model, source)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it warns that the model was not preprocessed
    try:
        quantize_static(
            source,
            result,
            _Samples(model),
            quant_format=QuantFormat.QOperator if as_operators else QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=TYPES[activations],
            weight_type=TYPES[weights],
        )
    finally:
        root.setLevel(level)
    return onnx.load(result)
