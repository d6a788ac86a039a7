"""The names of targets, and the device for a target.

    None, "host"      this machine's CPU
    "cuda", "cuda:1"  a GPU of this machine, by CUDA's number
    "cuda:sm_80"      a GPU of an architecture, which need not be here: to compile for
    "cuda/bf16"       any of these GPUs, with products at a precision (`Gpu.precision`)

All modules of CUDA are imported only when a GPU is requested.
"""

from __future__ import annotations

from typing import Protocol

from stormdrop.base.errors import UserError
from stormdrop.device.calibration import calibrated
from stormdrop.device.cpus import thread_count, warn_if_crowded
from stormdrop.device.device import Device
from stormdrop.device.host import detect
from stormdrop.device.host_device import HostDevice, host_device
from stormdrop.device.peak import PeakMeter
from stormdrop.device.pool.pool import Pool, pool_for
from stormdrop.target.gpu import Gpu, gpu
from stormdrop.target.machine import Target
from stormdrop.target.microkernels import Precision

USAGE = "host, cuda, cuda:0 or cuda:sm_80"


def target_for(
    target: Target | str | None,
    threads: int | None = None,
    pool: Pool | str | None = None,
    precision: Precision | str | None = None,
) -> Target:
    """Returns the target for the caller's arguments.

    `threads` has precedence over the pool's, the pool's over the target's, the target's over the result of `detect`.
    `precision` has precedence over the target's. A CPU on another number of threads has the rates measured for that
    number, else nominal rates.

    Warns if there are more threads than this machine has CPUs. Raises UserError for a wrong number of threads, an
    unknown name or precision, and an absent GPU.
    """
    if threads is None and isinstance(pool, Pool):
        threads = pool.threads
    if isinstance(target, str) and "/" in target:
        target, _, named = target.partition("/")
        precision = precision or named
    machine = _target(target, threads)
    if precision is None:
        return machine
    if isinstance(machine, Gpu):
        return machine.with_precision(precision)
    if precision != "f32":
        raise UserError(f"precision {precision!r:.60} is for GPUs: give a target such as cuda with it")
    return machine


def _target(target: Target | str | None, threads: int | None) -> Target:
    if target is None or target == "host":
        host = detect(threads)
        warn_if_crowded(host.threads)
        return host
    if not isinstance(target, str):
        return target if threads is None else _on_threads(target, thread_count(threads))
    kind, _, which = target.partition(":")
    if kind != "cuda" or (which and not which.startswith("sm_") and not which.isdecimal()):
        raise UserError(f"unknown target {target!r:.60}; write {USAGE}")
    if which.startswith("sm_"):
        return gpu(which)
    from stormdrop.device.cuda.detect import detect_gpu

    return detect_gpu(int(which or 0))


def _on_threads(target: Target, threads: int) -> Target:
    """Returns a target for another number of threads: with the rates measured for that number, else with
    nominal rates.
    """
    if isinstance(target, Gpu) or threads == target.threads:
        return target
    return calibrated(target.with_threads(threads).with_nominal_rates())


def device_for(target: Target) -> Device:
    """Returns the device of this machine that runs code for a target. Raises NoGpu."""
    if isinstance(target, Gpu):
        from stormdrop.device.cuda.device import cuda_device

        return cuda_device(target.ordinal)
    return host_device(target.threads)


def host_for(
    threads: int, is_for_gpu: bool, spin: float | None, affinity: object, pool: Pool | str | None
) -> HostDevice:
    """Returns the host with the requested threads, to run a model, or to pack the constants of a GPU's.

    Raises UserError.
    """
    if not is_for_gpu:
        return HostDevice(pool_for(threads, spin, affinity, pool))
    if not (spin is None and affinity is None and pool is None):
        raise UserError("spin=, affinity= and pool= are about the CPU's threads: leave them out for a GPU")
    return host_device(thread_count())


class Meter(Protocol):
    """The measurement of a machine's current speed."""

    def gflops(self) -> float: ...


def peak_meter(target: Target) -> Meter:
    """Returns a meter of the f32 peak of a machine, for use between timings of kernels. Raises NoGpu."""
    if not isinstance(target, Gpu):
        return PeakMeter(target)
    from stormdrop.device.cuda.device import cuda_device
    from stormdrop.device.cuda.peak import GpuPeakMeter

    return GpuPeakMeter(cuda_device(target.ordinal))


def gpu_for(name: str, architecture: str, ordinal: int) -> Device:
    """Returns the GPU that runs the compiled model `name`. Raises NoGpu; UserError for code of another architecture."""
    from stormdrop.device.cuda.detect import unfit_gpu
    from stormdrop.device.cuda.device import cuda_device

    device = cuda_device(ordinal)
    reason = unfit_gpu(architecture, device.context)
    if reason is not None:
        raise UserError(f"{name} cannot run here: {reason}; compile the model again with --target cuda")
    return device


def gpu_rates(device: Device) -> tuple[float, float]:
    """Returns the measured rates of a GPU: GFLOP/s in f32, and GB/s of the memory."""
    from stormdrop.device.cuda.device import CudaDevice
    from stormdrop.device.cuda.peak import measure_gpu_peak

    assert isinstance(device, CudaDevice)
    peak = measure_gpu_peak(device)
    return peak.gflops, peak.dram_gbs
