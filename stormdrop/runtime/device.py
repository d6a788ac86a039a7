"""What a device must be able to do: hold memory, load kernels, run recorded calls of them.

    kernel = device.load(artifact)                                   # buffers: input X, packed W, output Y
    weights = BufferPlace(device.allocate(artifact.buffers[1].nbytes))
    kernel.prepare({"w": w}, [None, weights, None])                  # phases at load write the packed constants
    recording = device.record([BoundCall(kernel, (InputArray(0), weights, OutputArray(0)))])
    recording.bind([x], [y])
    recording.run()                                                  # y is written

Kernels alone, models, measuring and profiling use a device through these protocols only. How calls are recorded (the
host keeps a table of pointers and a list of steps for its thread pool; a GPU would capture a graph) is the device's
private matter. Objects of one device are not understood by another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stormdrop.runtime.artifact import Artifact

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Seconds = NDArray[np.float64]


class Memory(Protocol):
    """A block of the device's memory, which begins at a multiple of `ALIGN_BYTES`; it is freed with its last
    reference.
    """

    @property
    def nbytes(self) -> int: ...

    def write(self, offset: int, data: Bytes) -> None:
        """Copy bytes into the block; they are there when this returns."""
        ...

    def read(self, offset: int, nbytes: int) -> Bytes:
        """Bytes of the block, as all runs that have returned left them: a copy, or a view where that costs nothing."""
        ...


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Where a buffer begins in the device's memory; `offset` is in bytes."""

    memory: Memory
    offset: int = 0


@dataclass(frozen=True, slots=True)
class InputArray:
    """A buffer in the caller's input array of this number, `offset` bytes from its beginning."""

    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class OutputArray:
    """A buffer in the caller's output array of this number, `offset` bytes from its beginning."""

    index: int
    offset: int = 0


Argument = BufferPlace | InputArray | OutputArray | None
"""Where a buffer of a call is; None for constants that are read at load only."""


class LoadedKernel(Protocol):
    """An artifact whose code is ready to run. It may be used in any number of recordings."""

    @property
    def artifact(self) -> Artifact: ...

    def prepare(self, constants: Mapping[str, Array], places: Sequence[BufferPlace | None]) -> None:
        """Write the constants that calls read (`BufferSpec.is_kept`) to their places, one for each of its buffers.

        Packed ones are computed by the phases at load from `constants`, the others copied from there. The arrays are
        not needed afterwards. Raises KeyError for a constant that is missing, ValueError for one of another size.
        """
        ...


@dataclass(frozen=True, slots=True)
class BoundCall:
    """One call of a kernel: an argument for every buffer of its artifact."""

    kernel: LoadedKernel
    arguments: tuple[Argument, ...]


class Recording(Protocol):
    """Calls that are run together, each after the one before it has ended, and the scratch memory they need.

    One run at a time; another Python thread needs a recording of its own.
    """

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Say which arrays the next runs read and write: C-contiguous and aligned, kept alive by the caller.

        The host uses them where they are. A device with memory of its own copies inputs to it when a run begins, and
        outputs back before the run returns.
        """
        ...

    def run(self) -> None:
        """Run all calls once. When this returns, the outputs are written: a device with queues waits for them here."""
        ...

    def bench(self, repeats: int) -> Seconds:
        """The seconds of each of so many runs, without the time to copy the caller's arrays; outputs are written."""
        ...

    def profile(self, repeats: int, calls: range | None = None) -> Seconds:
        """As `bench`, but of the single calls: seconds by run and call. With `calls`, only those are run."""
        ...


class Device(Protocol):
    """Something that runs kernels. All methods may be called from any Python thread."""

    def allocate(self, nbytes: int) -> Memory:
        """A block of any content. Raises MemoryError."""
        ...

    def adopt(self, data: Bytes) -> Memory:
        """A block that holds these bytes, in the same memory where the device can use it. They do not change later."""
        ...

    def load(self, artifact: Artifact) -> LoadedKernel:
        """Raises BuildError for code of another machine."""
        ...

    def record(self, calls: Sequence[BoundCall]) -> Recording:
        """Make calls ready to be run. Raises MemoryError."""
        ...
