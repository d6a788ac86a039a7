"""How much arithmetic a graph does: its multiply-adds, counted twice, over the shapes that ONNX infers.

Convolutions, transposed convolutions and matrix products are counted, at borders as if padding were data, as everybody
counts them. Biases, batch norms, activations and pools are not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stormdrop.errors import UserError

if TYPE_CHECKING:
    import onnx


def flops(model: onnx.ModelProto) -> int:
    """Raises UserError where a shape that counts is symbolic or cannot be inferred."""
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    shapes: dict[str, tuple[int, ...]] = {t.name: tuple(t.dims) for t in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        shapes[info.name] = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
    return sum(_node_flops(n, [shapes.get(i, ()) for i in n.input], shapes.get(n.output[0], ())) for n in graph.node)


def _node_flops(node: onnx.NodeProto, inputs: list[tuple[int, ...]], out: tuple[int, ...]) -> int:
    match node.op_type:
        case "Conv":
            work = out, inputs[1][1:]
        case "ConvTranspose":
            work = inputs[0], inputs[1][1:]
        case "MatMul":
            work = out, inputs[0][-1:]
        case "Gemm":
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            work = out, inputs[0][:1] if transposed else inputs[0][1:]
        case _:
            return 0
    each, per = work
    if not each or not per or 0 in each or 0 in per:
        raise UserError(f"{node.op_type} {node.name!r}: its shapes are not all known; give the model a fixed batch")
    return 2 * math.prod(each) * math.prod(per)
