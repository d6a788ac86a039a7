"""A model a user calls: an image and its weights in memory, run natively from the first kernel to the last.

    model = Model(image, weights)
    y = model(x)                          # inputs in the order of model.inputs; several outputs come as a tuple
    model(x, out=y)
    named = model.run({"input": x})       # arrays by name, in and out

Arrays are taken as `runtime.arrays` says: inputs are read where they are, outputs are written where they will stay.
Every call has its own arena, scratch and pointer tables (kept for the next one), so several Python threads may call at
once; the pool lets one of them run at a time. A call holds no lock while Python code runs, and releases the GIL while
native code does.

Invariant: the weights are never written after `pack`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormdrop.codegen import ENTRY
from stormdrop.codegen.llvm import Code
from stormdrop.errors import RunError, UserError
from stormdrop.runtime.alone import seconds_alone
from stormdrop.runtime.arrays import address_of, checked, checked_outputs, is_plain, new_array
from stormdrop.runtime.artifact import SLACK_BYTES, Artifact
from stormdrop.runtime.host import detect
from stormdrop.runtime.image import Image, KernelCall, Port
from stormdrop.runtime.loaded import pack_constants, scratch_stride
from stormdrop.runtime.memory import aligned
from stormdrop.runtime.package import load, save
from stormdrop.runtime.peak import calibrated
from stormdrop.runtime.pool import Pool, shared_pool
from stormdrop.runtime.pool_ir import STEP_WORDS
from stormdrop.runtime.profile import Profile, profile_of
from stormdrop.runtime.verify import verify
from stormdrop.target import ALIGN_BYTES, whole_lines
from stormdrop.target.scope import Scope

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Constants = Callable[[int], Mapping[str, Array]]
"""The raw constants of a step by the names of its kernel's buffers; asked for once, and not kept."""

WARM_UP_RUNS = 3
MOST_REPEATS = 10**8
TURN_SECONDS = 0.2


class Model:
    """A compiled model, ready to run.

    Raises UserError for a damaged image or too few weights, BuildError for code of another machine.
    """

    def __init__(self, image: Image, weights: Bytes) -> None:
        verify(image)
        self.image = image
        self.weights = _usable(image, weights)
        self._pool = shared_pool(image.threads)
        self._tables = _Tables(image, self.weights.ctypes.data)
        self._idle: list[_CallMemory] = []  # list.pop and append are atomic

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self.image.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.image.outputs

    @property
    def threads(self) -> int:
        return self.image.threads

    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None) -> Any:
        """One array, or a tuple where the model has several outputs. Raises UserError for arrays it does not take."""
        arrays = self._checked(inputs)
        targets = checked_outputs(self.image.outputs, out, arrays)
        if out is None:
            self._run(arrays, targets)
        else:
            direct = [t if is_plain(t) else new_array(port) for t, port in zip(targets, self.image.outputs)]
            self._run(arrays, direct)
            for t, d in zip(targets, direct):
                if t is not d:
                    t[...] = d
        return targets[0] if len(targets) == 1 else tuple(targets)

    def run(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """All outputs by name. Raises UserError for arrays it does not take, and for missing and unknown names."""
        if not isinstance(inputs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f"run takes arrays by name, {{{self._known()}: array}}, not {type(inputs).__name__}")
        known = {port.name for port in self.inputs}
        unknown = [repr(name) for name in inputs if name not in known]
        if unknown:
            raise UserError(f"{self.name} has no input {', '.join(unknown)}; its inputs: {self._known()}")
        missing = [repr(port.name) for port in self.inputs if port.name not in inputs]
        if missing:
            raise UserError(f"{self.name} needs {', '.join(missing)}; its inputs: {self._known()}")
        arrays = self._checked([inputs[port.name] for port in self.inputs])
        results = [new_array(port) for port in self.outputs]
        self._run(arrays, results)
        return {port.name: result for port, result in zip(self.outputs, results)}

    def bench(self, *inputs: ArrayLike, repeats: int = 100) -> NDArray[np.float64]:
        """Seconds of each of `repeats` whole runs, timed natively, after a few that do not count."""
        memory, arrays = self._bound(inputs)
        seconds = _in_turns(lambda n: self._pool.bench_steps(*memory.steps, n), repeats)
        del arrays  # native code read and wrote them until here
        return seconds

    def profile(self, *inputs: ArrayLike, repeats: int = 100, standalone: bool = False) -> Profile:
        """The time of each kernel inside the running model; with `standalone`, also of each one alone
        (`runtime.alone`).
        """
        memory, arrays = self._bound(inputs)
        seconds = _in_turns(lambda n: self._pool.profile_steps(*memory.steps, n), repeats)
        alone = None
        if standalone:  # a kernel that works in place now reads what it wrote: its time is that of any other values
            cache = detect(self.threads).l3_bytes
            alone = [
                seconds_alone(self.image, n, record, self._pool, repeats, cache)
                for n, record in enumerate(memory.records)
            ]
        del arrays
        peak = calibrated(detect(self.threads)).peak_gflops * self.threads
        return profile_of(self.name, self.threads, self.image.calls, seconds, peak, alone)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file that `load_compiled` reads, on this machine or one like it. Raises UserError."""
        save(path, self.image, self.weights)

    def _checked(self, inputs: Sequence[ArrayLike]) -> list[Array]:
        ports = self.image.inputs
        if len(inputs) != len(ports):
            wanted = ", ".join(repr(port) for port in ports) or "no inputs"
            raise UserError(f"{self.name} takes {len(ports)} arrays ({wanted}), not {len(inputs)}")
        return [checked(port, x) for port, x in zip(ports, inputs)]

    def _run(self, arrays: Sequence[Array], outputs: Sequence[Array]) -> None:
        try:
            memory = self._idle.pop()
        except IndexError:
            memory = _CallMemory(self._tables, self._pool.threads)
        memory.bind(arrays, outputs)
        self._pool.run_steps(*memory.steps)
        self._idle.append(memory)

    def _bound(self, inputs: Sequence[ArrayLike]) -> tuple[_CallMemory, list[Array]]:
        """Memory that stays bound to inputs and new outputs, and those."""
        arrays = self._checked(inputs)
        results = [new_array(port) for port in self.outputs]
        memory = _CallMemory(self._tables, self._pool.threads)
        memory.bind(arrays, results)
        return memory, [*arrays, *results]

    def _known(self) -> str:
        return ", ".join(repr(port.name) for port in self.inputs) or "none"

    def __repr__(self) -> str:
        steps, threads = len(self.image.calls), self.threads
        return (
            f"<model {self.name}, {steps} kernel{'s' if steps != 1 else ''}, {threads} "
            f"thread{'s' if threads != 1 else ''}>"
        )


def _in_turns(timed: Callable[[int], NDArray[np.float64]], repeats: int) -> NDArray[np.float64]:
    """The seconds of so many runs, after a few that do not count. Each turn is short: Ctrl-C is heard between them."""
    if not isinstance(repeats, (int, np.integer)) or not 1 <= repeats <= MOST_REPEATS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"repeats is {repeats!r}; give a whole number from 1 to {MOST_REPEATS:,}")
    warm = timed(WARM_UP_RUNS)
    turn = max(1, int(TURN_SECONDS * WARM_UP_RUNS / max(float(warm.sum()), 1e-6)))
    return np.concatenate([timed(min(turn, repeats - done)) for done in range(0, repeats, turn)])


def load_compiled(path: str | os.PathLike[str], threads: int | None = None) -> Model:
    """A model that `save` wrote.

    It is native code: load only what you trust. Raises UserError for any other or a damaged file.
    """
    return Model(*load(path, threads))


def pack(image: Image, constants: Constants, pool: Pool | None = None) -> Bytes:
    """The weights of an image: each step's constants packed by its kernel, or copied, to where its addresses say.

    `constants(n)` is asked for step n just before it is packed, and only where something is to be packed: raw weights
    can be freed one after another. Steps of one kernel with the same addresses are packed once.
    """
    verify(image)
    pool = pool or shared_pool(image.threads)
    weights = aligned(image.weights_bytes)
    base = weights.ctypes.data
    codes: dict[int, Code] = {}
    done: set[tuple[int, tuple[int, ...]]] = set()
    # The largest first: what packing needs for a moment comes on top of little.
    for n in sorted(range(len(image.calls)), key=lambda n: -_constant_bytes(image.kernels[image.calls[n].kernel])):
        step, artifact = image.calls[n], image.kernels[image.calls[n].kernel]
        places = {
            k: base + a.offset for k, a in enumerate(step.addresses) if a is not None and artifact.buffers[k].is_kept
        }
        what = (step.kernel, tuple(places.values()))
        if not places or what in done:
            continue
        done.add(what)
        if step.kernel not in codes:
            codes[step.kernel] = Code(artifact.code)
        pack_constants(codes[step.kernel], artifact, constants(n), places, pool)
    return weights


def _constant_bytes(artifact: Artifact) -> int:
    return sum(buffer.nbytes for buffer in artifact.buffers if buffer.scope is Scope.CONSTANT)


class _Tables:
    """What all calls of a model share: code, and the pointer table and step records but for a call's own addresses.

    The pointer tables of all steps stand one after another in `pointers`; inputs and outputs are lists of (entry, byte
    offset).
    """

    def __init__(self, image: Image, weights: int) -> None:
        self.image = image
        self.codes = [Code(kernel.code) for kernel in image.kernels]
        self.extents = [np.array(kernel.extents, np.int64) for kernel in image.kernels]
        self.stride = scratch_stride(image.scratch_bytes)
        self.inputs: list[list[tuple[int, int]]] = [[] for _ in image.inputs]
        self.outputs: list[list[tuple[int, int]]] = [[] for _ in image.outputs]
        pointers: list[int] = []
        in_arena: list[int] = []
        self.records = np.zeros((len(image.calls), STEP_WORDS), np.int64)
        entries = [code.address(ENTRY) for code in self.codes]
        for n, step in enumerate(image.calls):
            extents = self.extents[step.kernel]
            self.records[n] = entries[step.kernel], 8 * len(pointers), 0, self.stride, extents.ctypes.data, len(extents)
            self._add(step, pointers, in_arena, weights)
        self.pointers = np.array(pointers, np.int64)
        self.in_arena = np.array(in_arena, np.int64)

    def _add(self, step: KernelCall, pointers: list[int], in_arena: list[int], weights: int) -> None:
        for address in step.addresses:
            at = len(pointers)
            match address:
                case None:
                    pointers.append(0)
                    continue
                case _:
                    pointers.append(address.offset)
            match address.space:
                case "input":
                    self.inputs[address.index].append((at, address.offset))
                case "output":
                    self.outputs[address.index].append((at, address.offset))
                case "arena":
                    in_arena.append(at)
                case "weights":
                    pointers[at] += weights


class _CallMemory:
    """One call's arena, scratch, pointer table and step records."""

    def __init__(self, tables: _Tables, threads: int) -> None:
        arena_bytes = whole_lines(tables.image.arena_bytes) + SLACK_BYTES
        nbytes = arena_bytes + threads * tables.stride
        try:
            self.block = aligned(nbytes)
        except MemoryError as error:
            raise RunError(
                f"there is no memory for a run of {tables.image.name}: {nbytes:,} bytes between its kernels"
            ) from error
        self.arena = self.block[: tables.image.arena_bytes]
        self._tables = tables  # the code and the extents that the records point to
        self._pointers = tables.pointers.copy()
        self._pointers[tables.in_arena] += self.block.ctypes.data
        self._entries = self._pointers.data  # quicker to write one entry through
        self.records = tables.records.copy()
        self.records[:, 1] += self._pointers.ctypes.data
        self.records[:, 2] = self.block.ctypes.data + arena_bytes
        self.steps = (self.records.ctypes.data, len(self.records))

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Point to the caller's arrays, who keeps them alive."""
        entries = self._entries
        for places, arrays in ((self._tables.inputs, inputs), (self._tables.outputs, outputs)):
            for uses, array in zip(places, arrays):
                address = address_of(array)
                for at, offset in uses:
                    entries[at] = address + offset


def _usable(image: Image, weights: Bytes) -> Bytes:
    """The weights as kernels can read them, copied only if they do not start at a multiple of `ALIGN_BYTES`."""
    if weights.dtype != np.uint8 or weights.ndim != 1 or len(weights) < image.weights_bytes:
        raise UserError(
            f"{image.name} needs {image.weights_bytes} bytes of weights, not {weights.dtype}{list(weights.shape)}"
        )
    if weights.flags.c_contiguous and weights.ctypes.data % ALIGN_BYTES == 0:
        return weights
    copy = aligned(image.weights_bytes)
    copy[:] = weights[: image.weights_bytes]
    return copy
