"""A sequence of calls as CUDA graphs.

A run is one graph: copies of the caller's arrays from page-locked memory, the kernels in order, copies back. Arrays in
the GPU's memory are used in place: the kernels that touch them get other pointers when the arrays change. Graphs are
made when they are first needed:

    run      [copies in] kernels [copies out]
    bench    event, kernels of several runs, event
    profile  event, kernels of the first call, event, kernels of the second, event, …

Timing graphs copy nothing: copies precede and follow them.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from stormdrop.base.lru import Lru
from stormdrop.device.artifact import Launch
from stormdrop.device.cuda.context import CudaContext, CudaEvent, CudaMemory, CudaStream, DeviceArray, PinnedMemory
from stormdrop.device.cuda.graph import CudaGraph, KernelNode, ReadyGraph
from stormdrop.device.device import (
    Account,
    Argument,
    Array,
    BoundCall,
    BufferPlace,
    Bytes,
    InputArray,
    OutputArray,
    Seconds,
    own,
)
from stormdrop.target.structures import Scope

PhaseLaunch = tuple[c_void_p, Launch]
"""The function of a phase, and its grid."""
Side = Literal["input", "output"]
Key = tuple[Side, int]
"""The side and index of an array of the caller."""

BATCH_RUNS = 10
"""Runs in one timing graph, if they are short: the time of an event is a fraction of theirs."""
BATCH_KERNELS = 200
KEPT_GRAPHS = 512


class Clock(Protocol):
    """The timing properties of a device."""

    def warm_up(self) -> None:
        """Raises the clocks."""
        ...

    def event_seconds(self) -> float:
        """Returns the seconds that an event between two kernels of a graph adds to the time between them."""
        ...


@dataclass(frozen=True, slots=True)
class _Shape:
    """Which graph: so many runs of some calls, with copies of some arrays or with events."""

    calls: tuple[int, int]
    runs: int = 1
    copied: tuple[tuple[Key, ...], tuple[Key, ...]] = ((), ())
    """In, and out."""
    events: Literal["none", "ends", "calls"] = "none"


@dataclass(slots=True, eq=False)
class _Built:
    """A graph, and its kernels that touch the caller's arrays, by call."""

    ready: ReadyGraph
    touching: list[tuple[KernelNode, int]]
    events: list[CudaEvent]
    version: int


@dataclass(slots=True, eq=False)
class _Staging:
    """Memory for one array of the caller's that is on the host."""

    pinned: PinnedMemory
    memory: CudaMemory
    array: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    is_overwritten: bool = False
    """Calls write every byte of it."""


class CudaRecording:
    """Calls in order: the launches of each and the location of its buffers."""

    def __init__(
        self,
        bound: Sequence[tuple[tuple[PhaseLaunch, ...], tuple[Argument, ...]]],
        calls: Sequence[BoundCall],
        context: CudaContext,
        clock: Clock,
    ) -> None:
        self._calls, self._context, self._clock = tuple(calls), context, clock
        self._launches = [launches for launches, _ in bound]
        self._arguments = [tuple(map(_resolved, arguments)) for _, arguments in bound]
        self._touching = {k for k, places in enumerate(self._arguments) if any(not isinstance(a, int) for a in places)}
        self._written = _written(calls)
        self._addresses: dict[Key, int] = {}
        self._staging: dict[Key, _Staging] = {}
        self._on_host: frozenset[Key] = frozenset()
        self._arrays: tuple[object, ...] = ()
        self._version = 0
        self._graphs = Lru[_Shape, _Built](KEPT_GRAPHS)
        self._stream = CudaStream(context)
        self._done = CudaEvent(context)
        self._is_pending = False
        """A caller's stream has a run of this recording, perhaps unfinished; `_done` ends it."""

    # ---- arrays

    def bind(self, inputs: Sequence[Array | DeviceArray], outputs: Sequence[Array | DeviceArray]) -> None:
        """Binds arrays: arrays on the host are copied by every run, arrays on the GPU are used in place."""
        addresses: dict[Key, int] = {}
        on_host: set[Key] = set()
        sides: tuple[tuple[Side, Sequence[Array | DeviceArray]], ...] = (("input", inputs), ("output", outputs))
        for side, arrays in sides:
            for index, array in enumerate(arrays):
                key: Key = side, index
                if isinstance(array, DeviceArray):
                    addresses[key] = array.address
                else:
                    addresses[key] = self._staged(key, array).memory.address
                    on_host.add(key)
        self._arrays = (*inputs, *outputs)
        self._on_host = frozenset(on_host)
        if addresses != self._addresses:
            self._addresses = addresses
            self._version += 1

    def _staged(self, key: Key, array: Array) -> _Staging:
        staging = self._staging.get(key)
        if staging is None or staging.memory.nbytes != array.nbytes:
            self._settle()
            memory = CudaMemory(self._context, array.nbytes)
            staging = self._staging[key] = _Staging(PinnedMemory(self._context, array.nbytes), memory)
            # Bytes that no call writes keep their values, so such an output is copied in, too.
            staging.is_overwritten = key[0] == "output" and _covers(self._written.get(key, []), array.nbytes)
            self._graphs.clear()  # they copy from and to other memory
        staging.array = array.reshape(-1).view(np.uint8)
        return staging

    # ---- runs

    def run(self) -> None:
        self.run_on(self._stream.handle)
        self._settle()

    def run_on(self, stream: c_void_p | int | None) -> None:
        """Runs all calls in a stream of the caller's.

        Outputs on the host are written when this returns, outputs on the GPU when the stream has reached them.
        """
        if self._on_host:
            self._settle()  # an earlier run may still copy from the page-locked memory
        copied_in = tuple(key for key in sorted(self._on_host) if not self._staging[key].is_overwritten)
        copied_out = tuple(key for key in sorted(self._on_host) if key[0] == "output")
        for key in copied_in:
            staging = self._staging[key]
            staging.pinned.block[:] = staging.array
        with self._context:
            built = self._graph(_Shape((0, len(self._launches)), copied=(copied_in, copied_out)))
            if self._is_pending:
                self._context.call("cuStreamWaitEvent", stream, self._done.handle, 0)
            built.ready.launch(stream)
            self._context.call("cuEventRecord", self._done.handle, stream)
            self._is_pending = True
        if copied_out:
            self._settle()
        for key in copied_out:
            staging = self._staging[key]
            staging.array[:] = staging.pinned.block

    def _settle(self) -> None:
        """Waits for the last run."""
        if self._is_pending:
            self._context.call("cuEventSynchronize", self._done.handle)
            self._is_pending = False

    # ---- timing

    def bench(self, repeats: int) -> Seconds:
        kernels = max(1, sum(map(len, self._launches)))
        return self._timed(range(len(self._launches)), max(1, min(BATCH_RUNS, BATCH_KERNELS // kernels)), repeats)

    def each(self, calls: range) -> Seconds:
        """Returns the seconds of some calls, each run once; neighbours that are timed together have their mean."""
        if not len(calls):
            return np.zeros(0)
        bounds = sorted({calls.start, *range(-(-calls.start // BATCH_RUNS) * BATCH_RUNS, calls.stop, BATCH_RUNS)})
        seconds: list[Seconds] = []
        self._copy_in()
        for begin, end in zip(bounds, [*bounds[1:], calls.stop]):
            (total,) = self._launched(_Shape((begin, end), events="ends"))
            seconds.append(np.full(end - begin, total / (end - begin)))
        self._copy_out()
        return np.concatenate(seconds)

    def profile(self, repeats: int, calls: range | None = None) -> Seconds:
        chosen = range(len(self._launches)) if calls is None else calls
        if not len(chosen):
            return np.zeros((repeats, 0))
        shape = _Shape((chosen.start, chosen.stop), events="calls")
        self._copy_in()
        rows = [self._launched(shape) for _ in range(repeats)]
        self._copy_out()
        # An event stands in the way of the kernel behind it, which does not belong to a call's time.
        return np.maximum(np.array(rows).reshape(repeats, -1) - self._clock.event_seconds(), 0.0)

    def account(self, repeats: int, calls: range | None = None) -> Account:
        seconds = self.profile(repeats, calls)
        return Account(seconds, 0 * seconds, seconds, 0 * seconds)

    def _timed(self, calls: range, batch: int, repeats: int) -> Seconds:
        seconds: list[Seconds] = []
        self._copy_in()
        while repeats:
            runs = batch if repeats >= batch else 1
            (total,) = self._launched(_Shape((calls.start, calls.stop), runs, events="ends"))
            seconds.append(np.full(runs, total / runs))
            repeats -= runs
        self._copy_out()
        return np.concatenate(seconds) if seconds else np.zeros(0)

    def _launched(self, shape: _Shape) -> list[float]:
        """Launches a graph and returns the seconds between its events."""
        built = self._graph(shape)
        with self._context:
            built.ready.launch(self._stream.handle)
            self._stream.synchronise()
            return [a.seconds_until(b) for a, b in zip(built.events, built.events[1:])]

    def _copy_in(self) -> None:
        self._settle()
        for key in self._on_host:
            self._staging[key].memory.write(0, self._staging[key].array)
        self._clock.warm_up()

    def _copy_out(self) -> None:
        for key in self._on_host:
            if key[0] == "output":
                staging = self._staging[key]
                staging.array[:] = staging.memory.read(0, staging.memory.nbytes)

    # ---- graphs

    def _graph(self, shape: _Shape) -> _Built:
        """Returns the graph of a shape, with pointers to the arrays that are bound now."""
        built = self._graphs.get(shape)
        if built is None:
            built = self._make(shape)
            self._graphs.put(shape, built)
        elif built.version != self._version:
            for node, call in built.touching:
                built.ready.set_pointers(node, self._pointers(call))
            built.version = self._version
        return built

    def _make(self, shape: _Shape) -> _Built:
        touching: list[tuple[KernelNode, int]] = []
        events: list[CudaEvent] = []
        with self._context:
            graph = CudaGraph(self._context)
            for key in shape.copied[0]:
                staging = self._staging[key]
                if staging.memory.nbytes:
                    graph.copy_in(staging.memory.address, staging.pinned.address, staging.memory.nbytes)
            if shape.events != "none":
                events.append(graph.event())
            for _ in range(shape.runs):
                for call in range(*shape.calls):
                    pointers = self._pointers(call)
                    for function, launch in self._launches[call]:
                        node = graph.kernel(function, launch, pointers)
                        if call in self._touching:
                            touching.append((node, call))
                    if shape.events == "calls":
                        events.append(graph.event())
            if shape.events == "ends":
                events.append(graph.event())
            for key in shape.copied[1]:
                staging = self._staging[key]
                if staging.memory.nbytes:
                    graph.copy_out(staging.pinned.address, staging.memory.address, staging.memory.nbytes)
            return _Built(graph.instantiate(), touching, events, self._version)

    def _pointers(self, call: int) -> list[int]:
        pointers: list[int] = []
        for argument in self._arguments[call]:
            match argument:
                case int():
                    pointers.append(argument)
                case InputArray(index, offset):
                    pointers.append(self._addresses["input", index] + offset)
                case OutputArray(index, offset):
                    pointers.append(self._addresses["output", index] + offset)
        return pointers


def _resolved(argument: Argument) -> int | InputArray | OutputArray:
    """Returns the address of a buffer on the GPU; the caller's arrays get addresses when they are bound."""
    match argument:
        case None:
            return 0
        case BufferPlace(memory, offset):
            return own(memory, CudaMemory).address + offset
        case _:
            return argument


def _written(calls: Sequence[BoundCall]) -> dict[Key, list[tuple[int, int]]]:
    """Returns the ranges of bytes that calls write, by output array."""
    spans_by_output: dict[Key, list[tuple[int, int]]] = {}
    for call in calls:
        for buffer, argument in zip(call.kernel.artifact.buffers, call.arguments):
            if isinstance(argument, OutputArray) and buffer.scope is Scope.OUTPUT:
                spans = spans_by_output.setdefault(("output", argument.index), [])
                spans.append((argument.offset, argument.offset + buffer.nbytes))
    return spans_by_output


def _covers(spans: Sequence[tuple[int, int]], nbytes: int) -> bool:
    """Returns whether ranges cover all bytes from 0 to `nbytes`."""
    end = 0
    for begin, stop in sorted(spans):
        if begin > end:
            return False
        end = max(end, stop)
    return end >= nbytes
