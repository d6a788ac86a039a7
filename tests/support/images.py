"""Images written by hand: tasks called in order on addresses that the test chooses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from numpy.typing import NDArray

from stormdrop.builder.building import build_artifact
from stormdrop.device.artifact import Artifact
from stormdrop.device.host import detect
from stormdrop.device.host_device import HostDevice, HostMemory
from stormdrop.device.pool.pool import Pool, shared_pool
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.ir.tensor import Task
from stormdrop.model.fixed_model import FixedModel
from stormdrop.model.image import Address, Image, KernelCall, Port
from stormdrop.model.weights import pack
from stormdrop.space.default import default_schedule
from stormdrop.target import whole_lines
from stormdrop.target.structures import Scope

Array = NDArray[Any]


@cache
def _artifact(digest: str, threads: int, task: Task) -> Artifact:
    target = detect(threads)
    return build_artifact(task, default_schedule(task, target), target)


class Draft:
    """An image in the making. Arena memory is never used twice, unless the test gives one address twice."""

    def __init__(
        self,
        inputs: Mapping[str, tuple[int, ...]],
        outputs: Mapping[str, tuple[int, ...]],
        threads: int = 2,
        dtype: Dtype = "f32",
        name: str = "tiny",
    ) -> None:
        self.name, self.threads = name, threads
        self.inputs = tuple(Port(name, shape, dtype) for name, shape in inputs.items())
        self.outputs = tuple(Port(name, shape, dtype) for name, shape in outputs.items())
        self.kernels: dict[str, tuple[int, Artifact]] = {}
        self.calls: list[KernelCall] = []
        self.constants: list[Mapping[str, Array]] = []
        self.arena_bytes = self.weights_bytes = 0

    def port(self, name: str) -> Address:
        for k, port in enumerate(self.inputs):
            if port.name == name:
                return Address("input", k, 0)
        return Address("output", [port.name for port in self.outputs].index(name), 0)

    def arena(self, nbytes: int) -> Address:
        at, self.arena_bytes = self.arena_bytes, self.arena_bytes + whole_lines(nbytes)
        return Address("arena", 0, at)

    def weights(self, nbytes: int) -> Address:
        at, self.weights_bytes = self.weights_bytes, self.weights_bytes + whole_lines(nbytes)
        return Address("weights", 0, at)

    def call(
        self, task: Task, places: Mapping[str, Address], constants: Mapping[str, Array] | None = None, label: str = ""
    ) -> Address:
        """The address of the task's (only) output, in the arena unless `places` says otherwise."""
        (output,) = task.outputs
        number, artifact = self.kernels.setdefault(
            task.digest, (len(self.kernels), _artifact(task.digest, self.threads, task))
        )
        result = places.get(output.name) or self.arena(output.size * ITEMSIZE[output.dtype])
        addresses: list[Address | None] = []
        for buffer in artifact.buffers:
            if buffer.scope in (Scope.INPUT, Scope.OUTPUT):
                addresses.append(result if buffer.scope is Scope.OUTPUT else places[buffer.name])
            elif buffer.scope is Scope.WORKSPACE:
                addresses.append(self.arena(buffer.nbytes))
            else:
                addresses.append(self.weights(buffer.nbytes) if buffer.is_kept else None)
        self.calls.append(
            KernelCall(number, tuple(addresses), label or task.name, task.digest, task.flops, task.minimal_bytes)
        )
        self.constants.append(constants or {})
        return result

    def image(self) -> Image:
        target = detect(self.threads)
        return Image(
            self.name,
            self.inputs,
            self.outputs,
            tuple(artifact for _, artifact in self.kernels.values()),
            tuple(self.calls),
            self.arena_bytes,
            self.weights_bytes,
            self.threads,
            target.triple,
            target.cpu,
            target.features,
        )

    def model(self) -> FixedModel:
        image = self.image()
        return FixedModel(image, pack(image, lambda n: self.constants[n]), WatchedDevice(shared_pool(self.threads)))


class WatchedDevice(HostDevice):
    """This machine; it remembers the memory that it gave."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.given: list[HostMemory] = []

    def allocate(self, nbytes: int) -> HostMemory:
        self.given.append(super().allocate(nbytes))
        return self.given[-1]


def poisoned(model: FixedModel) -> None:
    """Fill all working memory of the calls so far with bytes that are NaN in any float."""
    device = model._on.device
    assert isinstance(device, WatchedDevice)
    assert device.given
    for memory in device.given:
        memory.block.fill(0xFF)
