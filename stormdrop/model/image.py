"""A compiled model as data: kernels in order, and where each of their pointers points.

An `Image` with its weights is everything a run needs; it holds no address, no graph and no schedule, so it can be
written to a file. Memory is in four spaces: the caller's input and output arrays, the arena (one per call; liveness is
already planned), and the weights (one read-only block, packed when the model was compiled).

Invariant: every output is written by some step, and a step reads only what inputs, weights and steps before it hold.
Iterations of a group of phases touch nothing that another iteration of the group writes.

`verify` checks before a run that each address is in its buffer's kind of memory and in bounds, and that each output is
written. Two properties are left to the memory plan and to `builder.grouping`: calls that share arena bytes run at
different times, and iterations of a group are independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.codec import LARGEST, Amount, Range, Row, Size
from stormdrop.base.errors import UserError
from stormdrop.device.artifact import Artifact, BufferSpec, Group, problem_of, single_groups
from stormdrop.device.cpus import MOST_THREADS
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.ir.shape import dimensions_text
from stormdrop.target import ALIGN_BYTES, Surroundings
from stormdrop.target.gpu import GPU_TRIPLE
from stormdrop.target.structures import Scope

Space = Literal["input", "output", "arena", "weights"]


@dataclass(frozen=True, slots=True)
class Port(Row):
    """An input or output of a model, with the user's name for it."""

    name: str
    shape: tuple[Size, ...]
    dtype: Dtype

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"

    @property
    def nbytes(self) -> int:
        return ITEMSIZE[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class OpenPort(Port):
    """An input or output with open dimensions, which are -1 in `shape` and have names in `dimensions`.

    `dimensions` is None if the number of dimensions is unknown.
    """

    shape: tuple[int, ...] = field(init=False)
    dimensions: tuple[Size | str, ...] | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(d if isinstance(d, int) else -1 for d in self.dimensions or ()))

    @property
    def open_dimensions(self) -> tuple[str, ...]:
        return tuple(d for d in self.dimensions or () if isinstance(d, str))

    @property
    def named_dimensions(self) -> tuple[str, ...]:
        """The open dimensions with names of the model's file."""
        texts = dimensions_text(self.name, self.dimensions or ())
        return tuple(d for d, text in zip(self.dimensions or (), texts) if isinstance(d, str) and d == text)

    def __repr__(self) -> str:
        inside = "…" if self.dimensions is None else ", ".join(dimensions_text(self.name, self.dimensions))
        return f"{self.name}: {self.dtype}[{inside}]"


@dataclass(frozen=True, slots=True)
class Address(Row):
    """A place in a space: the index of an input or output, and an offset in bytes."""

    space: Space
    index: Size
    offset: Size


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel call: an address for every buffer of its artifact.

    A constant that only load-time phases read has the address None. `label`, `shapes` and `node`, the main ONNX node,
    are for people.
    """

    kernel: Size
    addresses: tuple[Address | None, ...]
    label: str
    digest: str  # of the task
    flops: Amount
    nbytes: Size  # the least traffic of the call
    id: str = ""
    """The number of its task in `Partition.tasks`; empty for a copy between two tasks."""
    shapes: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A model for one kind of machine and one number of threads. For a GPU, `threads` are the multiprocessors of the
    target; code runs with any number of multiprocessors.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    kernels: tuple[Artifact, ...]
    calls: tuple[KernelCall, ...]
    arena_bytes: Size
    weights_bytes: Size
    threads: Annotated[int, Range(1, MOST_THREADS)]
    triple: str
    cpu: str
    features: str
    groups: tuple[Group, ...] = ()
    """The phases of the calls in groups without inner barriers; empty: every phase is a group of its own."""

    @property
    def extents(self) -> list[tuple[int, ...]]:
        """The extents of the phases, by call."""
        return [self.kernels[call.kernel].extents for call in self.calls]

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """The phases of all calls in groups."""
        return self.groups or single_groups(self.extents)

    @property
    def is_for_gpu(self) -> bool:
        return self.triple == GPU_TRIPLE

    @property
    def units(self) -> str:
        """The parallel units, for people."""
        return self.cpu if self.is_for_gpu else f"{self.threads} thread{'s' if self.threads != 1 else ''}"

    @property
    def scratch_bytes(self) -> int:
        """The scratch bytes of a thread."""
        return max((k.scratch_bytes for k in self.kernels), default=0)

    @property
    def surroundings(self) -> Surroundings:
        """The model around each kernel."""
        return Surroundings(self.weights_bytes, self.arena_bytes)

    def checked_weights(self, weights: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the bytes of an array that are the image's weights. Raises UserError for too few bytes, and for other
        arrays than contiguous bytes.
        """
        is_usable = weights.dtype == np.uint8 and weights.ndim == 1 and weights.flags.c_contiguous
        if not is_usable or len(weights) < self.weights_bytes:
            raise UserError(
                f"{self.name} needs {self.weights_bytes} bytes of weights, not {weights.dtype}{list(weights.shape)}"
            )
        return weights[: self.weights_bytes]


MOST_DIMENSIONS = 32
_SPACES = {
    Scope.INPUT: ("input", "output", "arena", "weights"),
    Scope.OUTPUT: ("output", "arena"),
    Scope.CONSTANT: ("weights",),
    Scope.PACKED: ("weights",),
    Scope.WORKSPACE: ("arena",),
}
_WRITTEN = (Scope.OUTPUT, Scope.WORKSPACE, Scope.PACKED)
"""The scopes of written buffers: every unit of a parallel phase writes an element in such a buffer."""


def verify(image: Image) -> None:
    """Raises UserError that names the step and the buffer."""
    for ports in (image.inputs, image.outputs):
        names = [port.name for port in ports]
        if len(set(names)) < len(names):
            raise UserError(f"{image.name}: two inputs or two outputs have one name: {', '.join(names)}")
        for port in ports:
            # Also without its zeros: NumPy refuses strides that overflow, even the strides of an empty array.
            nbytes = ITEMSIZE[port.dtype] * math.prod(n for n in port.shape if n)
            if len(port.shape) > MOST_DIMENSIONS or nbytes > LARGEST:
                raise UserError(f"{image.name}: {port!r} is no array that NumPy can hold")
    for k, kernel in enumerate(image.kernels):
        if not kernel.code:
            raise UserError(f"{image.name}: kernel {k} has no code")
        elements = sum(b.elements for b in kernel.buffers if b.scope in _WRITTEN)
        if (most := max((*kernel.extents, *kernel.prepare_extents), default=0)) > max(1, elements):
            raise UserError(f"{image.name}: kernel {k} writes {elements} elements, in {most} parallel units")
    written: set[int] = set()
    for n, step in enumerate(image.calls):
        where = f"{image.name}: step {n} ({step.label})"
        if not 0 <= step.kernel < len(image.kernels):
            raise UserError(f"{where}: there is no kernel {step.kernel}")
        buffers = image.kernels[step.kernel].buffers
        if len(step.addresses) != len(buffers):
            raise UserError(f"{where}: {len(step.addresses)} addresses for {len(buffers)} buffers")
        for buffer, address in zip(buffers, step.addresses):
            problem = _problem(image, buffer, address)
            if problem:
                raise UserError(f"{where}: {buffer.scope} {buffer.name}: {problem}")
            if address is not None and address.space == "output" and buffer.scope is Scope.OUTPUT:
                written.add(address.index)
    problem = problem_of(image.extents, image.groups) if image.groups else ""
    if problem:
        raise UserError(f"{image.name}: {problem}")
    for k, port in enumerate(image.outputs):
        if port.nbytes and k not in written:
            raise UserError(f"{image.name}: no step writes the output {port!r}")


def _problem(image: Image, buffer: BufferSpec, address: Address | None) -> str:
    if address is None:
        return "" if buffer.scope in (Scope.CONSTANT, Scope.PACKED) and not buffer.resident else "it has no address"
    if address.space not in _SPACES.get(buffer.scope, ()):
        return f"it cannot be in the space {address.space!r}"
    ports = {"input": image.inputs, "output": image.outputs}.get(address.space)
    if ports is not None:
        if not 0 <= address.index < len(ports):
            return f"there is no {address.space} {address.index}"
        size = ports[address.index].nbytes
    elif address.index:
        return f"there is only one block of {address.space}"
    else:
        size = image.arena_bytes if address.space == "arena" else image.weights_bytes
    # An array with gaps between its elements reaches further; its view is not known here.
    if not 0 <= address.offset <= size - buffer.nbytes:
        return f"{buffer.nbytes} bytes at {address.offset} are not within the {size} there are"
    align = ALIGN_BYTES if buffer.scope in (Scope.PACKED, Scope.WORKSPACE) else ITEMSIZE[buffer.dtype]
    return f"its offset {address.offset} is no multiple of {align}" if address.offset % align else ""
