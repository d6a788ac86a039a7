"""NVIDIA's driver library, libcuda, through ctypes: located at run time, every call checked.

    driver = open_driver()                        # raises NoGpu with a remedy if there is none
    count = c_int()
    driver.call("cuDeviceGetCount", byref(count))

A call that fails raises `CudaError` with CUDA's name and text for the reason. After a *sticky* error (an illegal
address, a fault in a kernel) every later call in the process fails as well. Only a new process can use the GPU again.
CUDA does not survive a fork: the child's first call raises.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from stormdrop.base.errors import RunError, UserError

LIBRARY = "libcuda.so.1"


class NoGpu(UserError):
    """The error for the absence of a usable GPU; the message has the reason and the remedy."""


class CudaError(RunError):
    """A call of the driver that failed."""

    def __init__(self, function: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{function} failed: {name} ({text})")
        self.function, self.code, self.name, self.text = function, code, name, text

    @property
    def is_sticky(self) -> bool:
        """No later call in this process can succeed."""
        return self.code in STICKY


OUT_OF_MEMORY = 2
NO_DEVICE = 100
BAD_CODE = (200, 209, 218, 220, 221, 222, 223)
"""Error numbers for code that the GPU cannot run: an invalid image, code of another architecture, or PTX that is
invalid or too new.
"""
STICKY = frozenset((214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 999))
"""ECC errors, illegal addresses, time-outs, traps and faults of kernels, the unknown."""

_HANDLE = POINTER(c_void_p)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_HANDLE, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_HANDLE,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (_HANDLE, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemsetD8_v2": (c_uint64, ctypes.c_ubyte, c_size_t),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuModuleLoadDataEx": (_HANDLE, c_char_p, c_uint, c_void_p, c_void_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_HANDLE, c_void_p, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuStreamCreate": (_HANDLE, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (_HANDLE, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuGraphCreate": (_HANDLE, c_uint),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphAddKernelNode": (_HANDLE, c_void_p, c_void_p, c_size_t, c_void_p),
    "cuGraphAddMemcpyNode": (_HANDLE, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    "cuGraphAddEventRecordNode": (_HANDLE, c_void_p, c_void_p, c_size_t, c_void_p),
    "cuGraphInstantiateWithFlags": (_HANDLE, c_void_p, c_uint64),
    "cuGraphExecKernelNodeSetParams": (c_void_p, c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphLaunch": (c_void_p, c_void_p),
}
"""The functions that are used, with the types of their parameters. Driver 11.4 has all of them."""


class Driver:
    """The driver library, initialised. `library` has the functions as attributes: a `CDLL`, or a substitute."""

    def __init__(self, library: Any) -> None:
        self._library, self._owner = library, os.getpid()
        code = library.cuInit(0)
        if code == NO_DEVICE:
            raise NoGpu(
                "the NVIDIA driver is installed, but it finds no GPU: see `nvidia-smi`, and CUDA_VISIBLE_DEVICES"
            )
        if code:
            name, text = self._error_texts(code)
            raise NoGpu(f"the NVIDIA driver does not start: {name} ({text}); see `nvidia-smi`")
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        self.version = _version(version.value)
        """The newest CUDA that the driver runs."""

    @property
    def is_inherited(self) -> bool:
        """This process is a fork of the process that opened the driver."""
        return os.getpid() != self._owner

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a function of the library. Raises CudaError; RunError in a forked process."""
        if self.is_inherited:
            raise RunError(
                "this process is a fork of a process that uses CUDA, and CUDA does not work there: start processes "
                "with multiprocessing's 'spawn', or compile and load models after the fork"
            )
        code = getattr(self._library, function)(*arguments)
        if code:
            raise CudaError(function, code, *self._error_texts(code))

    def count(self) -> int:
        """Returns the number of GPUs that this process may use."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return count.value

    def _error_texts(self, code: int) -> tuple[str, str]:
        """Returns CUDA's name and text for an error."""
        texts: list[str] = []
        for function, unknown in (("cuGetErrorName", f"error {code}"), ("cuGetErrorString", "unknown to this driver")):
            text = c_char_p()
            getattr(self._library, function)(code, byref(text))
            texts.append(text.value.decode(errors="replace") if text.value else unknown)
        return texts[0], texts[1]


@cache
def _library() -> Any:
    """Raises OSError."""
    return ctypes.CDLL(LIBRARY)


@cache
def driver_version() -> tuple[int, int] | None:
    """Returns the newest CUDA that the driver of this machine runs; None if there is no driver. It need not be
    started.
    """
    try:
        library = _library()
    except OSError:
        return None
    version = c_int()
    return None if library.cuDriverGetVersion(byref(version)) else _version(version.value)


def _version(number: int) -> tuple[int, int]:
    """Returns the version of a number: 13020 is 13.2."""
    return number // 1000, number % 1000 // 10


@cache
def open_driver() -> Driver:
    """Opens the driver of this machine. Raises NoGpu."""
    try:
        library = _library()
    except OSError as error:
        raise NoGpu(
            f"there is no NVIDIA driver here ({LIBRARY} is not found): install it, or start the container with its GPUs"
            " (docker run --gpus all); to compile for a GPU that is elsewhere, name its architecture: cuda:sm_90"
        ) from error
    missing = [name for name in _FUNCTIONS if not hasattr(library, name)]
    if missing:
        raise NoGpu(f"the NVIDIA driver is too old, it lacks {missing[0]}: install one for CUDA 11.4 or newer")
    for name, kinds in _FUNCTIONS.items():
        getattr(library, name).argtypes = kinds
    return Driver(library)
