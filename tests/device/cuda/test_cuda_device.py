"""The CUDA device above a fake driver: errors, lifetimes, graphs and their parameters, arrays of other libraries."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.base.errors import BuildError, RunError, UserError
from stormdrop.device.artifact import Artifact, Launch
from stormdrop.device.cuda.context import CudaContext, DeviceArray
from stormdrop.device.cuda.detect import described, unfit_gpu
from stormdrop.device.cuda.driver import CudaError, Driver, NoGpu
from stormdrop.device.cuda.recording import BATCH_RUNS, CudaRecording
from stormdrop.device.device import BoundCall, BufferPlace, InputArray, OutputArray
from stormdrop.model.fixed_model import FixedModel
from stormdrop.model.image import Port
from stormdrop.model.weights import pack
from tests.support.adder import adder as host_adder
from tests.support.fake_cuda import FakeCuda, FakeCudaDevice, as_launched
from tests.support.images import Draft


@cache
def adder() -> Artifact:
    return as_launched(host_adder())


def adding(device: FakeCudaDevice) -> CudaRecording:
    return device.record([BoundCall(device.load(adder()), (InputArray(0), OutputArray(0)))])


def on_gpu(device: FakeCudaDevice, *values: int) -> DeviceArray:
    data = np.array(values, np.int64)
    memory = device.adopt(data.view(np.uint8))
    return DeviceArray(memory.address, data.shape, data.dtype, memory)


def value_of(array: DeviceArray) -> int:
    return int(ctypes.c_int64.from_address(array.address).value)


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_an_error_has_cudas_name_and_text_and_says_whether_it_is_final() -> None:
    device = FakeCudaDevice()
    device.library.fail("cuMemAlloc_v2", 1)
    with pytest.raises(CudaError, match="cuMemAlloc_v2 failed: CUDA_ERROR_INVALID_VALUE") as caught:
        device.allocate(100)
    assert not caught.value.is_sticky
    device.library.fail("cuEventSynchronize", 700)
    recording = adding(device)
    recording.bind([np.array([1])], [np.array([0])])
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS") as caught:
        recording.run()
    assert caught.value.is_sticky
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        device.allocate(100)


def test_too_little_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="GPU 0"):
        FakeCudaDevice().allocate(1 << 40)


def test_code_of_another_gpu_and_too_much_shared_memory_are_build_errors() -> None:
    device = FakeCudaDevice()
    with pytest.raises(BuildError, match="NO_BINARY_FOR_GPU"):
        plain_load(device)(Artifact(b"\x7fELF", (), (1,), launches=(Launch(1, 32, 0),)))
    with pytest.raises(BuildError, match="phase0 cannot be launched"):
        device.load(Artifact(b".version", (), (1,), launches=(Launch(1, 32, 1 << 20),)))
    with pytest.raises(BuildError, match="for a CPU"):
        plain_load(device)(Artifact(b"", (), ()))


def plain_load(device: FakeCudaDevice) -> Callable[[Artifact], object]:
    """As a device without the fake's knowledge of CPU code."""
    return super(FakeCudaDevice, device).load


@pytest.mark.parametrize(("code", "told"), [(100, "it finds no GPU"), (3, "does not start: error 3")])
def test_a_driver_without_a_gpu_says_what_is_missing(code: int, told: str) -> None:
    library = FakeCuda()
    library.fail("cuInit", code)
    with pytest.raises(NoGpu, match=told):
        Driver(library)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="no GPU cuda:2; this process sees 1"):
        CudaContext(Driver(FakeCuda()), 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_is_told_what_is_wrong_and_frees_nothing() -> None:
    device = FakeCudaDevice()
    memory = device.allocate(64)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            device.allocate(64)
        except RunError as error:
            os.write(write, str(error).encode())
        calls = len(device.library.calls)
        del memory
        gc.collect()
        os.write(write, b"; freed" if len(device.library.calls) > calls else b"; kept")
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told:
        text = told.read()
    assert "is a fork of a process that uses CUDA" in text
    assert text.endswith("; kept")


def test_calls_of_a_thread_leave_no_context_behind() -> None:
    device = FakeCudaDevice()
    found: list[int] = []

    def work() -> None:
        device.allocate(64).write(0, np.zeros(64, np.uint8))
        found.append(len(device.library._stack))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [0]


# ---- lifetimes ------------------------------------------------------------------------------------------------------


def test_everything_is_freed_with_the_last_reference() -> None:
    device = FakeCudaDevice()
    recording = adding(device)
    recording.bind([np.array([1])], [np.array([0])])
    recording.run()
    recording.bench(20)
    assert device.library.blocks
    assert device.library.live
    del recording
    gc.collect()
    assert device.library.blocks == {}
    assert device.library.live == []


def test_a_recording_keeps_its_kernels_and_memory() -> None:
    device = FakeCudaDevice()
    counter = BufferPlace(device.adopt(np.zeros(8, np.uint8)))
    recording = device.record([BoundCall(device.load(adder()), (counter, OutputArray(0)))])
    del counter
    gc.collect()
    y = np.array([0])
    recording.bind([], [y])
    recording.run()
    assert y[0] == 1


# ---- graphs ---------------------------------------------------------------------------------------------------------


def test_other_arrays_on_the_gpu_change_parameters_and_make_no_graph() -> None:
    device = FakeCudaDevice()
    recording = adding(device)
    for value in (5, 7, 9):
        x, y = on_gpu(device, value), on_gpu(device, 0)
        recording.bind([x], [y])
        recording.run()
        assert value_of(y) == value + 1
    calls = device.library.calls
    assert calls.count("cuGraphInstantiateWithFlags") == 1
    assert calls.count("cuGraphExecKernelNodeSetParams") == 2
    assert calls.count("cuGraphAddMemcpyNode") == 0
    assert calls.count("cuMemHostAlloc") == 0


def test_the_same_arrays_again_change_nothing() -> None:
    device = FakeCudaDevice()
    recording, x, y = adding(device), on_gpu(device, 5), on_gpu(device, 0)
    for _ in range(3):
        recording.bind([x], [y])
        recording.run()
    assert "cuGraphExecKernelNodeSetParams" not in device.library.calls


def test_arrays_on_the_host_are_copied_in_the_graph_and_outputs_only_out() -> None:
    device = FakeCudaDevice()
    recording = adding(device)
    for value in (5, 7):
        y = np.array([0])
        recording.bind([np.array([value])], [y])
        recording.run()
        assert y[0] == value + 1
    assert device.library.calls.count("cuGraphAddMemcpyNode") == 2
    assert device.library.calls.count("cuGraphInstantiateWithFlags") == 1


def test_arrays_on_both_sides_may_be_mixed() -> None:
    device = FakeCudaDevice()
    recording, y = adding(device), np.array([0])
    recording.bind([on_gpu(device, 41)], [y])
    recording.run()
    assert y[0] == 42


def test_a_run_in_a_callers_stream_does_not_wait() -> None:
    device = FakeCudaDevice()
    recording, x, y = adding(device), on_gpu(device, 5), on_gpu(device, 0)
    recording.bind([x], [y])
    recording.run_on(77)
    assert device.library.launched_in == [77]
    assert value_of(y) == 0
    recording.bind([y], [x])
    recording.run_on(78)
    assert "cuStreamWaitEvent" in device.library.calls
    device.context.synchronise()
    assert (value_of(x), value_of(y)) == (7, 6)


def test_short_runs_are_timed_several_at_once() -> None:
    device = FakeCudaDevice()
    recording = adding(device)
    recording.bind([np.array([1])], [np.array([0])])
    seconds = recording.bench(2 * BATCH_RUNS + 3)
    assert seconds.shape == (2 * BATCH_RUNS + 3,)
    assert len(set(seconds[:BATCH_RUNS])) == 1
    assert device.library.calls.count("cuGraphInstantiateWithFlags") == 2
    assert device.library.calls.count("cuGraphLaunch") == 2 + 3


def test_neighbours_of_a_rotation_are_timed_together_and_each_runs_once() -> None:
    device = FakeCudaDevice()
    kernel = device.load(adder())
    counters = [BufferPlace(device.adopt(np.zeros(8, np.uint8))) for _ in range(35)]
    recording = device.record([BoundCall(kernel, (c, c)) for c in counters])
    recording.bind([], [])
    assert recording.each(range(3, 33)).shape == (30,)
    assert recording.each(range(33, 33)).shape == (0,)
    counts = [int(c.memory.read(0, 8).view(np.int64)[0]) for c in counters]
    assert counts == [0] * 3 + [1] * 30 + [0] * 2
    assert device.library.calls.count("cuGraphLaunch") == 4  # 3 to 10, 10 to 20, 20 to 30, 30 to 33


def test_a_graph_that_was_used_recently_stays_when_others_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.device.cuda.recording.KEPT_GRAPHS", 2)
    device = FakeCudaDevice()
    kernel = device.load(adder())
    counters = [BufferPlace(device.adopt(np.zeros(8, np.uint8))) for _ in range(3)]
    recording = device.record([BoundCall(kernel, (c, c)) for c in counters])
    recording.bind([], [])
    for call in (0, 1, 0, 2, 0):
        recording.each(range(call, call + 1))
    assert device.library.calls.count("cuGraphInstantiateWithFlags") == 3


def test_memory_of_another_device_is_refused() -> None:
    device = FakeCudaDevice()
    with pytest.raises(TypeError, match="another device"):
        device.record([BoundCall(object(), ())])  # pyright: ignore[reportArgumentType]


# ---- targets --------------------------------------------------------------------------------------------------------


def test_a_gpu_is_described_by_its_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    context = FakeCudaDevice().context
    found = described(context)
    assert (found.name, found.architecture, found.multiprocessors) == ("NVIDIA H200", "sm_90", 132)
    assert found.shared_bytes_per_block == 227 << 10
    assert unfit_gpu("sm_90", context) is None
    for architecture in ("sm_80", "sm_100"):
        assert f"compiled for {architecture}" in (unfit_gpu(architecture, context) or "")
    monkeypatch.setattr(CudaContext, "architecture", "sm_75")
    with pytest.raises(NoGpu, match="is sm_75; kernels are built for sm_80"):
        described(context)


# ---- arrays of other libraries --------------------------------------------------------------------------------------


class _Tensor(ctypes.Structure):
    """DLManagedTensor, whose deleter is empty."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class Foreign:
    """An array of a library that speaks DLPack, on a GPU."""

    def __init__(self, memory: Any, array: Any, ordinal: int = 0) -> None:
        self.memory, self._ordinal = memory, ordinal
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        code = {"f": 2, "i": 0}[array.dtype.kind]
        at = ctypes.addressof
        self._tensor = _Tensor(
            memory.address, (2, ordinal), array.ndim, code, 8 * array.itemsize, 1, at(self._shape), at(self._strides)
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._ordinal

    def __dlpack__(self, stream: int | None = None) -> object:
        new: Any = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


def foreign(memory: Any, array: Any, ordinal: int = 0) -> Any:
    return Foreign(memory, array, ordinal)


@pytest.fixture
def model() -> FixedModel:
    """y = x @ w on a fake GPU."""
    draft = Draft({"x": (4, 8)}, {"y": (4, 16)}, threads=1)
    names = {"A": draft.port("x"), "C": draft.port("y")}
    A, B = sd.tensor("A", (4, 8)), sd.tensor("B", (8, 16), constant=True)
    i, j, k = sd.axis(4), sd.axis(16), sd.reduce_axis(8)
    product = sd.Task([sd.compute("C", (i, j), sd.sum(A[i, k] * B[k, j], k))])
    draft.call(product, names, {"B": np.eye(8, 16, dtype=np.float32)})
    image = draft.image()
    return FixedModel(image, pack(image, lambda n: draft.constants[n]), FakeCudaDevice())


def uploaded(model: FixedModel, array: Any) -> Any:
    return model._on.device.adopt(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def test_an_array_of_another_library_is_used_where_it_is(model: FixedModel) -> None:
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    y = model(foreign(uploaded(model, x), x))
    assert isinstance(y, DeviceArray)
    memory: Any = y.owner
    found = memory.read(0, y.nbytes).view(np.float32).reshape(y.shape)
    np.testing.assert_array_equal(found, x @ np.eye(8, 16, dtype=np.float32))
    device: Any = model._on.device
    assert "cuGraphAddMemcpyNode" not in device.library.calls
    again = model.run({"x": foreign(uploaded(model, x), x)})
    assert isinstance(again["y"], DeviceArray)


def test_an_array_that_does_not_fit_is_refused(model: FixedModel) -> None:
    x = np.zeros((4, 8), np.float32)
    memory = uploaded(model, np.zeros(64, np.float32))
    cases = {
        "has shape \\(4, 7\\)": foreign(memory, x[:, :7].copy()),
        r"has type float64; use x.astype\(np.float32\)": foreign(memory, x.astype(np.float64)),
        "is on GPU 1": foreign(memory, x, ordinal=1),
        "not C-contiguous": foreign(memory, np.zeros((4, 16), np.float32)[:, ::2]),
    }
    for told, given in cases.items():
        with pytest.raises(UserError, match=told):
            model(given)
    with pytest.raises(UserError, match=r"out= for y.* must be on the GPU"):
        model(foreign(memory, x), out=np.zeros((4, 16), np.float32))


def test_numpy_arrays_give_numpy_arrays(model: FixedModel) -> None:
    x = np.ones((4, 8), np.float32)
    assert isinstance(model(x), np.ndarray)
    np.testing.assert_array_equal(model(x.astype(np.float64)), model(x))
    with pytest.raises(UserError, match=r"use x.astype\(np.float32\)"):
        model(x.astype(np.int32))
    assert model.inputs == (Port("x", (4, 8), "f32"),)


# ---- CPU users ------------------------------------------------------------------------------------------------------


def test_nothing_of_cuda_is_imported_for_a_cpu() -> None:
    code = """
import sys, numpy as np, stormdrop as sd
A, i = sd.tensor("A", (8,)), sd.axis(8)
sd.build(sd.Task([sd.compute("B", (i,), A[i] + 1.0)]), threads=1)(np.zeros(8, np.float32))
import stormdrop.compiler.compile, stormdrop.measure.worker, stormdrop.cli.main
print([name for name in sys.modules if name.startswith("stormdrop.device.cuda")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
