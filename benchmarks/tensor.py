"""Matrix products by matrix instructions, at every precision, beside `torch.matmul` of the same precision.

`python -m benchmarks.gpu tensor` runs it. Our inputs and outputs are f32: the time includes rounding the left factor;
the right one, a constant, is rounded when the kernel is loaded. PyTorch's products of bf16 and fp16 have inputs and
outputs of that type; it has no twin of 3xtf32 but f32. Errors are the largest |found - exact| / Σ|a·b|.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import stormdrop as sd
from stormdrop.ops.catalogue import build
from stormdrop.runtime.targets import target_for
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
    seconds, error = _timed(task, target, None)
    found: dict[str, Any] = {"default": seconds, "flops": task.flops, "error": error}
    if trials is not None:
        tuned = sd.tune(task, target, trials=trials)
        again, error = _timed(task, target, tuned.best)
        found |= {"tuned": min(seconds, again), "trials": tuned.trials, "tuned error": error}
        found["schedule"] = [*map(str, tuned.best.steps), {k: v for k, v in tuned.best.values if v > 1}]
    if (peer := _torch(precision, size)) is not None:
        found["torch"] = peer
    best = found.get("tuned", found["default"])
    return found | {"tflops": task.flops / best * 1e-12}


def _timed(task: sd.Task, target: Gpu, schedule: Schedule | None) -> tuple[float, float]:
    """The median seconds, and the largest error in some rows."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(t.shape, dtype=np.float32) for t in task.inputs)
    kernel = sd.build(task, {task.constants[0].name: b}, schedule, target=target)
    got = kernel(a)
    assert isinstance(got, np.ndarray)
    some = rng.choice(a.shape[1], SAMPLED_ROWS, replace=False)
    left, right = a[0, some].astype(np.float64), b[0].astype(np.float64)
    error = float((np.abs(got[0, some] - left @ right) / (np.abs(left) @ np.abs(right))).max())
    recording = kernel._record()
    recording.bind([a], [np.empty(t.shape, np.float32) for t in task.outputs])
    recording.run()
    return float(np.median(recording.bench(REPEATS))), error  # pyright: ignore


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
