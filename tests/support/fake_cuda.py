"""A stand-in for libcuda, whose GPU is this machine's CPU: for tests of everything above the driver.

Memory of the GPU is memory of the process, poisoned when it is allocated and when it is freed. A cubin is an object of
this machine, whose phases a launch runs one block after the other; PTX does nothing. Work is queued and runs when
somebody waits for it: whoever forgets to wait sees the poison. Calls without a current context fail, as do those with
handles that were never given or are gone. `fail` makes the next call of a function fail.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stormdrop.codegen import ENTRY
from stormdrop.codegen.llvm import Code
from stormdrop.device.arrays import aligned
from stormdrop.device.artifact import Artifact, Launch
from stormdrop.device.cuda.context import Attribute, CudaContext
from stormdrop.device.cuda.device import CudaDevice, CudaKernel
from stormdrop.device.cuda.driver import STICKY, Driver
from stormdrop.device.cuda.graph import CopyParams, KernelParams

Function = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, use_errno=False
)
Work = Callable[[], object]
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND = 1, 201, 400, 500
POISON = 0xFF
ERRORS = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    209: ("CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"),
    400: ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
}
H200 = {
    Attribute.THREADS_PER_BLOCK: 1024,
    Attribute.WARP_THREADS: 32,
    Attribute.CLOCK_KHZ: 1_980_000,
    Attribute.MULTIPROCESSORS: 132,
    Attribute.MEMORY_CLOCK_KHZ: 3_201_000,
    Attribute.MEMORY_BUS_BITS: 6144,
    Attribute.L2_BYTES: 60 << 20,
    Attribute.THREADS_PER_MULTIPROCESSOR: 2048,
    Attribute.MAJOR: 9,
    Attribute.MINOR: 0,
    Attribute.SHARED_BYTES_PER_MULTIPROCESSOR: 228 << 10,
    Attribute.REGISTERS_PER_MULTIPROCESSOR: 65536,
    Attribute.SHARED_BYTES_PER_BLOCK: 227 << 10,
    Attribute.BLOCKS_PER_MULTIPROCESSOR: 32,
    Attribute.RESERVED_SHARED_BYTES: 1024,
}
_WITHOUT_CONTEXT = ("init", "driver", "device", "geterror", "ctxpush", "ctxpop")


class _Module:
    """A host object, or PTX, which does nothing."""

    def __init__(self, code: bytes, artifact: Artifact | None) -> None:
        self.code = None if artifact is None else Code(code)
        self.artifact = artifact

    def launch(self, phase: int, blocks: int, pointers: Sequence[int]) -> None:
        if self.code is None or self.artifact is None:
            return
        table = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        scratch = aligned(self.artifact.scratch_bytes + 512)
        entry = Function(self.code.address(ENTRY))
        entry(ctypes.addressof(table), scratch.ctypes.data, phase, 0, blocks)


@dataclass(frozen=True, slots=True)
class _Function:
    module: _Module
    phase: int


class FakeCuda:
    """`calls` lists the functions that were called, without those that only make a context current."""

    def __init__(self, devices: int = 1, version: int = 13000) -> None:
        self.devices, self.version = devices, version
        self.attributes = dict(H200)
        self.calls: list[str] = []
        self.blocks: dict[int, Any] = {}
        self.launched_in: list[int | None] = []
        self.functions: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._lost = 0
        self._artifacts: dict[bytes, Artifact] = {}
        self._handles: dict[int, Any] = {}
        self._queue: list[Work] = []
        self._lock = threading.RLock()
        self._current = threading.local()

    def know(self, artifact: Artifact) -> None:
        """Code that modules may be made of; the driver sees the code only."""
        self._artifacts[artifact.code] = artifact

    def fail(self, function: str, code: int) -> None:
        """Let the next call of a function fail; a sticky error fails all later calls as well."""
        self._failures[function] = code

    @property
    def live(self) -> list[str]:
        """The kinds of everything that was made and not freed yet."""
        return sorted(type(thing).__name__ for thing in self._handles.values())

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        short = name.removeprefix("cu").removesuffix("_v2").lower()
        implementation = getattr(self, "_" + short)

        def call(*arguments: Any) -> int:
            with self._lock:
                if not short.startswith(("ctxp", "geterror")):
                    self.calls.append(name)
                code = self._failures.pop(name, 0) or (0 if short.startswith("geterror") else self._lost)
                if code in STICKY:
                    self._lost = code
                if code:
                    return code
                if not short.startswith(_WITHOUT_CONTEXT) and not self._stack:
                    return INVALID_CONTEXT
                return implementation(*arguments) or 0

        return call

    # ---- devices and contexts

    @property
    def _stack(self) -> list[int]:
        if not hasattr(self._current, "stack"):
            self._current.stack = []
        return self._current.stack

    def _init(self, flags: int) -> None: ...

    def _drivergetversion(self, out: Any) -> None:
        out._obj.value = self.version

    def _geterrorname(self, code: int, out: Any) -> None:
        out._obj.value = ERRORS[code][0].encode() if code in ERRORS else None

    def _geterrorstring(self, code: int, out: Any) -> None:
        out._obj.value = ERRORS[code][1].encode() if code in ERRORS else None

    def _devicegetcount(self, out: Any) -> None:
        out._obj.value = self.devices

    def _deviceget(self, out: Any, ordinal: int) -> None:
        out._obj.value = ordinal

    def _devicegetname(self, text: Any, size: int, device: int) -> None:
        ctypes.memmove(text, b"NVIDIA H200\0", 12)

    def _devicegetattribute(self, out: Any, attribute: int, device: int) -> None:
        out._obj.value = self.attributes[Attribute(attribute)]

    def _devicetotalmem(self, out: Any, device: int) -> None:
        out._obj.value = 139 << 30

    def _deviceprimaryctxretain(self, out: Any, device: int) -> None:
        out._obj.value = 1000 + device

    def _ctxpushcurrent(self, context: Any) -> None:
        self._stack.append(context.value)

    def _ctxpopcurrent(self, out: Any) -> None:
        out._obj.value = self._stack.pop()

    def _ctxsynchronize(self) -> None:
        self._drain()

    # ---- memory

    def _memgetinfo(self, free: Any, total: Any) -> None:
        free._obj.value = total._obj.value = 139 << 30

    def _memalloc(self, out: Any, nbytes: int) -> int:
        if nbytes > 1 << 32:
            return 2
        block = aligned(nbytes, 256)
        block.fill(POISON)
        self.blocks[block.ctypes.data] = block
        out._obj.value = block.ctypes.data
        return 0

    def _memfree(self, address: Any) -> int:
        self._drain()
        block = self.blocks.pop(address.value, None)
        if block is None:
            return INVALID_VALUE
        block.fill(POISON)
        return 0

    def _memhostalloc(self, out: Any, nbytes: int, flags: int) -> int:
        return self._memalloc(out, nbytes)

    def _memfreehost(self, address: Any) -> int:
        return self._memfree(address)

    def _memcpyhtod(self, destination: int, source: int, nbytes: int) -> int:
        return self._copied(destination, source, nbytes, on_gpu=destination)

    def _memcpydtoh(self, destination: int, source: int, nbytes: int) -> int:
        return self._copied(destination, source, nbytes, on_gpu=source)

    def _memsetd8(self, address: int, value: int, nbytes: int) -> int:
        if not self._is_allocated(address, nbytes):
            return INVALID_VALUE
        ctypes.memset(address, value, nbytes)
        return 0

    def _copied(self, destination: int, source: int, nbytes: int, on_gpu: int) -> int:
        if not self._is_allocated(on_gpu, nbytes):
            return INVALID_VALUE
        ctypes.memmove(destination, source, nbytes)
        return 0

    def _is_allocated(self, address: int, nbytes: int) -> bool:
        return any(begin <= address and address + nbytes <= begin + len(b) for begin, b in self.blocks.items())

    # ---- code

    def _moduleloaddataex(self, out: Any, code: bytes, count: int, options: Any, values: Any) -> int:
        if b".version" not in code and code not in self._artifacts:
            return 209
        out._obj.value = self._made(_Module(code, self._artifacts.get(code)))
        return 0

    def _moduleunload(self, module: Any) -> int:
        found = self._handles.get(module.value)
        for handle in [
            h for h, thing in self._handles.items() if isinstance(thing, _Function) and thing.module is found
        ]:
            del self._handles[handle]
        return self._gone(module)

    def _modulegetfunction(self, out: Any, module: Any, name: bytes) -> int:
        if not name.startswith(b"phase"):
            return NOT_FOUND
        out._obj.value = self._made(_Function(self._handles[module.value], int(name[5:])))
        return 0

    def _funcgetattribute(self, out: Any, attribute: int, function: Any) -> None:
        out._obj.value = {4: 40, 3: 0}[attribute]

    def _funcsetattribute(self, function: Any, attribute: int, value: int) -> int:
        return INVALID_VALUE if value > self.attributes[Attribute.SHARED_BYTES_PER_BLOCK] else 0

    # ---- streams and events

    def _streamcreate(self, out: Any, flags: int) -> None:
        out._obj.value = self._made(_Stream())

    def _streamdestroy(self, stream: Any) -> int:
        return self._gone(stream)

    def _streamsynchronize(self, stream: Any) -> None:
        if stream is not None:  # the default stream does not wait for the others
            self._drain()

    def _streamwaitevent(self, stream: Any, event: Any, flags: int) -> None: ...

    def _eventcreate(self, out: Any, flags: int) -> None:
        out._obj.value = self._made(_Event())

    def _eventdestroy(self, event: Any) -> int:
        return self._gone(event)

    def _eventrecord(self, event: Any, stream: Any) -> None:
        self._queue.append(self._handles[event.value].take)

    def _eventsynchronize(self, event: Any) -> None:
        self._drain()

    def _eventelapsedtime(self, out: Any, first: Any, last: Any) -> None:
        begin, end = self._handles[first.value], self._handles[last.value]
        out._obj.value = 1e3 * max(end.seconds - begin.seconds, 1e-7)

    # ---- graphs

    def _graphcreate(self, out: Any, flags: int) -> None:
        out._obj.value = self._made(_Graph())

    def _graphdestroy(self, graph: Any) -> int:
        return self._gone(graph)

    def _graphaddkernelnode(self, out: Any, graph: Any, before: Any, count: int, params: Any) -> int:
        return self._node(out, graph, before, self._kernel(params))

    def _graphaddmemcpynode(self, out: Any, graph: Any, before: Any, count: int, params: Any, context: Any) -> int:
        copy: CopyParams = params._obj
        source, destination, nbytes = copy.source, copy.destination, copy.width_bytes
        into = destination.device or destination.host
        start = source.device or source.host
        return self._node(out, graph, before, partial(ctypes.memmove, into, start, nbytes))

    def _graphaddeventrecordnode(self, out: Any, graph: Any, before: Any, count: int, event: Any) -> int:
        return self._node(out, graph, before, self._handles[event.value].take)

    def _graphinstantiatewithflags(self, out: Any, graph: Any, flags: int) -> None:
        out._obj.value = self._made(_Instance(dict(self._handles[graph.value].nodes)))

    def _graphexeckernelnodesetparams(self, instance: Any, node: Any, params: Any) -> int:
        nodes = self._handles[instance.value].nodes
        if node.value not in nodes:
            return INVALID_VALUE
        nodes[node.value] = self._kernel(params)
        return 0

    def _graphexecdestroy(self, instance: Any) -> int:
        return self._gone(instance)

    def _graphlaunch(self, instance: Any, stream: Any) -> None:
        self.launched_in.append(getattr(stream, "value", stream))
        self._queue += self._handles[instance.value].nodes.values()

    def _kernel(self, params: Any) -> Work:
        """The parameters are read now, as the driver does."""
        given: KernelParams = params._obj
        function: _Function = self._handles[given.func]
        module = function.module
        count = 0 if module.artifact is None else len(module.artifact.buffers)
        table = (ctypes.c_void_p * max(1, count)).from_address(given.params)
        pointers = [ctypes.c_uint64.from_address(table[k] or 0).value for k in range(count)]
        blocks = given.grid[0]
        return partial(module.launch, function.phase, blocks, pointers)

    def _node(self, out: Any, graph: Any, before: Any, work: Work) -> int:
        nodes = self._handles[graph.value].nodes
        if before is not None and before._obj.value not in nodes:
            return INVALID_VALUE
        out._obj.value = handle = 1 + len(nodes)
        nodes[handle] = work
        return 0

    def _drain(self) -> None:
        queue, self._queue = self._queue, []
        for work in queue:
            work()

    def _made(self, thing: object) -> int:
        handle = max(self._handles, default=4000) + 1
        self._handles[handle] = thing
        return handle

    def _gone(self, handle: Any) -> int:
        return 0 if self._handles.pop(handle.value, None) is not None else INVALID_HANDLE


class _Stream: ...


class _Event:
    def __init__(self) -> None:
        self.seconds = 0.0

    def take(self) -> None:
        self.seconds = time.perf_counter()


class _Graph:
    def __init__(self) -> None:
        self.nodes: dict[int, Work] = {}


class _Instance(_Graph):
    def __init__(self, nodes: dict[int, Work]) -> None:
        self.nodes = nodes


def as_launched(artifact: Artifact) -> Artifact:
    """A CPU's artifact as the fake GPU takes it: one block for every parallel unit."""
    launches = tuple(Launch(extent, 32, 0) for extent in artifact.extents)
    return replace(artifact, launches=launches, prepare_code=artifact.code)


class FakeCudaDevice(CudaDevice):
    """A `CudaDevice` on a fake driver that also takes a CPU's artifacts."""

    def __init__(self, library: FakeCuda | None = None) -> None:
        self.library = library or FakeCuda()
        super().__init__(CudaContext(Driver(self.library), 0))

    def load(self, artifact: Artifact) -> CudaKernel:
        launched = artifact if artifact.launches else as_launched(artifact)
        if b".version" not in artifact.code:
            self.library.know(launched)
        return super().load(launched)

    def warm_up(self) -> None: ...
