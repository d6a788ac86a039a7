"""onnxruntime as the runtime of unsupported operators, for models that have some.

    fallback = fallback_of("auto")                  # onnxruntime where it is installed; nothing is imported yet
    graph = fallback.cut(refusal, file)             # a MixedGraph for a model that the importers refuse

`mixed` runs the parts of such a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from stormdrop.base.arguments import FALLBACKS
from stormdrop.base.errors import Unsupported, UnsupportedOperator, UserError, warn
from stormdrop.frontend.custom import CustomOperator
from stormdrop.frontend.mixed import MixedGraph, cut
from stormdrop.frontend.node_reader import EXTRA, RUNTIME_REMEDY, NeedsConstant
from stormdrop.frontend.parsed import ParsedModel
from stormdrop.model.onnx_session import OnnxSession, imported_onnxruntime

Refusal = Unsupported | NeedsConstant
REFUSALS = (Unsupported, NeedsConstant)
"""Errors of models that are right, but need another runtime."""
_NAMES = {
    "float": "FLOAT",
    "double": "DOUBLE",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "bool": "BOOL",
    "string": "STRING",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class OnnxRuntimeFallback:
    """onnxruntime on the CPU. Raises UserError if onnxruntime is not installed."""

    name = "onnxruntime"

    def __init__(self) -> None:
        imported_onnxruntime()

    def output_types(self, model: Any) -> list[Any]:
        outputs = OnnxSession(model, 1, subject="the node").outputs
        types = [_type_proto(o.type, o.shape) for o in outputs]
        # onnxruntime describes a scalar and a tensor of unknown rank alike; their shapes differ in length.
        unclear = [k for k, o in enumerate(outputs) if o.type.startswith("tensor(") and not o.shape]
        if unclear:
            shapes = OnnxSession(_with_shapes(model, [outputs[k].name for k in unclear]), 1).outputs
            for k, shape in zip(unclear, shapes):
                if list(shape.shape) != [0]:
                    types[k].tensor_type.ClearField("shape")
        return types


def _with_shapes(model: Any, names: Sequence[str]) -> Any:
    """Returns the model with the shapes of some outputs as its outputs."""
    from onnx import ModelProto, ValueInfoProto, helper

    changed = ModelProto()
    changed.CopyFrom(model)
    del changed.graph.output[:]
    for k, name in enumerate(names):
        changed.graph.node.append(helper.make_node("Shape", [name], [f"{name}.shape.{k}"]))
        changed.graph.output.append(ValueInfoProto(name=f"{name}.shape.{k}"))
    if not any(o.domain in ("", "ai.onnx") for o in changed.opset_import):
        changed.opset_import.append(helper.make_opsetid("", 13))
    return changed


class Fallback:
    """onnxruntime for models that need it, where it is installed. `tell` receives one line for each model."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell
        self._named: set[str] = set()

    def runtime(self, refusal: Refusal) -> OnnxRuntimeFallback:
        """Returns the runtime. Raises the model's error, with the extra that installs onnxruntime, if it is absent."""
        try:
            return OnnxRuntimeFallback()
        except UserError as error:
            remedy = "" if EXTRA in str(refusal) else f" and runs such models: {EXTRA}"
            raise _extended(refusal, f"; onnxruntime is not installed{remedy}") from error

    def check(self, refusal: Refusal, file: ParsedModel) -> None:
        """Raises the model's error, extended with onnxruntime's, if onnxruntime refuses the model."""
        self.runtime(refusal)
        try:
            OnnxSession(file.proto if file.path is None else file.path, 1)
        except UserError as error:
            raise _refused_there(refusal, error) from error

    def cut(
        self,
        refusal: Refusal,
        file: ParsedModel,
        shapes: Mapping[str, Sequence[int]] | None = None,
        constants: Mapping[str, ArrayLike] | None = None,
        operators: Sequence[CustomOperator] = (),
    ) -> MixedGraph:
        """Cuts the model into parts. Raises its error, extended, if onnxruntime is absent or refuses its part."""
        runtime = self.runtime(refusal)
        try:
            graph = cut(file, runtime, shapes, constants, operators)
        except UnsupportedOperator as error:
            raise _refused_there(refusal, error.__cause__ or error) from error
        assert isinstance(graph, MixedGraph)  # the importers refused the model as a whole
        if self._tell is not None and graph.foreign and graph.name not in self._named:
            self._named.add(graph.name)
            self._tell(graph.summary)
        return graph


def fallback_of(name: str | Fallback | None, tell: Callable[[str], None] | None = None) -> Fallback | None:
    """Returns the fallback of a name; None for "none". `tell` receives the cuts; without `tell`, "auto" warns.

    Raises UserError for other names, and for "onnxruntime" if onnxruntime is not installed.
    """
    match name:
        case Fallback():
            return name
        case "none":
            return None
        case "onnxruntime":
            imported_onnxruntime()
            return Fallback(tell)
        case "auto" | None:
            return Fallback(tell or warn)
        case _:
            raise UserError(f"fallback={name!r} is none of {', '.join(FALLBACKS)}")


def _extended(refusal: Refusal, text: str) -> Refusal:
    refusal.args = (f"{refusal}{text}",)
    return refusal


def _refused_there(refusal: Refusal, error: BaseException) -> Refusal:
    """Returns the error of a model that onnxruntime refuses as well: without the advice to use onnxruntime."""
    refusal.args = (f"{str(refusal).replace(f'{RUNTIME_REMEDY}; or ', '')}; and {error}",)
    return refusal


def _type_proto(text: str, shape: Sequence[object] | None) -> Any:
    """Returns onnxruntime's description of a type, tensor(float) or seq(tensor(float)), as an onnx.TypeProto.

    Named dimensions become open dimensions without names, since a name may mean another size elsewhere.
    """
    from onnx import TensorProto, TypeProto, helper

    kind, _, inner = text.removesuffix(")").partition("(")
    match kind:
        case "tensor" if inner in _NAMES:
            dims = None if shape is None else [n if isinstance(n, int) and n >= 0 else None for n in shape]
            return helper.make_tensor_type_proto(TensorProto.DataType.Value(_NAMES[inner]), dims)
        case "seq":
            return helper.make_sequence_type_proto(_type_proto(inner, None))
        case "optional":
            return helper.make_optional_type_proto(_type_proto(inner, None))
        case "map":
            key, _, value = inner.partition(",")
            return helper.make_map_type_proto(TensorProto.DataType.Value(_NAMES[key]), _type_proto(value, None))
        case _:
            return TypeProto()
