"""A compiled model of which another runtime computes a part.

    model = compile("model.onnx", fallback="onnxruntime")       # a MixedModel where something is not supported
    y = model(x)
    print(model)                                                # what runs where, and why

The cut was made when the model was loaded (`frontend.mixed`); nothing moves to the other runtime later, whatever fails.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from stormdrop.driver.fallback import ForeignSession, OnnxRuntimeFallback
from stormdrop.errors import UserError
from stormdrop.frontend.mixed import ForeignPart, MixedGraph, MixedPort
from stormdrop.graph.graph import shown
from stormdrop.runtime.arrays import checked
from stormdrop.runtime.image import Port
from stormdrop.runtime.model import Model

OURS = "stormdrop"
MOST_SIZES = 16


@dataclass(frozen=True, slots=True)
class ForeignPort:
    """An input or output whose shape or type is known only when the model runs; `type` describes it."""

    name: str
    type: str

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True, slots=True)
class Placement:
    """One part of a model: where it runs, its operators, and why it does not run here, where that is so."""

    where: str
    operators: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"{self.where}: {', '.join(self.operators)}{why}"


@dataclass(frozen=True, slots=True)
class _Part:
    """A part that runs: arrays by key, in and out."""

    runs: Model | ForeignSession
    names: Mapping[str, str]
    """The inputs of a session by the keys of their values."""
    outputs: tuple[str, ...]

    def run(self, values: dict[str, Any]) -> None:
        if isinstance(self.runs, Model):
            values.update(self.runs.run({port.name: values[port.name] for port in self.runs.inputs}))
        else:
            results = self.runs.run({name: values[key] for key, name in self.names.items()})
            values.update(zip(self.outputs, results))


class MixedModel:
    """A model in parts. It is called as a `Model` is, but cannot be saved, exported or profiled."""

    def __init__(self, graph: MixedGraph, models: Sequence[Model], runtime: OnnxRuntimeFallback) -> None:
        """`models` are those of the graph's own parts, in order. Raises UserError as the runtime does."""
        self.name, self.threads = graph.name, runtime.threads
        self.inputs = tuple(map(_port, graph.inputs))
        self.outputs = tuple(map(_port, graph.outputs))
        self._input_keys = [p.key for p in graph.inputs]
        self._output_keys = [p.key for p in graph.outputs]
        self._constants = dict(graph.constants)
        own = iter(models)
        self._parts: list[_Part] = []
        placements: list[Placement] = []
        for part in graph.parts:
            if isinstance(part, ForeignPart):
                names = {key: i.name for key, i in zip(part.inputs, part.model.graph.input)}
                self._parts.append(_Part(runtime.session(part.model), names, part.outputs))
                placements.append(Placement(runtime.name, part.operators, part.reasons))
            else:
                model = next(own)
                self._parts.append(_Part(model, {}, ()))
                placements.append(Placement(OURS, tuple(dict.fromkeys(c.label for c in model.image.calls))))
        self.placements = tuple(placements)

    def __call__(self, *inputs: ArrayLike) -> Any:
        """Returns one output, or a tuple of several. Raises UserError for arrays that do not match."""
        if len(inputs) != len(self.inputs):
            raise UserError(f"{self.name} takes {len(self.inputs)} arrays ({self._known()}), not {len(inputs)}")
        found = tuple(self._run(inputs))
        return found[0] if len(found) == 1 else found

    def run(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """All outputs by name. Raises UserError for arrays it does not take, and for missing and unknown names."""
        if not isinstance(inputs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f"run takes arrays by name, {{{self._known()}: array}}, not {type(inputs).__name__}")
        names = [p.name for p in self.inputs]
        wrong = [repr(n) for n in inputs if n not in names] + [f"no {n!r}" for n in names if n not in inputs]
        if wrong:
            raise UserError(f"{self.name} is given {', '.join(wrong)}; its inputs: {self._known()}")
        return dict(zip((p.name for p in self.outputs), self._run([inputs[n] for n in names])))

    def _run(self, inputs: Sequence[ArrayLike]) -> list[Any]:
        values: dict[str, Any] = {}
        for port, key, x in zip(self.inputs, self._input_keys, inputs):
            values[key] = checked(port, x) if isinstance(port, Port) else x
        given: Mapping[str, Any] = dict(values)
        for part in self._parts:
            part.run(values)
        return [self._result(key, values, given) for key in self._output_keys]

    def _result(self, key: str, values: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        """An output, which shares no memory with inputs and constants."""
        if key in self._constants:
            return self._constants[key].copy()
        return np.array(given[key]) if key in given else values[key]

    def save(self, path: object) -> NoReturn:
        raise UserError(
            f"{shown(self.name)} runs partly in onnxruntime ({', '.join(self._foreign())}) and cannot be saved"
        )

    def _foreign(self) -> list[str]:
        return [op for p in self.placements if p.where != OURS for op in p.operators]

    def _known(self) -> str:
        return ", ".join(map(repr, self.inputs)) or "no inputs"

    def __str__(self) -> str:
        lines = [f"  {k}. {placement}" for k, placement in enumerate(self.placements, 1)]
        return "\n".join([f"{shown(self.name)}, in {len(lines)} parts", *lines])

    def __repr__(self) -> str:
        return f"<mixed model {shown(self.name)}: {len(self.placements)} parts, onnxruntime: {self._foreign()}>"


class OpenMixedModel:
    """A model with open dimensions, of which another runtime may run a part: one model for each size it meets.

    The least recently used is dropped where there would be more than `MOST_SIZES`. Calls of several threads may
    compile one size twice, and keep one of them.
    """

    def __init__(
        self, name: str, inputs: Sequence[str], build: Callable[[Mapping[str, Sequence[int]]], Model | MixedModel]
    ) -> None:
        self.name, self.input_names, self._build = name, tuple(inputs), build
        self._models: OrderedDict[tuple[tuple[int, ...], ...], Model | MixedModel] = OrderedDict()
        self._lock = Lock()

    def specialised(self, shapes: Mapping[str, Sequence[int]]) -> Model | MixedModel:
        """The model for these shapes, compiled now if it was not before. Raises UserError."""
        missing = [repr(name) for name in self.input_names if name not in shapes]
        if missing:
            raise UserError(f"{shown(self.name)} needs {', '.join(missing)}")
        key = tuple(tuple(shapes[name]) for name in self.input_names)
        with self._lock:
            if key in self._models:
                self._models.move_to_end(key)
                return self._models[key]
        model = self._build({name: shapes[name] for name in self.input_names})
        with self._lock:
            self._models[key] = model
            while len(self._models) > MOST_SIZES:
                self._models.popitem(last=False)
        return model

    def __call__(self, *inputs: ArrayLike) -> Any:
        if len(inputs) != len(self.input_names):
            raise UserError(f"{shown(self.name)} takes {len(self.input_names)} arrays, not {len(inputs)}")
        arrays = [np.asarray(x) for x in inputs]
        return self.specialised({n: x.shape for n, x in zip(self.input_names, arrays)})(*arrays)

    def run(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Any]:
        arrays = {name: np.asarray(x) for name, x in inputs.items()}
        return self.specialised({name: x.shape for name, x in arrays.items()}).run(arrays)

    def __repr__(self) -> str:
        return f"<open mixed model {shown(self.name)}: {len(self._models)} sizes>"


def _port(p: MixedPort) -> Port | ForeignPort:
    if p.value is not None:
        return Port(p.name, p.value.shape, p.value.dtype)
    return ForeignPort(p.name, _type_text(p.type))


def _type_text(type: Any) -> str:
    """An onnx.TypeProto in a few words: int64[?, 3]."""
    from onnx import TensorProto

    if not type.HasField("tensor_type"):
        return (type.WhichOneof("value") or "unknown").removesuffix("_type")
    name = TensorProto.DataType.Name(type.tensor_type.elem_type).lower()
    if not type.tensor_type.HasField("shape"):
        return f"{name}[…]"
    dims = [str(d.dim_value) if d.HasField("dim_value") else "?" for d in type.tensor_type.shape.dim]
    return f"{name}[{', '.join(dims)}]"
