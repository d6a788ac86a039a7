"""A finding of `stormdrop doctor`, and the checks of kernels, which CPUs and GPUs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stormdrop.target.machine import Target

SHAPE = (1, 37, 41, 29)
"""The sizes of a batch of matrix products. No tile size divides them: the kernel has tails, masks and packing."""
REPORT = "please report this output"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check; `advice` is the remedy for a failed check."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


def guarded(name: str, look: Callable[[], Check], advice: str) -> Check:
    """Returns the result of a check. Any error of the check becomes a failed check."""
    try:
        return look()
    except Exception as error:  # no error may hide the other checks
        return Check(name, False, f"{type(error).__name__}: {error}", advice)


def kernel_checks(names: tuple[str, str], target: Callable[[], Target]) -> list[Check]:
    """Builds and runs a kernel in a worker process, and then in this process, which a wrong kernel would kill."""
    in_worker, here = names
    advice = f"see the message; candidates cannot be measured; {REPORT}"
    checks = [guarded(in_worker, lambda: _in_worker(in_worker, target()), advice)]
    if checks[0].ok:
        advice = f"kernels build and run in workers but not here; {REPORT}"
        checks.append(guarded(here, lambda: _in_process(here, target()), advice))
    return checks


def _in_worker(name: str, target: Target) -> Check:
    from stormdrop.measure.measurer import Measurer
    from stormdrop.measure.result import Failure
    from stormdrop.operators.catalogue import build as operator
    from stormdrop.space.default import default_schedule

    task = operator("GMM", SHAPE)
    with Measurer(target, builders=1) as measurer:
        result = measurer.measure(task, [default_schedule(task, target)])[0]
    if isinstance(result, Failure):
        return Check(name, False, str(result), f"workers start, but a simple kernel fails in them; {REPORT}")
    build_ms, run_us = result.build_seconds * 1e3, result.seconds * 1e6
    return Check(name, True, f"{task.name} built in {build_ms:.0f} ms, right, {run_us:.1f} µs")


def _in_process(name: str, target: Target) -> Check:
    from stormdrop.compare.oracle import agreement
    from stormdrop.ir.interp import evaluate
    from stormdrop.model.kernel import build
    from stormdrop.operators.catalogue import build as operator

    task = operator("GMM", SHAPE)
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape, np.float32) for t in task.inputs}
    kernel = build(task, constants={t.name: arrays[t.name] for t in task.constants}, target=target)
    result = kernel(*(arrays[t.name] for t in task.runtime_inputs))
    (expected,) = evaluate(task, arrays).values()
    error = agreement(task.name, result, expected, tolerance=0.0, allowed=1e-4)
    if not error.ok:
        fault = f"{task.name} is wrong by {error.absolute:.2g}"
        return Check(name, False, fault, f"code for this machine is wrong; {REPORT}")
    return Check(name, True, f"{task.name} agrees with the reference, largest difference {error.absolute:.1e}")
