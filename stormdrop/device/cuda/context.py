"""A GPU: its attributes, and its primary context, which all libraries of a process share.

A context belongs to the threads that have made it current. `with context:` does that for a block of code and restores
the previous context, so the caller's libraries are unaffected.

Blocks of memory: on a GPU, and on the host where its pages are locked, so that the GPU copies from and to them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_uint64, c_void_p
from enum import IntEnum
from typing import Any

import numpy as np

from stormdrop.base.errors import RunError, UserError
from stormdrop.device.arrays import address_of
from stormdrop.device.cuda.driver import OUT_OF_MEMORY, CudaError, Driver
from stormdrop.device.device import Bytes


class Attribute(IntEnum):
    """Attributes of a device, with the driver's numbers."""

    THREADS_PER_BLOCK = 1
    WARP_THREADS = 10
    CLOCK_KHZ = 13
    MULTIPROCESSORS = 16
    MEMORY_CLOCK_KHZ = 36
    MEMORY_BUS_BITS = 37
    L2_BYTES = 38
    THREADS_PER_MULTIPROCESSOR = 39
    MAJOR = 75
    MINOR = 76
    SHARED_BYTES_PER_MULTIPROCESSOR = 81
    REGISTERS_PER_MULTIPROCESSOR = 82
    SHARED_BYTES_PER_BLOCK = 97
    BLOCKS_PER_MULTIPROCESSOR = 106
    RESERVED_SHARED_BYTES = 111


class CudaContext:
    """The primary context of GPU `ordinal`, kept until the process ends."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        count = driver.count()
        if not 0 <= ordinal < count:
            raise UserError(f"there is no GPU cuda:{ordinal}; this process sees {count}")
        device, handle = c_int(), c_void_p()
        driver.call("cuDeviceGet", byref(device), ordinal)
        self._device = device.value
        driver.call("cuDevicePrimaryCtxRetain", byref(handle), self._device)
        self.handle = handle
        self.is_lost = False
        self._entered = threading.local()

    def __enter__(self) -> CudaContext:
        depth = getattr(self._entered, "depth", 0)
        if not depth:
            self.driver.call("cuCtxPushCurrent_v2", self.handle)
        self._entered.depth = depth + 1
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.depth -= 1
        if not self._entered.depth:
            with suppress(CudaError):  # after a sticky error this fails too, and hides the reason
                self.driver.call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a function in this context. Raises MemoryError, CudaError."""
        with self:
            try:
                self.driver.call(function, *arguments)
            except CudaError as error:
                self.is_lost |= error.is_sticky
                if error.code == OUT_OF_MEMORY:
                    raise MemoryError(f"GPU {self.ordinal} has not enough memory ({function})") from error
                raise

    def handle_of(self, function: str, *arguments: Any) -> c_void_p:
        """Returns the handle of an object that a function creates."""
        handle = c_void_p()
        self.call(function, byref(handle), *arguments)
        return handle

    def owned(self, owner: object, function: str, handle: c_void_p | c_uint64) -> None:
        """Arranges for `function` to free a handle when `owner` is collected.

        Not at exit, when the driver frees everything, and not in a fork, which does not own it.
        """
        weakref.finalize(owner, self._free, function, handle).atexit = False

    def _free(self, function: str, handle: c_void_p | c_uint64) -> None:
        if sys.is_finalizing() or self.driver.is_inherited or self.is_lost:
            return
        with suppress(CudaError, RunError):
            if function == "cuModuleUnload":  # a caller's stream may still run its kernels
                self.synchronise()
            self.call(function, handle)

    def synchronise(self) -> None:
        self.call("cuCtxSynchronize")

    def attribute(self, attribute: Attribute) -> int:
        value = c_int()
        self.driver.call("cuDeviceGetAttribute", byref(value), int(attribute), self._device)
        return value.value

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.driver.call("cuDeviceGetName", ctypes.cast(text, c_char_p), 256, self._device)
        return text.value.decode(errors="replace")

    @property
    def architecture(self) -> str:
        return f"sm_{self.attribute(Attribute.MAJOR)}{self.attribute(Attribute.MINOR)}"


class CudaStream:
    """A queue of work that does not wait for the default stream."""

    def __init__(self, context: CudaContext) -> None:
        self.context = context
        self.handle = context.handle_of("cuStreamCreate", 1)
        context.owned(self, "cuStreamDestroy_v2", self.handle)

    def synchronise(self) -> None:
        """Waits for the work; a fault of the work is raised here."""
        self.context.call("cuStreamSynchronize", self.handle)


class CudaEvent:
    """A point in a stream or graph that records the time at which it is reached."""

    def __init__(self, context: CudaContext) -> None:
        self.context = context
        self.handle = context.handle_of("cuEventCreate", 0)
        context.owned(self, "cuEventDestroy_v2", self.handle)

    def seconds_until(self, later: CudaEvent) -> float:
        milliseconds = ctypes.c_float()
        self.context.call("cuEventElapsedTime", byref(milliseconds), self.handle, later.handle)
        return milliseconds.value * 1e-3


class CudaMemory:
    """A block on a GPU, freed with its last reference. CUDA aligns it to 256 bytes."""

    def __init__(self, context: CudaContext, nbytes: int) -> None:
        """Raises MemoryError."""
        self.context, self.nbytes = context, nbytes
        address = c_uint64()
        if nbytes:
            context.call("cuMemAlloc_v2", byref(address), nbytes)
            context.owned(self, "cuMemFree_v2", address)
        self.address = address.value

    def write(self, offset: int, data: Bytes) -> None:
        self._check(offset, data.nbytes)
        if data.nbytes:
            data = np.ascontiguousarray(data)
            with self.context:
                self.context.call("cuMemcpyHtoD_v2", self.address + offset, address_of(data), data.nbytes)
                self.context.call("cuStreamSynchronize", None)  # a copy from pageable memory may still be under way

    def read(self, offset: int, nbytes: int) -> Bytes:
        """Returns a copy of a range."""
        self._check(offset, nbytes)
        data = np.empty(nbytes, np.uint8)
        if nbytes:
            self.context.call("cuMemcpyDtoH_v2", data.ctypes.data, self.address + offset, nbytes)
        return data

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """Sets every byte of a range."""
        self._check(offset, nbytes)
        if nbytes:
            with self.context:
                self.context.call("cuMemsetD8_v2", self.address + offset, value, nbytes)
                self.context.call("cuStreamSynchronize", None)

    def _check(self, offset: int, nbytes: int) -> None:
        if not 0 <= offset <= self.nbytes - nbytes:
            raise ValueError(f"{nbytes} bytes at {offset} are not within a block of {self.nbytes}")


class PinnedMemory:
    """A page-locked block on the host, `block` for NumPy."""

    def __init__(self, context: CudaContext, nbytes: int) -> None:
        """Raises MemoryError."""
        self.address = 0
        self.block: Bytes = np.zeros(0, np.uint8)
        if nbytes:
            handle = c_void_p()
            context.call("cuMemHostAlloc", byref(handle), nbytes, 1)  # 1: for every context
            context.owned(self, "cuMemFreeHost", handle)
            self.address = handle.value or 0
            self.block = np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(self.address))


class DeviceArray:
    """A C-contiguous array in the memory of GPU `ordinal`, of any owner; `owner` is kept alive."""

    def __init__(self, address: int, shape: Sequence[int], dtype: Any, owner: object = None, ordinal: int = 0) -> None:
        self.address, self.shape, self.dtype, self.owner = address, tuple(shape), np.dtype(dtype), owner
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.ordinal = ordinal

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The interface through which CuPy, Numba and PyTorch use the array without a copy."""
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3}
