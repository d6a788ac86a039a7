"""CUDA graphs, made node by node: each node runs after the node added before it.

    graph = CudaGraph(context)
    node = graph.kernel(function, launch, pointers)
    graph.copy_in(memory.address, pinned.address, nbytes)
    ready = graph.instantiate()
    ready.launch(stream)
    ready.set_pointers(node, other_pointers)      # for later launches

A graph is launched as a whole, in some two microseconds; between two of its kernels lies one microsecond.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from stormdrop.device.artifact import Launch
from stormdrop.device.cuda.context import CudaContext, CudaEvent

_HOST, _GPU = 1, 2  # CUmemorytype


class KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS, version 1."""

    _fields_ = (
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("params", c_void_p),
        ("extra", c_void_p),
    )


class _CopySide(ctypes.Structure):
    _fields_ = (
        ("x_bytes", c_size_t),
        ("y", c_size_t),
        ("z", c_size_t),
        ("lod", c_size_t),
        ("kind", c_int),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("reserved", c_void_p),
        ("pitch", c_size_t),
        ("height", c_size_t),
    )


class CopyParams(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = (
        ("source", _CopySide),
        ("destination", _CopySide),
        ("width_bytes", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    )


@dataclass(frozen=True, slots=True, eq=False)
class KernelNode:
    """A kernel in a graph: everything that setting its parameters again needs."""

    handle: c_void_p
    function: c_void_p
    launch: Launch


class CudaGraph:
    """A chain of nodes."""

    def __init__(self, context: CudaContext) -> None:
        self.context = context
        self.handle = context.handle_of("cuGraphCreate", 0)
        context.owned(self, "cuGraphDestroy", self.handle)
        self._last: c_void_p | None = None
        self._held: list[object] = []

    def kernel(self, function: c_void_p, launch: Launch, pointers: Sequence[int]) -> KernelNode:
        """Adds a launch of a function whose parameters are pointers."""
        params, *_held = _kernel_params(function, launch, pointers)
        return KernelNode(self._add("cuGraphAddKernelNode", byref(params)), function, launch)

    def copy_in(self, destination: int, source: int, nbytes: int) -> None:
        """Adds a copy from page-locked memory to the GPU."""
        self._copy(_CopySide(kind=_HOST, host=source), _CopySide(kind=_GPU, device=destination), nbytes)

    def copy_out(self, destination: int, source: int, nbytes: int) -> None:
        """Adds a copy from the GPU to page-locked memory."""
        self._copy(_CopySide(kind=_GPU, device=source), _CopySide(kind=_HOST, host=destination), nbytes)

    def event(self) -> CudaEvent:
        """Adds a point that records its time in every launch."""
        event = CudaEvent(self.context)
        self._held.append(event)
        self._add("cuGraphAddEventRecordNode", event.handle)
        return event

    def instantiate(self) -> ReadyGraph:
        return ReadyGraph(self)

    def _copy(self, source: _CopySide, destination: _CopySide, nbytes: int) -> None:
        for side in (source, destination):
            side.pitch, side.height = nbytes, 1
        params = CopyParams(source, destination, nbytes, 1, 1)
        self._add("cuGraphAddMemcpyNode", byref(params), self.context.handle)

    def _add(self, function: str, *parameters: Any) -> c_void_p:
        node = c_void_p()
        before = None if self._last is None else byref(self._last)
        self.context.call(function, byref(node), self.handle, before, 0 if before is None else 1, *parameters)
        self._last = node
        return node


class ReadyGraph:
    """A graph that can be launched; a launch waits for the launch before it."""

    def __init__(self, graph: CudaGraph) -> None:
        self.graph, self._context = graph, graph.context
        self.handle = self._context.handle_of("cuGraphInstantiateWithFlags", graph.handle, 0)
        self._context.owned(self, "cuGraphExecDestroy", self.handle)

    def launch(self, stream: c_void_p | int | None) -> None:
        self._context.call("cuGraphLaunch", self.handle, stream)

    def set_pointers(self, node: KernelNode, pointers: Sequence[int]) -> None:
        """Sets other parameters for later launches."""
        params, *_held = _kernel_params(node.function, node.launch, pointers)
        self._context.call("cuGraphExecKernelNodeSetParams", self.handle, node.handle, byref(params))


def _kernel_params(function: c_void_p, launch: Launch, pointers: Sequence[int]) -> tuple[KernelParams, object, object]:
    """Returns the parameters, and the memory to which they point; CUDA copies all of it."""
    values = (c_uint64 * max(1, len(pointers)))(*pointers)
    base = ctypes.addressof(values)
    table = (c_void_p * max(1, len(pointers)))(*(base + 8 * k for k in range(len(pointers))))
    grid, block = (c_uint * 3)(launch.blocks, 1, 1), (c_uint * 3)(launch.threads, 1, 1)
    params = KernelParams(function, grid, block, launch.shared_bytes, ctypes.addressof(table), None)
    return params, values, table
