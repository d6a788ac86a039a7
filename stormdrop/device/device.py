"""The device interface: allocate memory, load kernels, record and run calls.

    kernel = device.load(artifact)                                   # buffers: input X, packed W, output Y
    weights = BufferPlace(device.allocate(artifact.buffers[1].nbytes))
    kernel.prepare({"w": w}, [None, weights, None])                  # phases at load write the packed constants
    recording = device.record([BoundCall(kernel, (InputArray(0), weights, OutputArray(0)))])
    recording.bind([x], [y])
    recording.run()                                                  # y is written

Single kernels, models, measuring and profiling use a device through these protocols only. A recording's representation
is private to the device: the host has a pointer table and a list of steps for its thread pool; a GPU has a graph.
Objects of one device cannot be passed to another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from stormdrop.device.artifact import Artifact, Group

_T = TypeVar("_T")
Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Seconds = NDArray[np.float64]


class Memory(Protocol):
    """A block of device memory, aligned to `ALIGN_BYTES`; freed with its last reference."""

    @property
    def nbytes(self) -> int: ...

    def write(self, offset: int, data: Bytes) -> None:
        """Copies bytes into the block, synchronously."""
        ...

    def read(self, offset: int, nbytes: int) -> Bytes:
        """Returns bytes of the block after all runs that have returned: a copy, or a view if the device allows it."""
        ...


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """A buffer in device memory, `offset` bytes from the beginning of the block."""

    memory: Memory
    offset: int = 0


@dataclass(frozen=True, slots=True)
class InputArray:
    """A buffer in the caller's input array `index`, `offset` bytes from the array's beginning."""

    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class OutputArray:
    """A buffer in the caller's output array `index`, `offset` bytes from the array's beginning."""

    index: int
    offset: int = 0


Argument = BufferPlace | InputArray | OutputArray | None
"""The location of one buffer of a call; None for a constant that only the load-time phases read."""


class LoadedKernel(Protocol):
    """An artifact with loaded code, ready to run. It may be used in any number of recordings."""

    @property
    def artifact(self) -> Artifact: ...

    def prepare(self, constants: Mapping[str, Array], places: Sequence[BufferPlace | None]) -> None:
        """Writes the constants that calls read to `places`: one per buffer, None if not `BufferSpec.is_kept`.

        The load-time phases compute packed constants from `constants`; all other constants are copied. The arrays are
        not needed afterwards. Raises KeyError for a missing constant, ValueError for a constant of another size.
        """
        ...


@dataclass(frozen=True, slots=True)
class BoundCall:
    """One call of a kernel: an argument for every buffer of its artifact."""

    kernel: LoadedKernel
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Account:
    """The division of the time of calls: seconds by run and call, the means over the threads of a device."""

    seconds: Seconds
    """The time from the end of the call before it to its own end, which is `late + busy + waiting`."""
    late: Seconds
    """The time until a thread began: it woke up, or left the call before."""
    busy: Seconds
    """The time of computing."""
    off: Seconds
    """The part of `busy` without a CPU: another program ran there."""

    @property
    def waiting(self) -> Seconds:
        """The time with nothing left to do, while other threads were computing."""
        return self.seconds - self.late - self.busy


def joined(accounts: Sequence[Account]) -> Account:
    """Joins the runs of several accounts of the same calls."""
    fields = ("seconds", "late", "busy", "off")
    return Account(*(np.concatenate([getattr(account, name) for account in accounts]) for name in fields))


def own(thing: object, kind: type[_T]) -> _T:
    """Returns an object of a device's own class. Raises TypeError for an object of another device."""
    if not isinstance(thing, kind):
        raise TypeError(f"{thing!r} is of another device")
    return thing


class Recording(Protocol):
    """A sequence of calls, run one after the other, and their scratch memory.

    One run at a time; another Python thread needs a recording of its own.
    """

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Sets the arrays that the next runs read and write: C-contiguous and aligned, kept alive by the caller.

        The host uses the arrays in place. A device with its own memory copies inputs in when a run begins, and outputs
        back before the run returns.
        """
        ...

    def run(self) -> None:
        """Runs all calls once, synchronously: outputs are written when this returns."""
        ...

    def bench(self, repeats: int) -> Seconds:
        """Returns the seconds of each of `repeats` runs, without copies of the caller's arrays; outputs are written."""
        ...

    def profile(self, repeats: int, calls: range | None = None) -> Seconds:
        """Returns seconds as `bench`, but indexed by run and call. With `calls`, only these calls are run."""
        ...

    def each(self, calls: range) -> Seconds:
        """Returns the seconds of some calls, each run once in their order, outputs written.

        If the clock of a device would disturb short calls, neighbours are timed together and have their mean.
        """
        ...

    def account(self, repeats: int, calls: range | None = None) -> Account:
        """Returns times as `profile`, divided by the activity of threads; a device without such data counts as busy all
        the time.
        """
        ...


class Device(Protocol):
    """Something that runs kernels. All methods may be called from any Python thread."""

    def allocate(self, nbytes: int) -> Memory:
        """Allocates an uninitialised block. Raises MemoryError."""
        ...

    def adopt(self, data: Bytes) -> Memory:
        """Returns a block that holds `data`, without a copy if the device can. The caller must not change
        `data` later.
        """
        ...

    def load(self, artifact: Artifact) -> LoadedKernel:
        """Loads an artifact's code. Raises BuildError for code of another machine."""
        ...

    def record(self, calls: Sequence[BoundCall], groups: Sequence[Group] = ()) -> Recording:
        """Records calls to be run. `groups` are phases of the calls that need no barrier between them.

        A device may nevertheless run these phases one after the other. Raises MemoryError.
        """
        ...
