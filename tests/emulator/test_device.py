"""The emulator as a device of the runtime."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop.base.errors import BuildError
from stormdrop.device.artifact import Artifact, BufferSpec, Launch
from stormdrop.device.device import BoundCall, BufferPlace, InputArray, OutputArray
from stormdrop.model.prepared import PreparedKernel
from stormdrop.target.structures import Scope
from tests.emulator import kernels
from tests.emulator.device import EmulatedDevice
from tests.emulator.faults import Fault

M, N, K = 11, 13, 21


def product() -> Artifact:
    """C = A B, with B constant."""
    buffers = (
        BufferSpec("a", "f32", Scope.INPUT, M * K),
        BufferSpec("b", "f32", Scope.CONSTANT, K * N),
        BufferSpec("c", "f32", Scope.OUTPUT, M * N),
    )
    launch = Launch(4, 64, kernels.gemm_shared_bytes(3))
    return Artifact(kernels.gemm(M, N, K, 3).encode(), buffers, (4,), launches=(launch,))


def test_a_kernel_runs_on_arrays_of_the_caller_and_constants_of_the_device() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((M, K), np.float32), rng.standard_normal((K, N), np.float32)
    c = np.full((M, N), np.nan, np.float32)
    recording = PreparedKernel(product(), {"b": b}, EmulatedDevice()).record()
    recording.bind([a], [c])
    recording.run()
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


def test_calls_run_one_after_the_other_on_memory_of_the_device() -> None:
    """(A B) C, with the product in between at an odd place of a larger block."""
    rng = np.random.default_rng(2)
    device = EmulatedDevice()
    a, b = rng.standard_normal((M, K), np.float32), rng.standard_normal((K, N), np.float32)
    buffers = tuple(
        BufferSpec(n, "f32", s, 8 * 64) for n, s in [("x", Scope.INPUT), ("y", Scope.INPUT), ("z", Scope.OUTPUT)]
    )
    add = Artifact(kernels.vector_add(M * N, lanes=1).encode(), buffers, (3,), launches=(Launch(3, 64, 0),))
    between = BufferPlace(device.allocate(4000), 36)
    c = np.full((M, N), np.nan, np.float32)
    prepared = PreparedKernel(product(), {"b": b}, device).call()
    first = BoundCall(prepared.kernel, (*prepared.arguments[:2], between))
    second = BoundCall(device.load(add), (between, InputArray(1), OutputArray(0)))
    recording = device.record([first, second])
    recording.bind([a, np.ones_like(c)], [c])
    assert recording.profile(2).shape == (2, 2)
    np.testing.assert_allclose(c, a @ b + 1, rtol=1e-4, atol=1e-5)


def test_a_kernel_that_reads_beyond_its_argument_is_reported() -> None:
    recording = PreparedKernel(product(), {"b": np.ones((K, N), np.float32)}, EmulatedDevice()).record()
    recording.bind([np.ones(M * K - 1, np.float32)], [np.ones((M, N), np.float32)])
    with pytest.raises(Fault, match="out of bounds: byte 920 of a"):
        recording.run()


def test_a_kernel_of_a_cpu_is_refused() -> None:
    with pytest.raises(BuildError, match="for a CPU"):
        EmulatedDevice().load(Artifact(b"", (), ()))
