"""A GPU as a device: kernels are cubins or PTX, constants are packed on the host and uploaded."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from ctypes import byref, c_int, c_void_p
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from stormdrop.base.errors import BuildError
from stormdrop.device.arrays import aligned
from stormdrop.device.artifact import Artifact, Group, Launch
from stormdrop.device.cuda.callers import is_on_gpu, run_in_place
from stormdrop.device.cuda.context import CudaContext, CudaMemory, CudaStream
from stormdrop.device.cuda.driver import BAD_CODE, CudaError, open_driver
from stormdrop.device.cuda.graph import CudaGraph, ReadyGraph
from stormdrop.device.cuda.recording import CudaRecording, PhaseLaunch
from stormdrop.device.device import Array, BoundCall, BufferPlace, Bytes, own
from stormdrop.device.host_device import HostMemory, HostPacker, host_device

PLAIN_SHARED_BYTES = 48 << 10
"""The most dynamic shared memory that needs no explicit request."""
WARM_SECONDS = 0.02
"""The seconds of work until the clocks are up: an idle H200 runs at 345 MHz."""
COOL_SECONDS = 0.5
"""Without work, after which the clocks may be down again."""

_REGISTERS, _DYNAMIC_SHARED_BYTES = 4, 8  # CUfunction_attribute
_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES = 5, 6  # CUjit_option
_LOG_BYTES = 8192

SPIN = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry phase0()
{
	.reg .b64 %rd<4>;
	.reg .pred %p<2>;
	mov.u64 %rd1, %globaltimer;
	add.s64 %rd2, %rd1, 1000000;
LOOP:
	mov.u64 %rd3, %globaltimer;
	setp.lt.u64 %p1, %rd3, %rd2;
	@%p1 bra LOOP;
	ret;
}
"""
"""PTX that keeps a multiprocessor busy for a millisecond."""
EMPTY = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry phase0()\n{\n\tret;\n}\n"


class CudaDevice:
    """One GPU."""

    def __init__(self, context: CudaContext) -> None:
        self.context = context
        self._active_at = -COOL_SECONDS

    def allocate(self, nbytes: int) -> CudaMemory:
        return CudaMemory(self.context, nbytes)

    def adopt(self, data: Bytes) -> CudaMemory:
        memory = self.allocate(data.nbytes)
        memory.write(0, data)
        return memory

    def load(self, artifact: Artifact) -> CudaKernel:
        return CudaKernel(artifact, self)

    def record(self, calls: Sequence[BoundCall], groups: Sequence[Group] = ()) -> CudaRecording:
        bound = [(own(call.kernel, CudaKernel).launches, call.arguments) for call in calls]
        return CudaRecording(bound, calls, self.context, self)

    def is_own_memory(self, value: object) -> bool:
        return is_on_gpu(value)

    def run_in_place(self, recording: object, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        assert isinstance(recording, CudaRecording)
        return run_in_place(recording, inputs, outputs, self.context)

    def warm_up(self) -> None:
        """Raises the clocks before a measurement."""
        if time.monotonic() - self._active_at > COOL_SECONDS:
            stream = CudaStream(self.context)
            ready = self._spinning
            began = time.monotonic()
            while time.monotonic() - began < WARM_SECONDS:
                ready.launch(stream.handle)
                stream.synchronise()
        self._active_at = time.monotonic()

    @cached_property
    def _spinning(self) -> ReadyGraph:
        graph = CudaGraph(self.context)
        self._spin = self.load(Artifact(SPIN.encode(), (), (1,), launches=(Launch(64, 128, 0),)))
        for function, launch in self._spin.launches:
            graph.kernel(function, launch, [])
        return graph.instantiate()

    def event_seconds(self) -> float:
        return self._event_seconds

    @cached_property
    def _event_seconds(self) -> float:
        self._empty = self.load(Artifact(EMPTY.encode(), (), (1,), launches=(Launch(1, 32, 0),)))
        (function, launch), stream = self._empty.launches[0], CudaStream(self.context)

        def seconds(kernels: int, events: int) -> float:
            """Returns the seconds of one kernel, if each of `events` events follows `kernels` kernels."""
            graph = CudaGraph(self.context)
            ends = [graph.event()]
            for _ in range(events):
                for _ in range(kernels):
                    graph.kernel(function, launch, [])
                ends.append(graph.event())
            ready = graph.instantiate()
            gaps: list[float] = []
            for _ in range(5):
                ready.launch(stream.handle)
                stream.synchronise()
                gaps += [a.seconds_until(b) / kernels for a, b in pairwise(ends)]
            return float(np.median(gaps))

        return max(0.0, seconds(1, 32) - seconds(32, 1))


@cache
def cuda_device(ordinal: int = 0) -> CudaDevice:
    """Returns GPU number `ordinal` of this process. Raises NoGpu."""
    return CudaDevice(CudaContext(open_driver(), ordinal))


class CudaKernel:
    """A kernel with loaded code. Raises BuildError for code that this GPU cannot run."""

    def __init__(self, artifact: Artifact, device: CudaDevice) -> None:
        self.artifact, self._context = artifact, device.context
        if not artifact.launches:
            raise BuildError("the kernel was built for a CPU, not for a GPU")
        self._module = self._load(artifact.code)
        self._context.owned(self, "cuModuleUnload", self._module)
        self.launches: tuple[PhaseLaunch, ...] = tuple(
            (self._function(f"phase{k}", launch), launch) for k, launch in enumerate(artifact.launches)
        )

    @property
    def registers(self) -> tuple[int, ...]:
        """The registers of a thread, by phase."""
        return tuple(self._attribute(function, _REGISTERS) for function, _ in self.launches)

    def prepare(self, constants: Mapping[str, Array], places: Sequence[BufferPlace | None]) -> None:
        """Packs constants on the host, then uploads them."""
        blocks = [place and aligned(b.nbytes) for b, place in zip(self.artifact.buffers, places)]
        on_host = [None if block is None else BufferPlace(HostMemory(block)) for block in blocks]
        HostPacker(self.artifact, host_device(1)).prepare(constants, on_host)
        for block, place in zip(blocks, places):
            if block is not None and place is not None:
                place.memory.write(place.offset, block)

    def _load(self, code: bytes) -> c_void_p:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        try:
            return self._context.handle_of("cuModuleLoadDataEx", code, 2, options, values)  # ctypes adds PTX's NUL
        except CudaError as error:
            if error.code not in BAD_CODE:
                raise
            reason = " ".join(log.value.decode(errors="replace").split())
            raise BuildError(
                f"GPU {self._context.ordinal} does not take the code: {error}; {reason}".strip("; ")
            ) from error

    def _function(self, name: str, launch: Launch) -> c_void_p:
        try:
            function = self._context.handle_of("cuModuleGetFunction", self._module, name.encode())
            if launch.shared_bytes > PLAIN_SHARED_BYTES:
                self._context.call("cuFuncSetAttribute", function, _DYNAMIC_SHARED_BYTES, launch.shared_bytes)
        except CudaError as error:
            if error.is_sticky:
                raise
            raise BuildError(f"{name} cannot be launched: {error}") from error
        return function

    def _attribute(self, function: c_void_p, attribute: int) -> int:
        value = c_int()
        self._context.call("cuFuncGetAttribute", byref(value), attribute, function)
        return value.value
