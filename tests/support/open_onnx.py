"""Small ONNX models with open dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.support.abused_onnx import model, port

Array = NDArray[Any]
TYPES = {"f32": TensorProto.FLOAT, "i64": TensorProto.INT64, "bool": TensorProto.BOOL}


def open_onnx(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[str, Sequence[int | str]]],
    outputs: Mapping[str, tuple[str, Sequence[int | str]]],
    constants: Mapping[str, Array],
    name: str = "net",
) -> ModelProto:
    """A model; a dimension given as a text is open."""
    starts, ends = (
        [port(key, dims, TYPES[kind]) for key, (kind, dims) in ports.items()] for ports in (inputs, outputs)
    )
    return model(nodes, starts, ends, constants, 17, name)


def perceptron(seed: int = 0, width: int = 48) -> ModelProto:
    """Two dense layers on any number of rows."""
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["c"]),
        helper.make_node("Add", ["c", "shift"], ["y"]),
    ]
    constants = {
        "first": rng.standard_normal((32, width)).astype(np.float32),
        "second": rng.standard_normal((width, 20)).astype(np.float32),
        "shift": rng.standard_normal(20).astype(np.float32),
    }
    return open_onnx(nodes, {"x": ("f32", ["rows", 32])}, {"y": ("f32", ["rows", 20])}, constants)


def decoder(layers: int = 2, width: int = 32, heads: int = 4, words: int = 50, most: int = 256) -> ModelProto:
    """A causal language model as GPT-2 is exported: open batch and sequence, rows flattened before dense layers.

    The causal mask is cut out of a constant, and positions are a range of the sequence's length.
    """
    rng = np.random.default_rng(7)
    nodes: list[NodeProto] = []
    constants: dict[str, Array] = {
        "one": np.array([1], np.int64),
        "zero": np.array([0], np.int64),
        "step": np.array(1, np.int64),
        "start": np.array(0, np.int64),
        "width": np.array([width], np.int64),
        "heads": np.array([heads, width // heads], np.int64),
        "rows": np.array([-1, width], np.int64),
        "lowest": np.array(np.finfo(np.float32).min, np.float32),
        "scale": np.array(np.sqrt(width // heads), np.float32),
        "causal": np.tril(np.ones((1, 1, most, most), bool)),
        "words": (rng.standard_normal((words, width)) * 0.5).astype(np.float32),
        "positions": (rng.standard_normal((most, width)) * 0.2).astype(np.float32),
        "axes": np.array([2, 3], np.int64),
        "both": np.array([0, 0], np.int64),
    }

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}.{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def weight(*shape: int) -> str:
        name = f"w{len(constants)}"
        constants[name] = (rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)
        return name

    def dense(x: str, inputs: int, outputs: int) -> str:
        flat = add(
            "Gemm", add("Reshape", x, "rows" if inputs == width else wide), weight(inputs, outputs), weight(outputs)
        )
        return add("Reshape", flat, add("Concat", lengths, add("Constant", value_ints=[outputs]), axis=0))

    def norm(x: str) -> str:
        constants[f"gain{len(nodes)}"] = rng.uniform(0.5, 1.5, width).astype(np.float32)
        return add("LayerNormalization", x, f"gain{len(nodes)}", weight(width), axis=-1, epsilon=1e-5)

    wide = "wide"
    constants[wide] = np.array([-1, 4 * width], np.int64)
    shape = add("Shape", "ids")
    lengths = add("Slice", shape, "zero", add("Constant", value_ints=[2]))
    length = add("Slice", shape, "one", add("Constant", value_ints=[2]))
    ids = add("Range", "start", add("Squeeze", length), "step")
    x = add("Add", add("Gather", "words", "ids"), add("Gather", "positions", ids))
    mask = add("Slice", "causal", "both", add("Concat", length, length, axis=0), "axes")
    split = add("Concat", lengths, "heads", axis=0)
    for _ in range(layers):
        y = norm(x)
        q, k, v = (add("Reshape", dense(y, width, width), split) for _ in range(3))
        q, v = (add("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        scores = add("Div", add("MatMul", q, add("Transpose", k, perm=[0, 2, 3, 1])), "scale")
        shares = add("Softmax", add("Where", mask, scores, "lowest"), axis=-1)
        mixed = add("Transpose", add("MatMul", shares, v), perm=[0, 2, 1, 3])
        joined = add("Reshape", mixed, add("Concat", lengths, "width", axis=0))
        x = add("Add", x, dense(joined, width, width))
        hidden = dense(norm(x), width, 4 * width)
        gate = add("Mul", hidden, add("Sigmoid", hidden))
        x = add("Add", x, dense(gate, 4 * width, width))
    nodes.append(helper.make_node("MatMul", [norm(x), weight(width, words)], ["logits"]))
    ports = {"ids": ("i64", ["batch", "sequence"])}
    return open_onnx(nodes, ports, {"logits": ("f32", ["batch", "sequence", words])}, constants, "decoder")


def _image_weights(channels: int = 8, inputs: int = 3) -> Array:
    return np.random.default_rng(3).standard_normal((channels, inputs, 1, 1)).astype(np.float32)


def detector() -> ModelProto:
    """A feature pyramid of two levels. The upper one, 16 times as large, only fits for images of multiples of 32."""
    nodes = [
        helper.make_node("Conv", ["x", "fine.weight"], ["fine"], "fine", strides=[2, 2]),
        helper.make_node("Conv", ["fine", "coarse.weight"], ["coarse"], "coarse", strides=[16, 16]),
        helper.make_node("Resize", ["coarse", "", "scales"], ["upsampled"], "upsampled", mode="nearest"),
        helper.make_node("Add", ["fine", "upsampled"], ["sum"], "merge"),
        helper.make_node("Sigmoid", ["sum"], ["y"]),
    ]
    constants = {
        "fine.weight": _image_weights(),
        "coarse.weight": _image_weights(inputs=8),
        "scales": np.array([1, 1, 16, 16], np.float32),
    }
    ports = {"x": ("f32", ["batch", 3, "height", "width"])}
    return open_onnx(nodes, ports, {"y": ("f32", ["batch", 8, "rows", "columns"])}, constants, "detector")


def recogniser() -> ModelProto:
    """Text lines: heights of 48 and 64 leave one row, greater ones several; smaller ones do not fit into a window."""
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["cells"], "cells", strides=[16, 4]),
        helper.make_node("AveragePool", ["cells"], ["row"], "pool", kernel_shape=[3, 2], strides=[3, 2]),
        helper.make_node("Squeeze", ["row", "axes"], ["y"], "squeeze"),
    ]
    constants = {"weight": _image_weights(), "axes": np.array([2], np.int64)}
    ports = {"x": ("f32", ["batch", 3, "?", "width"])}
    return open_onnx(nodes, ports, {"y": ("f32", ["batch", 8, "length"])}, constants, "recogniser")


def classifier() -> ModelProto:
    """Images of any size, as PaddlePaddle exports them: the batch is -1, height and width are both called `?`."""
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["features"], "features", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["features"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["y"]),
    ]
    ports = {"x": ("f32", [-1, 3, "?", "?"])}
    return open_onnx(nodes, ports, {"y": ("f32", [-1, 8])}, {"weight": _image_weights()}, "classifier")


def batched() -> ModelProto:
    """Images of one size, any number of them."""
    nodes = [helper.make_node("Conv", ["image", "weight"], ["y"], "only")]
    ports = {"image": ("f32", ["batch", 3, 8, 8])}
    return open_onnx(nodes, ports, {"y": ("f32", ["batch", 8, 8, 8])}, {"weight": _image_weights()}, "batched")
