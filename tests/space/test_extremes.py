"""Tasks of unusual sizes: every sketch has a legal point, and there is a default that computes the right thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stormdrop.compiler.compile import tasks_of
from stormdrop.device.host import detect
from stormdrop.graph.builder import GraphBuilder
from stormdrop.ir.tensor import Task
from stormdrop.model.kernel import build
from stormdrop.operators.node import Attribute, task_of
from stormdrop.space.cpu_judge import CpuJudge, most_code
from stormdrop.space.default import default_schedule
from stormdrop.space.derive import enumerate_structures
from stormdrop.space.sketch import replay, sketches
from stormdrop.target.coefficients import CPU_COEFFICIENTS
from stormdrop.target.cpu import cross
from tests.support.one_node import Array, OneNode


def node(op: str, *shapes: tuple[int, ...], **attributes: Attribute) -> Task:
    b = GraphBuilder()
    b.emit(op, *(b.input(f"x{k}", s, "f32") for k, s in enumerate(shapes)), **attributes)
    return task_of(b.nodes[0])


def window(kernel: tuple[int, ...], dilations: tuple[int, ...] | None = None, pads: int = 0) -> dict[str, Attribute]:
    ones = (1,) * len(kernel)
    each = (pads,) * len(kernel)
    return {
        "kernel": kernel,
        "strides": ones,
        "dilations": dilations or ones,
        "before": each,
        "after": each,
        "layout": "NHWC",
    }


def winograd_with_a_long_epilogue() -> Task:
    """F(4,3) writes its output transform out, with a Softplus for each of 16 pixels."""
    b = GraphBuilder()
    x, w = b.input("x", (1, 9, 1, 17), "f32"), b.constant(np.ones((3, 3, 17, 11), np.float32))
    y = b.emit("Softplus", b.emit("Conv", x, w, groups=1, **window((3, 3), pads=1)))
    (use,) = tasks_of(b.graph([y], ["y"], "g", 20)).tasks
    assert len(use.task.variants) == 3
    return use.task


TASKS: dict[str, Callable[[], Task]] = {
    "Winograd's transform with a long epilogue": winograd_with_a_long_epilogue,
    "one output of 512 channels and 32,768 taps": lambda: node(
        "Conv", (1, 32768, 512), (32768, 512, 1), groups=1, **window((32768,))
    ),
    "one output of 32,768 channels and 512 taps": lambda: node(
        "Conv", (1, 512, 32768), (512, 32768, 1), groups=1, **window((512,))
    ),
    "a kernel dilated over a large image": lambda: node(
        "Conv", (1, 440, 460, 64), (5, 76, 64, 16), groups=1, **window((5, 76), (107, 6))
    ),
    "a kernel of 1x1000": lambda: node("Conv", (1, 1, 1200, 4), (1, 1000, 4, 4), groups=1, **window((1, 1000))),
    "a depthwise kernel of 31x31": lambda: node(
        "Conv", (1, 40, 40, 64), (31, 31, 1, 64), groups=64, **window((31, 31), pads=15)
    ),
    "a pool over 200x200": lambda: node("MaxPool", (1, 220, 220, 3), **window((200, 200), pads=99)),
    "a product of ten million terms": lambda: node("MatMul", (1, 10_000_000), (10_000_000, 1)),
    "the sum of ten million numbers": lambda: node("ReduceSum", (10_000_000,), axes=(0,)),
    "a maximum over rows of seven": lambda: node("ReduceMax", (1_000_000, 7), axes=(0,)),
    "a softmax over a million rows": lambda: node("Softmax", (1_000_000, 3), axis=0),
    "a softmax over ten million columns": lambda: node("Softmax", (1, 10_000_000), axis=1),
    "a normalisation of ten million numbers": lambda: node("Standardize", (1, 10_000_000), axes=(1,), epsilon=1e-5),
    "a join of 64 parts": lambda: node("Concat", *((3, k % 5 + 1) for k in range(64)), axis=1),
    "a transpose of six dimensions": lambda: node("Transpose", (3, 5, 2, 7, 4, 3), perm=(5, 3, 1, 0, 2, 4)),
    "64 taps of data": lambda: node(
        "GridSample", (1, 3, 5, 5, 5), (1, 3, 4, 5, 3), mode="cubic", padding="zeros", align_corners=0
    ),
}


@pytest.mark.parametrize("what", TASKS)
@pytest.mark.parametrize("isa", ["avx512", "sse"])
def test_the_smallest_point_of_every_sketch_is_legal(what: str, isa: str) -> None:
    task, target = TASKS[what](), cross(isa).with_threads(4)
    found = sketches(task, target)
    assert found
    for sketch in found:
        least = np.array([[k.choices[0] for k in sketch.knobs]], dtype=np.int64)
        assert sketch.legal(sketch.canonical(least)).all(), sketch.structure.steps
    sketch, point = replay(task, default_schedule(task, target), target)
    assert sketch.legal(point[None]).all()


def test_where_every_structure_needs_too_much_scratch_those_without_any_remain() -> None:
    task, target = node("Softmax", (64, 4096), axis=1), cross("avx512")
    usual = enumerate_structures(task.variants[0], target)
    assert any(stage.host is not None for s in usual for stage in s.stages)
    without = replace(target, coefficients=replace(CPU_COEFFICIENTS, most_scratch_bytes=-1))
    rest = enumerate_structures(task.variants[0], without)
    assert rest
    assert all(stage.host is None for s in rest for stage in s.stages)


def test_a_usual_program_may_be_no_longer_than_before() -> None:
    target = cross("avx512")
    for sketch in sketches(node("Conv", (1, 14, 14, 64), (3, 3, 64, 64), groups=1, **window((3, 3), pads=1)), target):
        stages = sum(stage.level.value != "load" for stage in sketch.structure.stages)
        assert most_code(CpuJudge(target), sketch.structure) == 1000.0 * max(1.0, stages**0.5)


RNG = np.random.default_rng(0)


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def test_a_product_of_many_terms_is_right_with_every_sketch() -> None:
    x, y = draw(1, 5_000_000), draw(5_000_000, 1)
    task, target = node("MatMul", x.shape, y.shape), detect().with_threads(1)
    wanted = x.astype(np.float64) @ y
    for sketch in sketches(task, target):
        point = sketch.repair(sketch.canonical(np.array([[k.choices[0] for k in sketch.knobs]], dtype=np.int64)))[0]
        np.testing.assert_allclose(build(task, schedule=sketch.schedule(point), threads=1)(x, y), wanted, atol=0.5)


def test_one_output_of_very_many_terms_is_right() -> None:
    x, w = draw(1, 96, 40000), draw(1, 96, 40000)
    for known in ((), (1,)):
        (y,) = OneNode("Conv", [x, w], known=known).compiled()
        np.testing.assert_allclose(y.ravel(), [np.vdot(x.astype(np.float64), w)], atol=0.5)


def test_a_dilated_kernel_over_a_large_image_is_right() -> None:
    x, w = draw(1, 64, 300, 310), draw(2, 64, 3, 51)
    (y,) = OneNode("Conv", [x, w], known=(1,), dilations=[149, 6]).compiled()
    parts = np.array([[x[0, :, i : i + 299 : 149, j : j + 301 : 6] for j in range(10)] for i in range(2)])
    np.testing.assert_allclose(y[0], np.einsum("ijckl,ockl->oij", parts.astype(np.float64), w), atol=1e-2)


def test_a_volume_sampled_with_cubics_is_right() -> None:
    x, grid = draw(1, 2, 3, 4, 5), RNG.uniform(-1, 1, (1, 2, 3, 2, 3)).astype(np.float32)
    node = OneNode("GridSample", [x, grid], mode="cubic")
    np.testing.assert_allclose(node.compiled()[0], node.on_reference()[0], rtol=1e-3, atol=1e-3)
