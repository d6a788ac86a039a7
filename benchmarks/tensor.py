"""Matrix products by matrix instructions, at every precision, beside `torch.matmul` of the same precision.

`python -m benchmarks.gpu tensor` runs it. Our inputs and outputs are f32: the time includes rounding the left factor;
the right one, a constant, is rounded when the kernel is loaded. PyTorch's products of bf16 and fp16 have inputs and
outputs of that type; it has no twin of 3xtf32 but f32. Errors are the largest |found - exact| / Σ|a·b|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import stormdrop as sd
from benchmarks.search_bench import medians_in_turns
from stormdrop.device.device import Seconds
from stormdrop.device.targets import target_for
from stormdrop.operators.catalogue import build
from stormdrop.space.schedule import Schedule
from stormdrop.target.gpu import Gpu
from stormdrop.target.microkernels import PRECISIONS, Precision

SIZES = (1024, 4096)
REPEATS = 50
SAMPLED_ROWS = 16


def cases(names: list[str]) -> list[tuple[Precision, int]]:
    known: tuple[Precision, ...] = tuple(p for p in PRECISIONS if p != "f32")
    chosen: tuple[Precision, ...] = tuple(p for p in known if p in names) or known
    sizes = [int(n) for n in names if n.isdecimal()] or list(SIZES)
    return [(precision, size) for size in sizes for precision in chosen]


def row(precision: Precision, size: int, trials: int | None) -> dict[str, Any]:
    target = target_for("cuda")
    assert isinstance(target, Gpu)
    target = target.with_precision(precision)
    task = build("GMM", (1, size, size, size))
    tuned = None if trials is None else sd.tune(task, target, trials=trials)
    seconds, errors = _timed(task, target, [None] if tuned is None else [None, tuned.best])
    found: dict[str, Any] = {"default": seconds[0], "flops": task.flops, "error": errors[0]}
    if tuned is not None:
        found |= {"tuned": seconds[1], "trials": tuned.trials, "tuned error": errors[1]}
        found["schedule"] = [*map(str, tuned.best.steps), {k: v for k, v in tuned.best.values if v > 1}]
    if (peer := _torch(precision, size)) is not None:
        found["torch"] = peer
    best = found.get("tuned", found["default"])
    return found | {"tflops": task.flops / best * 1e-12}


def _timed(task: sd.Task, target: Gpu, schedules: Sequence[Schedule | None]) -> tuple[list[float], list[float]]:
    """Of each schedule the median seconds, timed in turns, and the largest error in some rows."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(t.shape, dtype=np.float32) for t in task.inputs)
    some = rng.choice(a.shape[1], SAMPLED_ROWS, replace=False)
    left, right = a[0, some].astype(np.float64), b[0].astype(np.float64)
    exact, scale = left @ right, np.abs(left) @ np.abs(right)
    kernels = [
        sd.build(task, constants={task.constants[0].name: b}, schedule=schedule, target=target)
        for schedule in schedules
    ]
    errors: list[float] = []
    benches: list[Callable[[int], Seconds]] = []
    for kernel in kernels:
        got = kernel(a)
        assert isinstance(got, np.ndarray)
        errors.append(float((np.abs(got[0, some] - exact) / scale).max()))
        recording = kernel._record()
        recording.bind([a], [np.empty(t.shape, np.float32) for t in task.outputs])
        recording.run()
        benches.append(recording.bench)  # pyright: ignore
    return medians_in_turns(benches, REPEATS), errors


def _torch(precision: Precision, size: int) -> float | None:
    try:
        import torch  # pyright: ignore[reportMissingImports]

        from benchmarks.gpu_torch import seconds, set_precision
    except ImportError:
        return None
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    set_precision(precision == "tf32")
    a, b = (torch.randn(size, size, device="cuda").to(kind) for _ in range(2))
    return seconds(partial(torch.matmul, a, b))
