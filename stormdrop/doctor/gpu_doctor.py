"""The checks of `stormdrop doctor` for NVIDIA GPUs: compiling for them, and running kernels on them."""

from __future__ import annotations

from collections.abc import Sequence

from stormdrop.doctor.checks import REPORT, SHAPE, Check, guarded, kernel_checks
from stormdrop.target.gpu import Gpu, gpu


def gpu_checks(target_name: str) -> list[Check]:
    """Runs the checks for "cuda", "cuda:1", or for compiling alone "cuda:sm_80". A check that needs a failed check is
    left out.
    """
    _, _, which = target_name.partition(":")
    if which.startswith("sm_"):
        checks = [guarded("assembler", lambda: _assembler(None), REPORT)]
        if checks[0].ok:
            checks.append(guarded("kernel for a GPU", lambda: _compiled(gpu(which)), REPORT))
        return checks
    checks = [guarded("NVIDIA driver", _driver, REPORT)]
    checks.append(guarded("assembler", lambda: _assembler(checks[0]), REPORT))
    if checks[0].ok:
        targets: list[Gpu] = []
        checks.append(guarded("GPU", lambda: _gpu(int(which or 0), targets), REPORT))
        if targets:
            checks += kernel_checks(("kernel in a GPU worker", "kernel on the GPU"), lambda: targets[0])
    return checks


def _driver() -> Check:
    from stormdrop.device.cuda.driver import NoGpu, open_driver

    try:
        driver = open_driver()
    except NoGpu as error:
        return Check("NVIDIA driver", False, *_parts(error))
    return Check("NVIDIA driver", True, f"for CUDA {_version(driver.version)}, {driver.count()} GPU(s)")


def _assembler(driver: Check | None) -> Check:
    """Checks nvJitLink; without it, the driver assembles."""
    from stormdrop.device.cuda.assembler import NoAssembler, assembler

    try:
        linker = assembler()
    except NoAssembler as error:
        detail, advice = _parts(error)
        if driver is not None and driver.ok:
            return Check(
                "assembler", True, f"{detail}; the driver assembles instead, which takes longer to load", advice
            )
        return Check("assembler", False, detail, advice)
    return Check("assembler", True, f"nvJitLink {_version(linker.version)} ({linker.path})")


def _gpu(ordinal: int, targets: list[Gpu]) -> Check:
    from stormdrop.base.errors import UserError
    from stormdrop.device.cuda.detect import detect_gpu

    try:
        targets.append(detect_gpu(ordinal))
    except UserError as error:
        return Check("GPU", False, str(error), "name another one: --target cuda:NUMBER")
    return Check("GPU", True, str(targets[0]))


def _compiled(target: Gpu) -> Check:
    from stormdrop.builder.building import build_artifact
    from stormdrop.operators.catalogue import build as operator

    task = operator("GMM", SHAPE)
    artifact = build_artifact(task, None, target)
    return Check("kernel for a GPU", True, f"{task.name} for {target.architecture}: {len(artifact.code)} bytes of code")


def _parts(error: Exception) -> tuple[str, str]:
    """Returns the fault and the remedy, the two parts of a message."""
    detail, _, advice = str(error).partition(": ")
    return detail, advice


def _version(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))
