"""Blocks of memory: on a GPU, and on the host where its pages are locked, so that the GPU copies from and to them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_uint64, c_void_p
from typing import Any

import numpy as np

from stormdrop.device.arrays import address_of
from stormdrop.device.cuda.context import CudaContext
from stormdrop.device.device import Bytes


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
