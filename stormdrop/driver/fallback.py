"""onnxruntime as the runtime of what is not supported here.

Its sessions wait asleep: threads that spin would take the CPUs from our own pool between two parts of a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stormdrop.errors import UserError
from stormdrop.runtime.arrays import Array

FALLBACKS = ("onnxruntime",)
ERRORS_ONLY = 3
LONGEST = 300
"""Characters of a message of onnxruntime's."""
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
    """Makes sessions on the CPU. Raises UserError where onnxruntime is not installed."""

    name = "onnxruntime"

    def __init__(self, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            told = f"fallback='onnxruntime' needs the package onnxruntime: {error}"
            raise UserError(f"{told}; pip install onnxruntime") from error
        self._onnxruntime, self.threads = onnxruntime, threads

    def session(self, model: Any) -> ForeignSession:
        """Raises UserError where onnxruntime refuses the model."""
        options = self._onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = ERRORS_ONLY
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        try:
            made = self._onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors have no common class of their own
            raise UserError(f"onnxruntime does not take it: {first_line(error)}") from error
        return ForeignSession(made)

    def output_types(self, model: Any) -> list[Any]:
        return [_type_proto(o.type, o.shape) for o in self.session(model).outputs]


def fallback_of(name: str, threads: int) -> OnnxRuntimeFallback:
    """The runtime of this name. Raises UserError for any but those of `FALLBACKS`, and where it is not installed."""
    if name not in FALLBACKS:
        raise UserError(f"fallback={name!r} is none of {', '.join(FALLBACKS)}")
    return OnnxRuntimeFallback(threads)


class ForeignSession:
    """One sub-model in onnxruntime."""

    def __init__(self, session: Any) -> None:
        self._session = session

    @property
    def outputs(self) -> Sequence[Any]:
        return self._session.get_outputs()

    def run(self, inputs: Mapping[str, Array]) -> list[Any]:
        """The outputs in order. Raises UserError where onnxruntime refuses the values."""
        try:
            return self._session.run(None, dict(inputs))
        except Exception as error:  # as above
            raise UserError(f"onnxruntime does not run its part: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:LONGEST] if lines else type(error).__name__


def _type_proto(text: str, shape: Sequence[object] | None) -> Any:
    """onnxruntime's description of a type, tensor(float) or seq(tensor(int64)), as an onnx.TypeProto.

    Of dimensions that have a name only that they are open is kept: the same name elsewhere may mean something else.
    """
    from onnx import TensorProto, TypeProto, helper

    found = re.fullmatch(r"(seq|optional)?\(?tensor\((\w+)\)\)?", text)
    if found is None or found[2] not in _NAMES:
        return TypeProto()
    code = TensorProto.DataType.Value(_NAMES[found[2]])
    if found[1] == "seq":
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(code, None))
    if found[1] == "optional":
        return helper.make_optional_type_proto(helper.make_tensor_type_proto(code, None))
    dims = None if shape is None else [n if isinstance(n, int) and n >= 0 else None for n in shape]
    return helper.make_tensor_type_proto(code, dims)
