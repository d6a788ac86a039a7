"""Arrays of other libraries in a GPU's memory: PyTorch's, CuPy's, and any library with DLPack.

A C-contiguous array that begins at a multiple of 16 bytes is used in place, any other is copied by its own library. A
call runs in the stream that its library uses in the calling thread, and returns without waiting. Later work of the
caller in that stream comes after it. Outputs are arrays of the library of the inputs.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.device.arrays import Described, checked
from stormdrop.device.cuda.context import CudaContext, CudaMemory, DeviceArray
from stormdrop.device.cuda.recording import CudaRecording
from stormdrop.ir.dtypes import cast_text
from stormdrop.ir.expr import NUMPY, Dtype

ALIGNED_BYTES = 16
"""The widest access of a kernel."""
ON_CUDA = 2  # DLDeviceType
_NO_WAITING = -1  # __dlpack__: the stream is the caller's own


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_LETTERS = {0: "i", 1: "u", 2: "f", 6: "b"}  # DLDataTypeCode
_BFLOAT = 4


@dataclass(frozen=True, slots=True)
class GpuView:
    """An array on a GPU as DLPack describes it; `owner` keeps its memory. Strides are in elements."""

    address: int
    ordinal: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: object

    @property
    def is_plain(self) -> bool:
        """Kernels can use the array in place."""
        expected = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides)):
            if n > 1 and stride != expected:
                return False
            expected *= n
        return self.address % ALIGNED_BYTES == 0


def is_on_gpu(value: object) -> bool:
    """Returns whether `value` is an array in a GPU's memory."""
    ask = getattr(value, "__dlpack_device__", None)
    return isinstance(value, DeviceArray) or (ask is not None and int(ask()[0]) == ON_CUDA)


def viewed(value: Any) -> GpuView:
    """Returns a view of an array. Raises UserError if its library does not export it."""
    if isinstance(value, DeviceArray):
        strides = [1] * len(value.shape)
        for k in reversed(range(len(value.shape) - 1)):
            strides[k] = strides[k + 1] * value.shape[k + 1]
        return GpuView(value.address, value.ordinal, value.shape, tuple(strides), value.dtype, value)
    try:
        capsule = value.__dlpack__(stream=_NO_WAITING)
    except (RuntimeError, TypeError, BufferError) as error:  # PyTorch's tensors that require a gradient
        raise UserError(f"an array on a GPU cannot be used: {error}") from error
    get: Any = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(get(capsule, b"dltensor"))  # a DLManagedTensor begins with it
    shape = tuple(tensor.shape[k] for k in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[k] for k in range(tensor.ndim))
    else:
        strides = tuple(int(np.prod(shape[k + 1 :], dtype=np.int64)) for k in range(tensor.ndim))
    dtype = np.dtype(NUMPY["bf16"] if tensor.code == _BFLOAT else f"{_LETTERS.get(tensor.code, 'V')}{tensor.bits // 8}")
    # A capsule without a new owner frees the tensor when it is collected: until then it keeps the memory.
    return GpuView((tensor.data or 0) + tensor.byte_offset, tensor.device_id, shape, strides, dtype, (value, capsule))


class ArrayLibrary(Protocol):
    """The functions of one library that create arrays."""

    def empty(self, shape: tuple[int, ...], dtype: Dtype, ordinal: int) -> Any: ...
    def plain(self, value: Any) -> Any:
        """Returns a C-contiguous copy."""
        ...

    def cast_text(self, dtype: Dtype) -> str:
        """Returns the expression that converts an array `x` to this element type."""
        ...

    def stream(self, ordinal: int) -> int | None:
        """Returns the handle of the calling thread's stream; None if it is unknown."""
        ...


class _Torch:
    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def empty(self, shape: tuple[int, ...], dtype: Dtype, ordinal: int) -> Any:
        kind = getattr(self._torch, np.dtype(NUMPY[dtype]).name)  # both call it float32
        return self._torch.empty(shape, dtype=kind, device=f"cuda:{ordinal}")

    def plain(self, value: Any) -> Any:
        return value.detach().clone(memory_format=self._torch.contiguous_format)

    def cast_text(self, dtype: Dtype) -> str:
        return f"x.to(torch.{np.dtype(NUMPY[dtype]).name})"

    def stream(self, ordinal: int) -> int:
        return self._torch.cuda.current_stream(ordinal).cuda_stream


class _Cupy:
    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def empty(self, shape: tuple[int, ...], dtype: Dtype, ordinal: int) -> Any:
        with self._cupy.cuda.Device(ordinal):
            return self._cupy.empty(shape, NUMPY[dtype])

    def plain(self, value: Any) -> Any:
        return value.copy(order="C")

    def cast_text(self, dtype: Dtype) -> str:
        return cast_text(dtype)

    def stream(self, ordinal: int) -> int:
        return self._cupy.cuda.get_current_stream().ptr


class _Own:
    """The substitute for an unknown library: memory of ours; a call waits for all earlier work, and for its own end."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context

    def empty(self, shape: tuple[int, ...], dtype: Dtype, ordinal: int) -> DeviceArray:
        kind = np.dtype(NUMPY[dtype])
        memory = CudaMemory(self._context, int(np.prod(shape, dtype=np.int64)) * kind.itemsize)
        return DeviceArray(memory.address, shape, kind, memory, ordinal)

    def plain(self, value: Any) -> Any:
        raise UserError(f"{type(value).__name__} on a GPU is not C-contiguous and aligned; copy it before the call")

    def cast_text(self, dtype: Dtype) -> str:
        return cast_text(dtype)

    def stream(self, ordinal: int) -> None:
        self._context.synchronise()


def library_of(values: Sequence[object], context: CudaContext) -> ArrayLibrary:
    """Returns the library of the first array that is on a GPU; it is imported already."""
    first = next(value for value in values if is_on_gpu(value))
    match type(first).__module__.partition(".")[0]:
        case "torch":
            return _Torch(sys.modules["torch"])
        case "cupy":
            return _Cupy(sys.modules["cupy"])
        case _:
            return _Own(context)


def run_in_place(
    recording: CudaRecording,
    inputs: Sequence[tuple[Described, Any]],
    outputs: Sequence[tuple[Described, Any]],
    context: CudaContext,
) -> list[Any]:
    """Runs a recording on arrays of which some are on the GPU; returns the outputs, and creates an output given as
    None.

    Raises UserError for arrays of another shape, type or GPU.
    """
    ordinal = context.ordinal
    library = library_of([value for _, value in (*inputs, *outputs)], context)
    sources = [_usable(t, value, "input", library, ordinal) for t, value in inputs]
    results = [library.empty(t.shape, t.dtype, ordinal) if value is None else value for t, value in outputs]
    sinks: list[tuple[Any, GpuView]] = []
    for (t, _), result in zip(outputs, results):
        if not is_on_gpu(result):
            raise UserError(f"out= for {t!r} must be on the GPU, as inputs are")
        view = _fitting(t, viewed(result), "out", library, ordinal)
        target = result if view.is_plain else library.empty(t.shape, t.dtype, ordinal)
        sinks.append((target, view if view.is_plain else viewed(target)))
    recording.bind(sources, [_as_array(view) for _, view in sinks])
    stream = library.stream(ordinal)
    if stream is None:
        recording.run()
    else:
        recording.run_on(stream)
    for result, (target, _) in zip(results, sinks):
        if target is not result:
            result[...] = target
    return results


def _usable(t: Described, value: Any, what: str, library: ArrayLibrary, ordinal: int) -> Any:
    """Returns an array that a recording can bind: an array of the host, or a GPU's array that kernels can use
    in place.
    """
    if not is_on_gpu(value):
        return checked(t, value)
    view = _fitting(t, viewed(value), what, library, ordinal)
    return _as_array(view if view.is_plain else viewed(library.plain(value)))


def _fitting(t: Described, view: GpuView, what: str, library: ArrayLibrary, ordinal: int) -> GpuView:
    if view.ordinal != ordinal:
        raise UserError(f"{what} for {t!r} is on GPU {view.ordinal}; the model is on GPU {ordinal}")
    if view.shape != t.shape:
        raise UserError(f"{what} for {t!r} has shape {view.shape}; it must be {t.shape}")
    if view.dtype != np.dtype(NUMPY[t.dtype]):
        raise UserError(f"{what} for {t!r} has type {view.dtype}; use {library.cast_text(t.dtype)}")
    return view


def _as_array(view: GpuView) -> DeviceArray:
    return DeviceArray(view.address, view.shape, view.dtype, view.owner, view.ordinal)
