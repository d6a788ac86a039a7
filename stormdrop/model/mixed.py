"""A compiled model with parts in another runtime.

    model = compile("detector.onnx")         # has unsupported operators, and onnxruntime is installed
    boxes = model(image)
    print(model)                             # the runtime of each part, and the reasons

The model is cut when it is read (`frontend.mixed`); no part moves to onnxruntime later, even if a call fails. No saved
file and no C library can hold a mixed model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from stormdrop.base.errors import UserError
from stormdrop.device.arrays import Array, checked, copied_out
from stormdrop.device.device import Seconds
from stormdrop.frontend.mixed import ForeignPart, MixedGraph, MixedPort
from stormdrop.frontend.pointwise import ELEMENT_TYPES
from stormdrop.graph.graph import Graph
from stormdrop.model.fallback import OnnxRuntimeFallback
from stormdrop.model.fixed_model import WARM_UP_RUNS
from stormdrop.model.image import OpenPort, Port
from stormdrop.model.model import Model
from stormdrop.model.onnx_session import OnnxSession
from stormdrop.model.profile import Profile, ProfileRow, profile_of_parts
from stormdrop.operators.node import shown

OURS = "stormdrop"


class ForeignPort(Port):
    """An input or output that is no tensor of numbers, as `type` describes: it has neither shape nor element type."""

    __slots__ = ("type",)

    def __init__(self, name: str, type: str) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "type", type)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True, slots=True)
class Placement:
    """The runtime of one part of a model, its operators, and the reasons for another runtime."""

    where: str
    operators: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"{self.where}: {', '.join(self.operators)}{why}"


def foreign_placement(part: ForeignPart) -> Placement:
    return Placement(OnnxRuntimeFallback.name, part.operators, part.reasons)


def placements_of(graph: MixedGraph) -> list[Placement]:
    """Returns the parts of a model that is not compiled, with the operators of the graphs."""

    def placement(part: Graph | ForeignPart) -> Placement:
        if isinstance(part, ForeignPart):
            return foreign_placement(part)
        return Placement(OURS, tuple(dict.fromkeys(node.op for node in part.nodes)))

    return list(map(placement, graph.parts))


@dataclass(frozen=True, slots=True)
class _Part:
    """A part that runs: arrays by key, in and out."""

    runs: Model | OnnxSession
    names: Mapping[str, str]
    """The inputs of a session by the keys of their values."""
    outputs: tuple[str, ...]

    def run(self, values: dict[str, Any]) -> None:
        if isinstance(self.runs, Model):
            values.update(self.runs.run({port.name: values[port.name] for port in self.runs.inputs}))
        else:
            results = self.runs.run({name: values[key] for key, name in self.names.items()})
            values.update(zip(self.outputs, results.values()))


class MixedModel(Model):
    """A model in parts. It is called, timed and profiled as a `Model` is, but cannot be saved or exported.

    Arrays between two parts are NumPy's.
    """

    models: tuple[Model, ...]
    """The models of the native parts."""
    placements: tuple[Placement, ...]
    """The place where each part runs, with the names of the operators and the reasons, in the order of the run."""

    def __init__(self, graph: MixedGraph, models: Sequence[Model], threads: int) -> None:
        """`models` has the model of each native part, in order. Raises UserError as onnxruntime does."""
        super().__init__(graph.name, tuple(map(port_of, graph.inputs)), tuple(map(port_of, graph.outputs)))
        self.threads = threads
        self.models = tuple(models)
        self._input_keys = [p.key for p in graph.inputs]
        self._output_keys = [p.key for p in graph.outputs]
        self._constants = dict(graph.constants)
        own = iter(models)
        self._parts: list[_Part] = []
        placements: list[Placement] = []
        for part in graph.parts:
            if isinstance(part, ForeignPart):
                names = {key: i.name for key, i in zip(part.inputs, part.model.graph.input)}
                # Threads that spin would take the CPUs from our own pool between two parts.
                session = OnnxSession(part.model, threads, spin=False, subject="its part")
                self._parts.append(_Part(session, names, part.outputs))
                placements.append(foreign_placement(part))
            else:
                model = next(own)
                self._parts.append(_Part(model, {}, ()))
                placements.append(Placement(OURS, tuple(dict.fromkeys(c.label for c in model.image.calls))))
        self.placements = tuple(placements)

    @property
    def origins(self) -> Mapping[str, str]:
        return {digest: origin for model in self.models for digest, origin in model.origins.items()}

    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None, **named: ArrayLike) -> Any:
        if named:
            inputs = self._in_order(inputs, named)
        values = self._values(inputs)
        given = dict(values)
        for part in self._parts:
            part.run(values)
        results = copied_out(out, [self._result(key, values, given) for key in self._output_keys])
        return results[0] if len(results) == 1 else tuple(results)

    def bench(self, *inputs: ArrayLike, repeats: int = 100) -> Seconds:
        return self._timed(lambda: self(*inputs), repeats)

    def profile(self, *inputs: ArrayLike, repeats: int = 100, standalone: bool = False) -> Profile:
        """Profiles each native part alone, as `Model.profile` does, and times each part of onnxruntime as one row."""
        values = self._values(inputs)
        parts: list[Profile | ProfileRow] = []
        for number, (part, place) in enumerate(zip(self._parts, self.placements), 1):
            if isinstance(part.runs, Model):
                arrays = [values[port.name] for port in part.runs.inputs]
                parts.append(part.runs.profile(*arrays, repeats=repeats, standalone=standalone))
            else:
                seconds = float(np.median(self._timed(lambda run=part.run: run(dict(values)), repeats)))
                label = f"{place.where}: {', '.join(place.operators)}"
                parts.append(ProfileRow(label, f"part {number}", 1, seconds, origin=place.where))
            part.run(values)
        return profile_of_parts(self.name, self.threads, repeats, parts)

    def _timed(self, run: Callable[[], object], repeats: int) -> Seconds:
        seconds = np.empty(WARM_UP_RUNS + repeats)
        for k in range(len(seconds)):
            began = perf_counter()
            run()
            seconds[k] = perf_counter() - began
        return seconds[WARM_UP_RUNS:]

    def _values(self, inputs: Sequence[ArrayLike]) -> dict[str, Any]:
        """Returns the inputs by key. Raises UserError for arrays that do not match."""
        if self._is_closed:
            raise self._closed()
        self._check_count(inputs)
        return {
            key: x if isinstance(port, ForeignPort) else checked(port, x)
            for port, key, x in zip(self.inputs, self._input_keys, inputs)
        }

    def _result(self, key: str, values: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        """Returns an output, which shares no memory with inputs and constants."""
        if key in self._constants:
            return self._constants[key].copy()
        return np.array(given[key]) if key in given else values[key]

    def attach(self) -> None:
        for model in self.models:
            model.attach()

    def _release(self) -> None:
        for model in self.models:
            model.close()
        self._parts.clear()

    def check_can_be_saved(self) -> NoReturn:
        foreign = ", ".join(dict.fromkeys(op for p in self.placements if p.where != OURS for op in p.operators))
        fault = f"{shown(self.name)} runs partly in onnxruntime ({foreign}) and cannot be saved or exported"
        remedy = "sd.compile and `stormdrop run` run it; a model that ends before these operators can be saved"
        raise UserError(f"{fault}: {remedy}")

    def save(self, path: str | os.PathLike[str]) -> NoReturn:
        """Raises UserError: no file can hold the model."""
        if self._is_closed:
            raise self._closed()
        self.check_can_be_saved()

    def _without(self, name: str) -> AttributeError:
        return AttributeError(f"a model that runs partly in onnxruntime has one {name} for each of its `models`")

    def __str__(self) -> str:
        lines = [f"  {k}. {placement}" for k, placement in enumerate(self.placements, 1)]
        return "\n".join([f"{shown(self.name)}, in {len(lines)} parts", *lines])

    def __repr__(self) -> str:
        foreign = [op for p in self.placements if p.where != OURS for op in p.operators]
        return f"<mixed model {shown(self.name)}: {len(self.placements)} parts, onnxruntime: {foreign}>"


def mixed_model(graph: MixedGraph, threads: int, build: Callable[[Graph], Model]) -> MixedModel:
    """Makes the model of a cut graph, with `build` the models of its parts. Raises UserError as onnxruntime does."""
    return MixedModel(graph, [build(part) for part in graph.own], threads)


def port_of(p: MixedPort) -> Port:
    """Returns an input or output of a cut graph as a port of the model."""
    if p.value is not None:
        return Port(p.name, p.value.shape, p.value.dtype)
    tensor = p.type.tensor_type
    if not p.type.HasField("tensor_type") or tensor.elem_type not in ELEMENT_TYPES:
        return ForeignPort(p.name, _type_text(p.type))
    dimensions: tuple[int | str, ...] | None = None
    if tensor.HasField("shape"):
        named = [(d, f"{p.name}[{k}]") for k, d in enumerate(tensor.shape.dim)]
        dimensions = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or name for d, name in named)
    return OpenPort(p.name, ELEMENT_TYPES[tensor.elem_type], dimensions)


def _type_text(type: Any) -> str:
    """Returns the text of an onnx.TypeProto: string[?, 3]."""
    from onnx import TensorProto

    if not type.HasField("tensor_type"):
        return (type.WhichOneof("value") or "unknown").removesuffix("_type")
    name = TensorProto.DataType.Name(type.tensor_type.elem_type).lower()
    if not type.tensor_type.HasField("shape"):
        return f"{name}[…]"
    dims = [str(d.dim_value) if d.HasField("dim_value") else "?" for d in type.tensor_type.shape.dim]
    return f"{name}[{', '.join(dims)}]"
