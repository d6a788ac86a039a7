"""A single kernel on a device: code, constants, and workspace for each call; every buffer is its own allocation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from stormdrop.device.artifact import Artifact
from stormdrop.device.device import Argument, Array, BoundCall, BufferPlace, Device, InputArray, OutputArray, Recording
from stormdrop.target.structures import Scope


class PreparedKernel:
    """A loaded kernel with its constants in the device's memory.

    Raises BuildError for code of another machine, KeyError or ValueError for constants that are missing or mis-sized.
    """

    def __init__(self, artifact: Artifact, constants: Mapping[str, Array], device: Device) -> None:
        self.artifact, self._device = artifact, device
        self.kernel = device.load(artifact)
        self._kept = [BufferPlace(device.allocate(b.nbytes)) if b.is_kept else None for b in artifact.buffers]
        self.kernel.prepare(constants, self._kept)

    def call(self) -> BoundCall:
        """Returns a call with its own workspace; array indices follow the order of the artifact's input and output
        buffers.
        """
        inputs, outputs = count(), count()
        arguments: list[Argument] = []
        for buffer, kept in zip(self.artifact.buffers, self._kept):
            match buffer.scope:
                case Scope.INPUT:
                    arguments.append(InputArray(next(inputs)))
                case Scope.OUTPUT:
                    arguments.append(OutputArray(next(outputs)))
                case Scope.WORKSPACE:
                    arguments.append(BufferPlace(self._device.allocate(buffer.nbytes)))
                case _:
                    arguments.append(kept)
        return BoundCall(self.kernel, tuple(arguments))

    def record(self) -> Recording:
        return self._device.record([self.call()])
