"""Is this installation able to compile for NVIDIA GPUs, and to run and measure kernels there?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stormdrop.doctor.checks import Check, guarded
from stormdrop.target.gpu import Gpu, gpu

SHAPE = (1, 37, 41, 29)  # nothing divides
_REPORT = "please report this output"


def gpu_checks(target_name: str) -> list[Check]:
    """The checks for "cuda", "cuda:1", or for compiling only, "cuda:sm_80"; one that needs another is left out where
    that failed.
    """
    _, _, which = target_name.partition(":")
    if which.startswith("sm_"):
        checks = [guarded("assembler", lambda: _assembler(None), _REPORT)]
        if checks[0].ok:
            checks.append(guarded("kernel for a GPU", lambda: _compiled(gpu(which)), _REPORT))
        return checks
    checks = [guarded("NVIDIA driver", _driver, _REPORT)]
    checks.append(guarded("assembler", lambda: _assembler(checks[0]), _REPORT))
    if checks[0].ok:
        found: list[Gpu] = []
        checks.append(guarded("GPU", lambda: _gpu(int(which or 0), found), _REPORT))
        for target in found if checks[1].ok else ():
            checks.append(guarded("kernel in a GPU worker", lambda target=target: _in_worker(target), _REPORT))
            if checks[-1].ok:
                checks.append(guarded("kernel on the GPU", lambda target=target: _on_gpu(target), _REPORT))
    return checks


def _driver() -> Check:
    from stormdrop.device.cuda.driver import NoGpu, open_driver

    try:
        driver = open_driver()
    except NoGpu as error:
        return Check("NVIDIA driver", False, *_told(error))
    return Check("NVIDIA driver", True, f"for CUDA {_version(driver.version)}, {driver.count()} GPU(s)")


def _assembler(driver: Check | None) -> Check:
    """nvJitLink; where it is missing, a driver stands in for it."""
    from stormdrop.device.cuda.assembler import NoAssembler, assembler

    try:
        found = assembler()
    except NoAssembler as error:
        detail, advice = _told(error)
        if driver is not None and driver.ok:
            return Check(
                "assembler", True, f"{detail}; the driver assembles instead, which takes longer to load", advice
            )
        return Check("assembler", False, detail, advice)
    return Check("assembler", True, f"nvJitLink {_version(found.version)} ({found.path})")


def _gpu(ordinal: int, found: list[Gpu]) -> Check:
    from stormdrop.base.errors import UserError
    from stormdrop.device.cuda.detect import detect_gpu

    try:
        found.append(detect_gpu(ordinal))
    except UserError as error:
        return Check("GPU", False, str(error), "name another one: --target cuda:NUMBER")
    return Check("GPU", True, str(found[0]))


def _compiled(target: Gpu) -> Check:
    from stormdrop.builder.building import build_artifact
    from stormdrop.operators.catalogue import build as operator

    task = operator("GMM", SHAPE)
    artifact = build_artifact(task, None, target)
    return Check("kernel for a GPU", True, f"{task.name} for {target.architecture}: {len(artifact.code)} bytes of code")


def _in_worker(target: Gpu) -> Check:
    from stormdrop.measure.measurer import Measurer
    from stormdrop.measure.result import Failure
    from stormdrop.operators.catalogue import build as operator
    from stormdrop.space.default import default_schedule

    name, task = "kernel in a GPU worker", operator("GMM", SHAPE)
    with Measurer(target, builders=1) as measurer:
        result = measurer.measure(task, [default_schedule(task, target)])[0]
    if isinstance(result, Failure):
        return Check(name, False, str(result), _REPORT)
    build_ms, run_us = result.build_seconds * 1e3, result.seconds * 1e6
    return Check(name, True, f"{task.name} built in {build_ms:.0f} ms, right, {run_us:.1f} µs")


def _on_gpu(target: Gpu) -> Check:
    from stormdrop.ir.interp import evaluate
    from stormdrop.model.kernel import build
    from stormdrop.operators.catalogue import build as operator

    name, task = "kernel on the GPU", operator("GMM", SHAPE)
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape, np.float32) for t in task.inputs}
    kernel = build(task, constants={t.name: arrays[t.name] for t in task.constants}, target=target)
    found = kernel(*(arrays[t.name] for t in task.runtime_inputs))
    worst = float(np.max(np.abs(found - next(iter(evaluate(task, arrays).values())))))
    if not worst < 1e-4:
        return Check(name, False, f"{task.name} is wrong by {worst:.2g}", _REPORT)
    return Check(name, True, f"{task.name} agrees with the reference, largest difference {worst:.1e}")


def _told(error: Exception) -> tuple[str, str]:
    """What is missing, and what to do: the parts of a message."""
    detail, _, advice = str(error).partition(": ")
    return detail, advice


def _version(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))
