"""A model of fixed sizes: an image and its weights in memory, run natively from the first kernel to the last.

    model = FixedModel(image, pack(image, constants))
    y = model(x)

Models that share chunks of weights or arenas (`model.open_model`) are given both.

Invariant: the weights are never written after `pack`.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from stormdrop.base.errors import RunError, UserError
from stormdrop.device.arrays import new_array
from stormdrop.device.artifact import SLACK_BYTES, Artifact
from stormdrop.device.device import (
    Account,
    Argument,
    Array,
    BoundCall,
    BufferPlace,
    Bytes,
    Device,
    InputArray,
    LoadedKernel,
    Memory,
    OutputArray,
    Recording,
    Seconds,
    joined,
)
from stormdrop.device.host import detect
from stormdrop.device.host_device import HostDevice, host_device
from stormdrop.device.interlude import SurroundedBenches
from stormdrop.device.peak import peak_gflops
from stormdrop.device.rotation import Rotation, rotation_bytes
from stormdrop.device.targets import gpu_for, gpu_rates, target_for
from stormdrop.model.arena import Arenas
from stormdrop.model.executable import Recorded, TakesOtherArrays
from stormdrop.model.image import Address, Image, Port, verify
from stormdrop.model.model import Model
from stormdrop.model.package import save
from stormdrop.model.profile import Alone, Profile, profile_of
from stormdrop.model.shared_weights import WeightChunk, chunk_starts
from stormdrop.target import whole_lines
from stormdrop.target.cpu import Cpu

WARM_UP_RUNS = 3
MOST_REPEATS = 10**8
TURN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _OnDevice:
    """A model's weights and kernels on the device that runs it."""

    device: Device
    chunks: tuple[WeightChunk, ...]
    starts: Sequence[int]
    """The start of each chunk in their concatenation."""
    kernels: Sequence[LoadedKernel]


class FixedModel(Recorded[Port], Model):
    """A compiled model of fixed sizes; a model for an absent GPU can only be saved.

    `ordinal` is the number of the GPU that runs the model. Raises UserError for a damaged image or too few weights,
    BuildError for code of another machine. Errors of a GPU are raised by the first run.
    """

    def __init__(
        self,
        image: Image,
        weights: Bytes | Sequence[WeightChunk],
        device: Device | None = None,
        ordinal: int = 0,
        arenas: Arenas | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        verify(image)
        super().__init__(image.name, image.inputs, image.outputs)
        self._image, self.threads = image, image.threads
        self._origins = dict(origins or {})
        self._given_weights = image.checked_weights(weights) if isinstance(weights, np.ndarray) else tuple(weights)
        self._given_device, self.ordinal, self._arenas = device, ordinal, arenas
        if arenas is not None:
            self._results.clear()  # one of many sizes: each would keep memory of its own
        if device is not None or not image.is_for_gpu:
            self.attach()

    @property
    def image(self) -> Image:
        return self._image

    @property
    def origins(self) -> Mapping[str, str]:
        return self._origins

    @property
    def weights(self) -> Bytes:
        if isinstance(self._given_weights, np.ndarray):
            return self._given_weights
        return np.concatenate([np.zeros(0, np.uint8), *(c.memory.read(0, c.nbytes) for c in self._given_weights)])

    @property
    def chunks(self) -> tuple[WeightChunk, ...]:
        return self._on.chunks

    def attach(self) -> None:
        self._on  # noqa: B018

    @cached_property
    def _on(self) -> _OnDevice:
        if self._is_closed:
            raise self._closed()
        device, given = self._given_device, self._given_weights
        if device is None:
            device = (
                gpu_for(self.image.name, self.image.cpu, self.ordinal)
                if self.image.is_for_gpu
                else host_device(self.image.threads)
            )
        chunks = (WeightChunk(device.adopt(given)),) if isinstance(given, np.ndarray) else given
        starts = chunk_starts([chunk.nbytes for chunk in chunks])
        return _OnDevice(device, chunks, starts, [device.load(kernel) for kernel in self.image.kernels])

    @cached_property
    def _other(self) -> TakesOtherArrays | None:
        device = self._on.device
        return device if isinstance(device, TakesOtherArrays) else None

    def _checked(self, inputs: Sequence[ArrayLike]) -> list[Array]:
        try:
            return super()._checked(inputs)
        except UserError as error:
            shapes = [np.shape(x) for x in inputs if isinstance(x, np.ndarray)]
            if len(shapes) != len(self.inputs) or shapes == [port.shape for port in self.inputs]:
                raise
            raise UserError(f"{error}; shapes= of sd.compile gives other sizes") from error

    def bench(self, *inputs: ArrayLike, repeats: int = 100) -> Seconds:
        arrays, results = self._checked(inputs), [new_array(port) for port in self.outputs]
        recording = self._record()
        recording.bind(arrays, results)
        return _in_turns(recording.bench, repeats)

    def profile(self, *inputs: ArrayLike, repeats: int = 100, standalone: bool = False) -> Profile:
        arrays, results = self._checked(inputs), [new_array(port) for port in self.outputs]
        calls, recording = self._recorded()
        recording.bind(arrays, results)
        accounts: list[Account] = []

        def timed(count: int) -> Seconds:
            accounts.append(recording.account(count))
            return accounts[-1].seconds

        _in_turns(timed, repeats)
        alone: list[Alone] | None = None
        if standalone:  # a kernel that works in place now reads what it wrote: its time is that of any other values
            own = [np.array(array) for array in arrays]  # interludes rewrite inputs, and the caller's may be read-only
            by_kernel: dict[Artifact, Alone] = {}  # the same kernel takes as long wherever the model calls it
            for kernel, near, judged in self._benches_alone(calls):
                for bench in (near, judged):
                    bench.bind(own, results)
                    bench.bench(WARM_UP_RUNS)
                near_seconds, judged_seconds = (float(np.median(b.bench(repeats))) for b in (near, judged))
                by_kernel[kernel] = Alone(near_seconds, float(np.median(near.busy(repeats))), judged_seconds)
            alone = [by_kernel[call.kernel.artifact] for call in calls]
        is_for_gpu, device = self.image.is_for_gpu, self._on.device
        peak, memory_gbs = gpu_rates(device) if is_for_gpu else (peak_gflops(detect(self.threads)), 0.0)
        account = joined(accounts[1:])
        return profile_of(self.name, self.threads, self.image.calls, account, peak, alone, self.origins, memory_gbs)

    def _benches_alone(self, calls: Sequence[BoundCall]) -> Iterator[tuple[Artifact, Rotation, Rotation]]:
        """Yields two benches of each different kernel, in its first call.

        The first bench runs the kernel again and again, with weights as cold as in the model. The second bench runs the
        kernel as tuning times it; on a GPU both are the same.
        """
        device = self._on.device
        machine = target_for(f"cuda:{self.ordinal}") if self.image.is_for_gpu else detect(self.threads)
        target = machine.with_weights(self.image.weights_bytes)
        block = device.allocate(rotation_bytes(target.l3_bytes) if target.is_cold else 0)
        weights = {id(chunk.memory) for chunk in self.chunks}
        surrounded: SurroundedBenches | None = None
        if isinstance(device, HostDevice) and isinstance(target, Cpu):
            places = [a for call in calls for a in call.arguments if isinstance(a, BufferPlace)]
            arena = next((place.memory for place in places if id(place.memory) not in weights), None)
            surrounded = SurroundedBenches(device, target, self.image.surroundings, arena)
        for kernel, call in {call.kernel.artifact: call for call in reversed(calls)}.items():
            kept = [k for k, a in enumerate(call.arguments) if isinstance(a, BufferPlace) and id(a.memory) in weights]
            near = Rotation(device, call, kept if target.is_cold else (), block)
            yield kernel, near, near if surrounded is None else surrounded.bench(call, kept)

    def save(self, path: str | os.PathLike[str]) -> None:
        if self._is_closed:
            raise self._closed()
        save(path, self.image, self.weights)

    def _release(self) -> None:
        self._given_weights, self._given_device = np.empty(0, np.uint8), None
        if self._arenas is not None:
            self._arenas.forget(self)
        with suppress(AttributeError):  # it was never attached
            del self._on

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if self._arenas is None:
            super()._run(inputs, outputs)
            return
        try:
            arena = self._arenas.take(self._arena_bytes)
            recording = arena.recordings.get(self)
            if recording is None:
                recording = arena.recordings[self] = self._on.device.record(
                    self._calls(arena.memory), self.image.groups
                )
        except MemoryError as error:
            raise self._no_memory() from error
        recording.bind(inputs, outputs)
        recording.run()
        self._arenas.give(arena)

    def _record(self) -> Recording:
        return self._recorded()[1]

    def _recorded(self) -> tuple[list[BoundCall], Recording]:
        """Returns the calls of one run, with an arena of their own, and their recording."""
        try:
            calls = self._calls(self._on.device.allocate(self._arena_bytes))
            return calls, self._on.device.record(calls, self.image.groups)
        except MemoryError as error:
            raise self._no_memory() from error

    @property
    def _arena_bytes(self) -> int:
        return whole_lines(self.image.arena_bytes) + SLACK_BYTES

    def _no_memory(self) -> RunError:
        nbytes = f"{self.image.arena_bytes:,} bytes between its kernels"
        return RunError(f"there is no memory for a run of {self.name}: {nbytes}")

    def _calls(self, arena: Memory) -> list[BoundCall]:
        on = self._on
        if self._is_closed:  # then it may be without weights
            raise self._closed()

        def argument(address: Address | None) -> Argument:
            if address is None:
                return None
            match address.space:
                case "input":
                    return InputArray(address.index, address.offset)
                case "output":
                    return OutputArray(address.index, address.offset)
                case "arena":
                    return BufferPlace(arena, address.offset)
                case "weights":
                    k = min(bisect_right(on.starts, address.offset), len(on.chunks)) - 1
                    return BufferPlace(on.chunks[k].memory, address.offset - on.starts[k])

        return [BoundCall(on.kernels[c.kernel], tuple(map(argument, c.addresses))) for c in self.image.calls]

    def __repr__(self) -> str:
        steps = len(self.image.calls)
        return f"<model {self.name}, {steps} kernel{'s' if steps != 1 else ''}, {self.image.units}>"


def _in_turns(timed: Callable[[int], Seconds], repeats: int) -> Seconds:
    """Returns the seconds of so many runs, after a few uncounted runs, in short turns: Ctrl-C works between turns."""
    if not isinstance(repeats, (int, np.integer)) or not 1 <= repeats <= MOST_REPEATS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"repeats is {repeats!r}; give a whole number from 1 to {MOST_REPEATS:,}")
    warm = timed(WARM_UP_RUNS)
    turn = max(1, int(TURN_SECONDS * WARM_UP_RUNS / max(float(warm.sum()), 1e-6)))
    return np.concatenate([timed(min(turn, repeats - done)) for done in range(0, repeats, turn)])
