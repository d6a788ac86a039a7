"""A described network as an ONNX model, with its weights or as a skeleton without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stormdrop.zoo.builder import Network
from stormdrop.zoo.weights import generate

if TYPE_CHECKING:
    import onnx

BATCH = "batch"


def model(network: Network, seed: int) -> onnx.ModelProto:
    """Returns an ONNX model; every parameter is an initializer whose values are raw bytes."""
    from onnx import TensorProto

    whole = _graph(network)
    for p in network.parameters:
        # Filled in place: appending a finished tensor would copy its bytes once more.
        tensor = whole.graph.initializer.add(name=p.name, data_type=TensorProto.FLOAT, dims=p.shape)
        tensor.raw_data = generate(p.name, p.shape, p.fill, seed).astype("<f4", copy=False).tobytes()
    return whole


def skeleton(network: Network) -> onnx.ModelProto:
    """Returns the graph with its parameters as inputs: a few kilobytes, valid, and sufficient for shape inference."""
    from onnx import TensorProto, helper

    whole = _graph(network)
    for p in network.parameters:
        whole.graph.input.append(helper.make_tensor_value_info(p.name, TensorProto.FLOAT, p.shape))
    return whole


def _graph(network: Network) -> onnx.ModelProto:
    from onnx import TensorProto, helper, numpy_helper

    def info(name: str, kind: int, sizes: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, [BATCH if network.batch is None else network.batch, *sizes])

    graph = helper.make_graph(
        [helper.make_node(n.op, n.inputs, n.outputs, n.name, **cast(Any, n.attributes)) for n in network.nodes],
        network.name,
        [info(i.name, helper.np_dtype_to_tensor_dtype(np.dtype(i.dtype)), i.sizes) for i in network.inputs],
        [info(o.name, TensorProto.FLOAT, o.sizes) for o in network.outputs],
        [numpy_helper.from_array(value, name) for name, value in network.constants.items()],
    )
    opsets = [helper.make_opsetid("", network.opset)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets), producer_name="stormdrop.zoo"
    )
