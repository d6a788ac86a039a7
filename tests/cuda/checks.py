"""What is checked on a GPU: functions that raise AssertionError where something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop import zoo
from stormdrop.builder.building import artifact_of
from stormdrop.compare.oracle import agreements, has_onnxruntime
from stormdrop.device.arrays import random_inputs
from stormdrop.device.targets import device_for, target_for
from stormdrop.ir.interp import evaluate, magnitude
from stormdrop.ir.tensor import Task
from stormdrop.lower.verify_program import verify
from stormdrop.model.model import Model
from stormdrop.model.onnx_session import OnnxSession
from stormdrop.target.accuracy import error_bound
from stormdrop.target.machine import Target
from stormdrop.target.microkernels import MATRIX_KERNELS, Precision
from tests.cuda import device
from tests.emulator.trials import GpuTrial, MatrixTrial, results
from tests.support.tasks import DRAWN, NAMES, random_task
from tests.support.trials import EPS, GRAPHS, Case, compare, random_array

Array = NDArray[Any]
MODELS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "squeezenet1_0",
    "densenet121",
    "vgg16",
    "googlenet",
    "shufflenet_v2_x1_0",
    "efficientnet_b0",
    "bert_base_seq128",
)
PRODUCTS = ("GMM", "C1D", "C2D", "DIL", "TBG")
POINTS = 200
LARGE = 3_000_000
"""Points of the loops of an operator at a size that fills some multiprocessors."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    run: Callable[[], None]


def operators() -> Iterator[Check]:
    """Every operator by its default schedule, small and large."""
    for name in NAMES:
        for most in (120_000, LARGE):
            yield Check(f"operators {name} up to {most}", partial(operator, name, most))


def points(count: int = POINTS) -> Iterator[Check]:
    """Random points of random tasks, every fifth one of the graph layer."""
    for seed in range(count // 2):
        yield Check(f"points {seed}", partial(random_points, seed + (GRAPHS if seed % 5 == 4 else 0)))


def models() -> Iterator[Check]:
    for name in MODELS:
        yield Check(f"models {name}", partial(model, name))


def devices() -> Iterator[Check]:
    for name, check in device.CHECKS.items():
        yield Check(f"device {name}", check)


def tensor() -> Iterator[Check]:
    """Matrix instructions at every precision: default schedules, some large, and random points."""
    for precision in MATRIX_KERNELS:
        for name in PRODUCTS:
            yield Check(f"tensor {precision} {name}", partial(operator, name, LARGE, precision))
            yield Check(f"tensor {precision} points of {name}", partial(matrix_points, name, precision))


def checks(points_count: int = POINTS) -> list[Check]:
    return [*operators(), *points(points_count), *models(), *devices(), *tensor()]


def operator(name: str, most: int, precision: Precision = "f32") -> None:
    rng = np.random.default_rng(most)
    task = random_task(name, rng, most=most)
    arrays = {t.name: random_array(t, rng) for t in task.inputs}
    target = target_for("cuda", precision=precision)
    kernel = sd.build(task, constants={t.name: arrays[t.name] for t in task.constants}, target=target)
    found = kernel(*(arrays[t.name] for t in task.runtime_inputs))
    outputs = found if isinstance(found, tuple) else (found,)
    variant = kernel.schedule.variant if kernel.schedule is not None else 0
    _compare_outputs(task, arrays, variant, dict(zip((t.name for t in task.outputs), outputs)), target)


def _compare_outputs(
    task: Task, arrays: Mapping[str, Array], variant: int, found: Mapping[str, Array], target: Target
) -> None:
    wanted, scales = evaluate(task, arrays, variant, "f64"), magnitude(task, arrays, variant)
    for t in task.outputs:
        if t.dtype in EPS:
            allowed = error_bound(task.variants[variant], target) * EPS[t.dtype] * scales[t.name]
            assert (np.abs(found[t.name].astype(np.float64) - wanted[t.name]) <= allowed).all(), f"{task}\n{t.name}"
        else:
            assert np.array_equal(found[t.name], wanted[t.name]), f"{task}\n{t.name}"


def random_points(seed: int) -> None:
    _run_points(GpuTrial(seed, target_for("cuda")).cases())


def matrix_points(name: str, precision: Precision) -> None:
    for turn in range(2):
        seed = DRAWN.index(name) + turn * len(DRAWN)
        _run_points(MatrixTrial(seed, target_for("cuda"), precision=precision).cases())


def _run_points(cases: Iterator[Case]) -> None:
    for case in cases:
        program, target = case.program(), case.target
        verify(program)
        found = results(case.trial.task, case.trial.arrays, artifact_of(program, target), device_for(target))
        problem = compare(case, found)
        assert not problem, f"{problem}\n{case}"


def model(name: str) -> None:
    """Against onnxruntime on the CPU; where it is not installed, against the same model compiled for the CPU."""
    proto = zoo.build(name)
    compiled = sd.compile(proto, target="cuda")
    inputs = random_inputs(compiled.inputs)
    found = _outputs(compiled, inputs)
    if has_onnxruntime():
        wanted = OnnxSession(proto.SerializeToString(), 1).run(inputs)
    else:
        wanted = _outputs(sd.compile(proto), inputs)
    for judged in agreements(list(found), found, wanted):
        assert judged.ok, f"{name}: {judged}"


def _outputs(model: Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    found = model(*(inputs[p.name] for p in model.inputs))
    return dict(zip((p.name for p in model.outputs), found if isinstance(found, tuple) else (found,)))
