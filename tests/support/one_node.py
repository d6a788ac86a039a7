"""Models of one ONNX node: compiled, on onnxruntime, on ONNX's reference evaluator.

node = OneNode("MaxPool", [x], outputs=2, kernel_shape=[3])
values, positions = node.compiled()
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from stormdrop.compare.interpreter import interpret
from stormdrop.compiler.compile import compile as compile_model
from stormdrop.frontend.onnx import load

Array = NDArray[Any]


class OneNode:
    """One node with its inputs; None stands for one that is left out, `known` for those that are constants of the
    model.
    """

    def __init__(
        self,
        op: str,
        inputs: Sequence[Array | None],
        known: Collection[int] = (),
        outputs: int = 1,
        opset: int = 20,
        domain: str = "",
        **attributes: Any,
    ) -> None:
        names = ["" if a is None else f"x{k}" for k, a in enumerate(inputs)]
        results = [f"y{k}" for k in range(outputs)]
        given = {name: a for name, a in zip(names, inputs) if a is not None}
        held = {f"x{k}" for k in known}
        self.feeds = {name: a for name, a in given.items() if name not in held}
        kinds = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in given.items()}
        graph = helper.make_graph(
            [helper.make_node(op, names, results, name="node", domain=domain, **attributes)],
            "one",
            [helper.make_tensor_value_info(name, kinds[name], a.shape) for name, a in self.feeds.items()],
            [ValueInfoProto(name=name) for name in results],
            [numpy_helper.from_array(a, name) for name, a in given.items() if name in held],
        )
        imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        self.model: ModelProto = shape_inference.infer_shapes(model)

    def compiled(self, **options: Any) -> list[Array]:
        """The whole compiler, default schedules, and nothing else."""
        model = compile_model(self.model, schedules=lambda task: None, fallback="none", **options)
        found = model.run(dict(self.feeds))
        return [np.asarray(found[o.name]) for o in self.model.graph.output]

    def interpreted(self) -> list[Array]:
        graph = load(self.model)
        return interpret(graph, [self.feeds[v.name] for v in graph.inputs])

    def on_onnxruntime(self) -> list[Array]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            self.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found: Any = session.run(None, dict(self.feeds))
        return [np.asarray(a) for a in found]

    def on_reference(self) -> list[Array]:
        found: Any = ReferenceEvaluator(self.model).run(None, dict(self.feeds))
        return [np.asarray(a) for a in found]


def assert_alike(found: Sequence[Array], wanted: Sequence[Array], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Shapes, types and values; floats up to roundings, NaN where NaN is wanted."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(
            a, b, rtol=rtol, atol=atol
        ) if a.dtype.kind == "f" else np.testing.assert_array_equal(a, b)
