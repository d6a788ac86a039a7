"""Winograd's phases one after the other, or tile by tile: the best estimated schedule of each way, timed in turns.

    python -m benchmarks.winograd vgg16 resnet18 --threads 2

Where the product (M) is placed in the loop over tiles, its blocks are transformed back while they are in the L2; where
the input's transform (V) is placed there too, the whole convolution is one phase without a barrier. Both are derivation
steps, `place(s3, thread)` and `place(s1, thread)`: the default schedule takes them where the estimate is lower. Printed
are microseconds (estimate, measured) by what is placed, the chosen way first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.core import say
from stormdrop import zoo
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.model.kernel import build
from stormdrop.space.default import ranked
from stormdrop.space.sketch import Points, Sketch, sketches
from stormdrop.target.machine import Target

PRODUCT, INPUT = "s3", "s1"
ROUNDS, RUNS = 12, 20


def way(sketch: Sketch) -> str:
    """What is computed inside the loop over tiles: M, V, both or neither; the direct sum is "direct"."""
    if sketch.variant == 0:
        return "direct"
    placed = {step.stage for step in sketch.structure.steps if step.rule == "place" and step.args == ("thread",)}
    return "".join(name for name, stage in (("M", PRODUCT), ("V", INPUT)) if stage in placed) or "phases"


def measure(task: Task, target: Target) -> dict[str, tuple[float, float]]:
    """Estimated and measured seconds of the best schedule of each way, the default's first."""
    best: dict[str, tuple[Sketch, Points, float]] = {}
    for sketch, point, estimate in ranked(sketches(task, target)):
        best.setdefault(way(sketch), (sketch, point, estimate))
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in task.inputs}
    constants = {t.name: arrays[t.name] for t in task.constants}
    recordings: dict[str, Any] = {}
    held: list[Any] = []  # what recordings write
    for name, (sketch, point, _) in best.items():
        kernel = build(task, constants=constants, schedule=sketch.schedule(point), target=target)
        recordings[name] = kernel._record()
        outputs = [np.empty(t.shape, np.float32) for t in task.outputs]
        held.append(outputs)
        recordings[name].bind([arrays[t.name] for t in task.runtime_inputs], outputs)
        recordings[name].run()
    found: dict[str, list[float]] = {name: [] for name in recordings}
    for _ in range(ROUNDS):
        for name, recording in recordings.items():
            found[name].append(float(np.median(recording.bench(RUNS))))
    return {name: (best[name][2], float(np.median(times))) for name, times in found.items()}


def report(networks: Sequence[str], target: Target) -> None:
    seen: set[str] = set()
    for network in networks:
        for use in tasks_of(read_graph(zoo.build(network))).tasks:
            if len(use.task.variants) < 2 or use.task.digest in seen:
                continue
            seen.add(use.task.digest)
            rows = measure(use.task, target)
            cells = [f"{name} {1e6 * guess:.0f}, {1e6 * took:.0f}" for name, (guess, took) in rows.items()]
            shape = "x".join(map(str, use.task.runtime_inputs[0].shape))
            say(f"{network} {use.task.name} {shape}: {' | '.join(cells)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["resnet18", "vgg16"])
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    report(given.networks, detect(given.threads))
