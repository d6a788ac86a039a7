"""What every device promises (`device.device`). A new one is added to `DEVICES`."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop.builder.building import build_artifact
from stormdrop.device.artifact import Artifact
from stormdrop.device.device import BoundCall, BufferPlace, Device, InputArray, OutputArray
from stormdrop.device.host import detect
from stormdrop.device.host_device import HostDevice
from stormdrop.device.pool.pool import shared_pool
from stormdrop.device.rotation import Rotation
from stormdrop.model.fixed_model import FixedModel
from stormdrop.model.prepared import PreparedKernel
from stormdrop.model.weights import pack
from stormdrop.operators import catalogue
from stormdrop.operators.winograd import winograd_conv2d
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.target import ALIGN_BYTES, whole_lines
from stormdrop.target.machine import Target
from stormdrop.target.structures import Scope
from tests.support.adder import adder
from tests.support.distant_device import DistantDevice
from tests.support.fake_cuda import FakeCudaDevice
from tests.support.images import Draft

Array = NDArray[Any]
N, K, M = 13, 29, 37
DEVICES: dict[str, Callable[[], Device]] = {
    "host, 1 thread": lambda: HostDevice(shared_pool(1)),
    "host, 2 threads": lambda: HostDevice(shared_pool(2)),
    "distant": DistantDevice,
    "CUDA, with a fake driver": FakeCudaDevice,
}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device:
    return DEVICES[request.param]()


def normal(*shape: int, seed: int = 5) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def layer(n: int, k: int, m: int) -> sd.Task:
    """Y = relu(X @ W + b): W is packed, b stays as it is."""
    X, W, b = sd.tensor("X", (n, k)), sd.tensor("W", (k, m), constant=True), sd.tensor("b", (m,), constant=True)
    i, j, q = sd.axis(n), sd.axis(m), sd.reduce_axis(k)
    product = sd.compute("P", (i, j), sd.sum(X[i, q] * W[q, j], q))
    i, j = sd.axis(n), sd.axis(m)
    return sd.Task([sd.compute("Y", (i, j), sd.relu(product[i, j] + b[j]))], name="layer")


@cache
def dense() -> Artifact:
    return build_artifact(layer(N, K, M), None, detect(1))


def schedules(task: sd.Task, target: Target) -> Iterator[Schedule]:
    """One of each sketch."""
    rng = np.random.default_rng(1)
    for sketch in sketches(task, target):
        for point in sketch.sample_legal(1, rng):
            yield sketch.schedule(point)


WEIGHTS = {"W": normal(K, M, seed=1), "b": normal(M, seed=2)}


def right(x: Array) -> Array:
    return np.maximum(x @ WEIGHTS["W"] + WEIGHTS["b"], 0)


def close(found: Array, wanted: Array) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def empty() -> Array:
    return np.full((N, M), np.nan, np.float32)


# ---- memory -----------------------------------------------------------------------------------------------------


def test_bytes_that_were_written_are_read_and_their_neighbours_are_left_alone(device: Device) -> None:
    memory = device.allocate(1000)
    memory.write(0, np.full(1000, 7, np.uint8))
    memory.write(100, np.arange(50, dtype=np.uint8))
    assert memory.nbytes == 1000
    np.testing.assert_array_equal(memory.read(99, 52), [7, *range(50), 7])


@pytest.mark.parametrize("shift", [0, 1])
def test_adopted_bytes_are_there_wherever_they_begin(device: Device, shift: int) -> None:
    data = np.arange(200, dtype=np.uint8)[shift:]
    memory = device.adopt(data)
    np.testing.assert_array_equal(memory.read(0, memory.nbytes), data)


def test_memory_without_bytes_is_memory(device: Device) -> None:
    assert device.allocate(0).nbytes == device.adopt(np.zeros(0, np.uint8)).nbytes == 0


# ---- constants --------------------------------------------------------------------------------------------------


def test_constants_are_packed_or_copied_and_not_needed_afterwards(device: Device) -> None:
    constants = {name: array.copy() for name, array in WEIGHTS.items()}
    kernel = PreparedKernel(dense(), constants, device)
    for array in constants.values():
        array.fill(np.nan)
    x, y = normal(N, K), empty()
    recording = kernel.record()
    recording.bind([x], [y])
    recording.run()
    close(y, right(x))


def test_constants_of_any_layout_are_packed(device: Device) -> None:
    kernel = PreparedKernel(
        dense(), {"W": np.asfortranarray(WEIGHTS["W"]), "b": np.repeat(WEIGHTS["b"], 2)[::2]}, device
    )
    x, y = normal(N, K), empty()
    recording = kernel.record()
    recording.bind([x], [y])
    recording.run()
    close(y, right(x))


def test_a_constant_that_is_read_by_other_phases_at_load_needs_no_place(device: Device) -> None:
    """A Winograd filter is transformed, and then packed."""
    X, W = sd.tensor("X", (1, 8, 8, 16)), sd.tensor("W", (3, 3, 16, 16), constant=True)
    task, target = sd.Task([winograd_conv2d(X, W, 1, 2)]), detect(1)
    x, w, y = normal(*X.shape), normal(*W.shape), np.full((1, 8, 8, 16), np.nan, np.float32)
    artifacts = (build_artifact(task, schedule, target) for schedule in schedules(task, target))
    artifact = next(a for a in artifacts if any(b.scope is Scope.PACKED and not b.resident for b in a.buffers))
    recording = PreparedKernel(artifact, {"W": w}, device).record()
    recording.bind([x], [y])
    recording.run()
    padded = np.pad(x[0], ((1, 1), (1, 1), (0, 0)))
    windows = [padded[i : i + 8, j : j + 8] @ w[i, j] for i in range(3) for j in range(3)]
    close(y[0], np.sum(windows, axis=0))


def test_missing_constants_and_those_of_another_size_are_refused(device: Device) -> None:
    with pytest.raises(KeyError, match="b"):
        PreparedKernel(dense(), {"W": WEIGHTS["W"]}, device)
    with pytest.raises(ValueError, match="constant b has"):
        PreparedKernel(dense(), {**WEIGHTS, "b": normal(M + 1)}, device)


# ---- runs -------------------------------------------------------------------------------------------------------


def test_a_recording_runs_again_on_other_arrays(device: Device) -> None:
    recording = PreparedKernel(dense(), WEIGHTS, device).record()
    inputs, outputs = [normal(N, K, seed=s) for s in range(3)], [empty() for _ in range(3)]
    for x, y in zip(inputs, outputs):
        recording.bind([x], [y])
        recording.run()
    for x, y in zip(inputs, outputs):
        close(y, right(x))


def test_what_runs_a_recording_keeps_what_it_points_to(device: Device) -> None:
    recording = device.record([])
    held = weakref.ref(getattr(recording, "_held", [None, None, None, np.zeros(1)])[3])
    run = recording.run
    del recording
    gc.collect()
    assert not isinstance(device, HostDevice) or held() is not None
    run()


def test_inputs_may_be_read_only(device: Device) -> None:
    x, y = normal(N, K), empty()
    x.flags.writeable = False
    recording = PreparedKernel(dense(), WEIGHTS, device).record()
    recording.bind([x], [y])
    recording.run()
    close(y, right(x))


def test_phases_hand_values_on_through_workspace_and_scratch(device: Device) -> None:
    for shape in ((3, 70_000), (40, 700)):
        task = catalogue.build("SFM", list(shape))
        x, y = 3 * normal(*shape), np.full(shape, np.nan, np.float32)
        recording = PreparedKernel(build_artifact(task, None, detect(2)), {}, device).record()
        recording.bind([x], [y])
        recording.run()
        e = np.exp(x - x.max(axis=1, keepdims=True), dtype=np.float64)
        np.testing.assert_allclose(y, e / e.sum(axis=1, keepdims=True), rtol=1e-4)


def test_calls_run_in_order_and_hand_values_on_through_memory(device: Device) -> None:
    kernel, sides = device.load(adder()), [BufferPlace(device.allocate(8)), BufferPlace(device.allocate(128), 64)]
    calls = [BoundCall(kernel, (InputArray(0), sides[0]))]
    calls += [BoundCall(kernel, (sides[k % 2], sides[(k + 1) % 2])) for k in range(98)]
    calls += [BoundCall(kernel, (sides[0], OutputArray(0)))]
    x, y = np.array([5]), np.array([0])
    recording = device.record(calls)
    recording.bind([x], [y])
    recording.run()
    assert y[0] == 105


def test_arguments_may_lie_inside_the_callers_arrays(device: Device) -> None:
    kernel = device.load(adder())
    recording = device.record(
        [
            BoundCall(kernel, (InputArray(1, 16), OutputArray(0, 8))),
            BoundCall(kernel, (OutputArray(0, 8), OutputArray(1))),
        ]
    )
    x, y, z = np.array([10, 20, 30]), np.array([-1, -1, -1]), np.array([0])
    recording.bind([np.array([0]), x], [y, z])
    recording.run()
    assert [y.tolist(), z.tolist()] == [[-1, 31, -1], [32]]


def test_a_recording_without_calls_does_nothing(device: Device) -> None:
    recording = device.record([])
    recording.bind([], [])
    recording.run()
    assert recording.bench(3).shape == (3,)
    assert recording.profile(3).shape == (3, 0)


def test_recordings_of_one_kernel_run_in_several_python_threads(device: Device) -> None:
    kernel = PreparedKernel(dense(), WEIGHTS, device)
    inputs, outputs = [normal(N, K, seed=s) for s in range(4)], [empty() for _ in range(4)]

    def work(x: Array, y: Array) -> None:
        recording = kernel.record()
        recording.bind([x], [y])
        for _ in range(20):
            recording.run()

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, outputs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, y in zip(inputs, outputs):
        close(y, right(x))


# ---- timing -----------------------------------------------------------------------------------------------------


def test_bench_runs_so_often_and_writes_the_outputs(device: Device) -> None:
    kernel, counter = device.load(adder()), BufferPlace(device.adopt(np.zeros(8, np.uint8)))
    recording = device.record([BoundCall(kernel, (counter, counter)), BoundCall(kernel, (counter, OutputArray(0)))])
    y = np.array([0])
    recording.bind([], [y])
    seconds = recording.bench(7)
    assert seconds.shape == (7,)
    assert (seconds > 0).all()
    assert y[0] == 8


def test_profile_gives_the_seconds_of_each_call_and_may_run_some_only(device: Device) -> None:
    kernel = device.load(adder())
    counters = [BufferPlace(device.adopt(np.zeros(8, np.uint8))) for _ in range(4)]
    recording = device.record([BoundCall(kernel, (c, c)) for c in counters])
    recording.bind([], [])
    assert recording.profile(5).shape == (5, 4)
    seconds = recording.profile(2, range(1, 3))
    assert seconds.shape == (2, 2)
    assert (seconds >= 0).all()
    assert [int(c.memory.read(0, 8).view(np.int64)[0]) for c in counters] == [5, 7, 7, 5]


def test_an_account_adds_up_to_the_seconds_of_each_call(device: Device) -> None:
    kernel = device.load(adder())
    counters = [BufferPlace(device.adopt(np.zeros(8, np.uint8))) for _ in range(3)]
    recording = device.record([BoundCall(kernel, (c, c)) for c in counters])
    recording.bind([], [])
    account = recording.account(4, range(1, 3))
    parts = account.late, account.busy, account.waiting
    assert all(part.shape == (4, 2) and (part >= -1e-9).all() for part in parts)
    assert np.allclose(sum(parts), account.seconds)
    assert (account.busy > 0).all()
    assert (account.off <= account.busy).all()
    assert [int(c.memory.read(0, 8).view(np.int64)[0]) for c in counters] == [0, 4, 4]


def test_a_rotation_reads_its_constants_from_another_copy_in_every_run(device: Device) -> None:
    call = PreparedKernel(dense(), WEIGHTS, device).call()
    rotated = [k for k, buffer in enumerate(dense().buffers) if buffer.is_kept]
    copy_bytes = sum(whole_lines(dense().buffers[k].nbytes) + ALIGN_BYTES for k in rotated)
    block = device.allocate(3 * copy_bytes)
    rotation = Rotation(device, call, rotated, block)
    x, y = normal(N, K), empty()
    rotation.bind([x], [y])
    assert rotation.bench(7).shape == (7,)
    close(y, right(x))
    block.write(0, np.zeros(copy_bytes, np.uint8))  # the first copy; the next run reads the second one
    outputs: list[Array] = []
    for _ in range(6):
        y.fill(np.nan)
        rotation.bench(1)
        outputs.append(y.copy())
    for n, found in enumerate(outputs):
        close(found, np.zeros((N, M)) if n in (2, 5) else right(x))


def test_a_rotation_of_more_than_its_memory_holds_has_memory_of_its_own(device: Device) -> None:
    call = PreparedKernel(dense(), WEIGHTS, device).call()
    rotation = Rotation(device, call, [k for k, b in enumerate(dense().buffers) if b.is_kept], device.allocate(64))
    x, y = normal(N, K), empty()
    rotation.bind([x], [y])
    for _ in range(3):
        y.fill(np.nan)
        rotation.bench(1)
        close(y, right(x))


# ---- models -----------------------------------------------------------------------------------------------------


def test_a_model_runs_and_is_profiled(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft({"x": (N, K)}, {"y": (N, M)}, threads=1)
    hidden = draft.call(layer(N, K, K), {"X": draft.port("x")}, {"W": normal(K, K, seed=8), "b": normal(K)})
    draft.call(layer(N, K, M), {"X": hidden, "Y": draft.port("y")}, WEIGHTS)
    image = draft.image()
    model = FixedModel(image, pack(image, lambda n: draft.constants[n]), device)
    x = normal(N, K)
    wanted = right(np.maximum(x @ normal(K, K, seed=8) + normal(K), 0))
    for _ in range(3):
        close(model(x), wanted)
    close(model(x, out=empty()[::-1]), wanted)
    assert model.bench(x, repeats=4).shape == (4,)

    def tiny(threads: int) -> Target:
        return replace(detect(threads), l3_bytes=1024)

    monkeypatch.setattr("stormdrop.model.fixed_model.detect", tiny)  # the weights are cold in the model
    profile = model.profile(x, repeats=3, standalone=True)
    assert [row.standalone is not None and row.standalone > 0 for row in profile.rows] == [True, True]
