"""ONNX files of a few nodes, with names that must not be taken at their word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.abused_onnx import model, port

INPUT, HIDDEN, OUTPUT, GRAPH = 'a[red]b"c', "x\ny\x1b[31m", "../z", "g[bold]\x1b"
"""Markup, a quote, a line break, an escape sequence, a way out of a folder."""


def saved(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str]],
    outputs: dict[str, int],
    weights: dict[str, np.ndarray] | None = None,
    types: dict[str, int] | None = None,
    graph: str = "tiny",
    file: str = "tiny.onnx",
) -> Path:
    """Inputs by shape (f32 unless `types` says otherwise), outputs by type."""
    ports = [port(name, shape, (types or {}).get(name, TensorProto.FLOAT)) for name, shape in inputs.items()]
    ends = [port(name, None, kind) for name, kind in outputs.items()]
    path = folder / file
    path.write_bytes(model(nodes, ports, ends, weights or {}, name=graph).SerializeToString())
    return path


def dense(folder: Path, batch: int | str = 2, file: str = "tiny.onnx") -> Path:
    """relu(x @ w) and the index of its largest element, under dangerous names.

    The first node is called `first/dense`.
    """
    w = np.random.default_rng(7).standard_normal((6, 5)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", [INPUT, "w"], [HIDDEN], name="first/dense"),
        helper.make_node("Relu", [HIDDEN], [OUTPUT], name="[blue]relu"),
        helper.make_node("ArgMax", [HIDDEN], ["top"], name="arg", axis=1, keepdims=0),
    ]
    outputs: dict[str, int] = {OUTPUT: TensorProto.FLOAT, "top": TensorProto.INT64}
    return saved(folder, nodes, {INPUT: [batch, 6]}, outputs, {"w": w}, graph=GRAPH, file=file)


def conv(folder: Path, channels: int = 16) -> Path:
    """relu of a 3x3 convolution of as many channels as it has, six pixels square, and the mean of each channel."""
    w = np.random.default_rng(7).standard_normal((channels, channels, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["t"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["t"], ["u"], name="relu"),
        helper.make_node("GlobalAveragePool", ["u"], ["y"], name="mean"),
    ]
    return saved(folder, nodes, {"x": [1, channels, 6, 6]}, {"y": TensorProto.FLOAT}, {"w": w}, file="conv.onnx")


def reshaped(folder: Path) -> Path:
    """x + x in a shape that is an input."""
    nodes = [helper.make_node("Add", ["x", "x"], ["t"]), helper.make_node("Reshape", ["t", "to"], ["y"])]
    return saved(folder, nodes, {"x": [2, 3], "to": [2]}, {"y": TensorProto.FLOAT}, types={"to": TensorProto.INT64})


def added(folder: Path) -> Path:
    """Two inputs, one of whole numbers."""
    nodes = [helper.make_node("Cast", ["k"], ["kf"], to=TensorProto.FLOAT), helper.make_node("Add", ["x", "kf"], ["y"])]
    return saved(
        folder, nodes, {"x": [3], "k": [3]}, {"y": TensorProto.FLOAT}, types={"k": TensorProto.INT64}, file="added.onnx"
    )
