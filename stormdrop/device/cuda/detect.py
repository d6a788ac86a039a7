"""The GPUs of this machine as targets, and their compatibility with code for an architecture."""

from __future__ import annotations

import re
from dataclasses import replace

from stormdrop.device.cuda.context import Attribute, CudaContext
from stormdrop.device.cuda.device import CudaDevice, cuda_device
from stormdrop.device.cuda.driver import NoGpu
from stormdrop.device.cuda.peak import known_gpu_peak
from stormdrop.target.gpu import ARCHITECTURES, Gpu

DRAM_SHARE = 0.85
"""The share of the memory's nominal rate that reads reach; measured on an H200."""


def detect_gpu(ordinal: int = 0) -> Gpu:
    """Returns GPU number `ordinal` of this process, with its measured rates if `stormdrop peak` has measured them.

    Raises NoGpu if there is none or it is not supported, UserError for a number too high.
    """
    device = cuda_device(ordinal)
    return _calibrated(described(device.context), device)


def described(context: CudaContext) -> Gpu:
    """Returns the driver's description of a GPU, completed by the architecture's usual values. Raises NoGpu."""
    base = ARCHITECTURES[_target_architecture(context)]
    clock_ghz = context.attribute(Attribute.CLOCK_KHZ) / 1e6
    memory_khz, bus_bits = context.attribute(Attribute.MEMORY_CLOCK_KHZ), context.attribute(Attribute.MEMORY_BUS_BITS)
    return replace(
        base,
        name=context.name,
        ordinal=context.ordinal,
        multiprocessors=context.attribute(Attribute.MULTIPROCESSORS),
        threads_per_block=context.attribute(Attribute.THREADS_PER_BLOCK),
        threads_per_multiprocessor=context.attribute(Attribute.THREADS_PER_MULTIPROCESSOR),
        blocks_per_multiprocessor=context.attribute(Attribute.BLOCKS_PER_MULTIPROCESSOR),
        registers_per_multiprocessor=context.attribute(Attribute.REGISTERS_PER_MULTIPROCESSOR),
        shared_bytes_per_block=context.attribute(Attribute.SHARED_BYTES_PER_BLOCK),
        shared_bytes_per_multiprocessor=context.attribute(Attribute.SHARED_BYTES_PER_MULTIPROCESSOR),
        l2_bytes=context.attribute(Attribute.L2_BYTES),
        clock_ghz=clock_ghz or base.clock_ghz,
        # Two transfers in every cycle of the memory's clock; newer drivers may not report it.
        dram_gbs=DRAM_SHARE * 2 * memory_khz * bus_bits / 8 / 1e6 or base.dram_gbs,
    )


def _target_architecture(context: CudaContext) -> str:
    """Returns the newest known architecture whose machine code the GPU runs: its major version, no later minor
    version.
    """
    here = _numbers(context.architecture)
    fitting = [a for a in ARCHITECTURES if _numbers(a)[0] == here[0] and _numbers(a)[1] <= here[1]]
    if not fitting:
        known = ", ".join(ARCHITECTURES)
        raise NoGpu(f"{context.name} is {context.architecture}; kernels are built for {known}")
    return max(fitting, key=_numbers)


def unfit_gpu(architecture: str, context: CudaContext) -> str | None:
    """Returns the reason why machine code for an architecture cannot run on a GPU; None if it can."""
    theirs, here = _numbers(architecture), _numbers(context.architecture)
    if theirs[0] == here[0] and theirs[1] <= here[1]:
        return None
    return f"it was compiled for {architecture}, and GPU {context.ordinal} ({context.name}) is {context.architecture}"


def _numbers(architecture: str) -> tuple[int, int]:
    """Returns the numbers of an architecture: sm_90 is (9, 0)."""
    digits = re.sub(r"\D", "", architecture) or "0"
    return int(digits[:-1] or 0), int(digits[-1])


def _calibrated(target: Gpu, device: CudaDevice) -> Gpu:
    """Returns the target with the measured rates."""
    peak = known_gpu_peak(device)
    if peak is None:
        return target
    clock_ghz = peak.gflops / (2.0 * target.fma_lanes * target.multiprocessors)
    return replace(target, clock_ghz=clock_ghz, l2_gbs=peak.l2_gbs, dram_gbs=peak.dram_gbs)
