"""A model in onnxruntime, which is imported only on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stormdrop.base.errors import UserError, first_line
from stormdrop.device.arrays import Array
from stormdrop.frontend.node_reader import EXTRA

FATAL_ONLY = 4
"""The level of the log: below it, onnxruntime would print each error that it also raises."""


def imported_onnxruntime() -> Any:
    """Returns the module. Raises UserError if onnxruntime is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(f"onnxruntime cannot be imported ({error}); install it: {EXTRA}") from error
    return onnxruntime


class OnnxSession:
    """A session on the CPU with every optimisation. Its idle threads spin, or sleep if not `spin`.

    `subject` names the model in errors.
    """

    def __init__(self, model: Any, threads: int, spin: bool = True, subject: str = "the model") -> None:
        """`model` is a path, bytes or an onnx.ModelProto.

        Raises UserError if onnxruntime is not installed, or rejects the model.
        """
        onnxruntime = imported_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = FATAL_ONLY
        for pool in ("intra_op", "inter_op"):
            options.add_session_config_entry(f"session.{pool}.allow_spinning", str(int(spin)))
        try:
            given = model if isinstance(model, (str, bytes)) else model.SerializeToString()
            self._session: Any = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common class of their own
            raise UserError(f"onnxruntime does not take {subject}: {first_line(error)}") from error
        self.label, self._subject = f"onnxruntime {onnxruntime.__version__}", subject
        waiting = "spinning" if spin else "sleeping"
        self.settings = (
            f"{onnxruntime.__version__}, ORT_ENABLE_ALL on the CPU; intra_op_num_threads={threads}, {waiting}"
        )
        self.outputs: Sequence[Any] = self._session.get_outputs()
        self._names: list[str] = [o.name for o in self.outputs]
        self._inputs = {str(i.name) for i in self._session.get_inputs()}

    def prepared(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the inputs of the session: onnxruntime drops inputs that no node reads."""
        return {k: a for k, a in inputs.items() if k in self._inputs}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the outputs in order. Raises UserError if onnxruntime rejects the values."""
        try:
            return self.run_prepared(self.prepared(inputs))
        except Exception as error:  # as above
            raise UserError(f"onnxruntime does not run {self._subject}: {first_line(error)}") from error

    def run_prepared(self, inputs: dict[str, Array]) -> dict[str, Any]:
        """Runs only the call, which is the timed part."""
        return dict(zip(self._names, self._session.run(self._names, inputs)))
