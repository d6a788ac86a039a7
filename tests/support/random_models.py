"""Seeded random ONNX models, small and varied: what fusion, layouts and memory planning are checked with.

    model, inputs = random_model(7)
    python -m tests.support.random_models --seeds 0:2000            # prints the seeds that fail, and how
    python -m tests.support.random_models --seeds 7 --show          # the model of a seed

A model has some 5 to 25 nodes. Its outputs are values that nothing reads, and also values that are read inside, inputs, constants
and copies of each other. onnxruntime says what is right; differences are relative to an output's largest magnitude.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.support.draft import Draft, Refused, session_of
from tests.support.random_moves import MOVEMENT, PRODUCTS
from tests.support.random_nodes import ELEMENTWISE, WINDOWS

Array = NDArray[Any]
Run = Callable[[onnx.ModelProto, Mapping[str, Array]], Mapping[str, Array]]
TOLERANCE = 1e-4
SIZES = (1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17)
CHANNELS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 15, 16, 17, 24, 32, 33)
TASTES = (  # how often windows, elementwise operators, products and movement are drawn
    (3, 3, 1, 2), (3, 1, 0.3, 1), (0, 2, 3, 2), (1, 2, 1, 4), (1, 4, 1, 1), (2, 2, 1, 3),
)  # fmt: skip


def random_model(seed: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A valid, well conditioned model and its inputs, the same for the same seed and the same onnxruntime."""
    rng = np.random.default_rng([seed, 77])
    d = Draft(rng)
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        d.input(_shape(d))
    if d.chance(0.1):
        unused = d.input((2, 3))
        d.read.add(unused)
    taste = TASTES[int(rng.integers(len(TASTES)))]
    groups = (WINDOWS, ELEMENTWISE, PRODUCTS, MOVEMENT)
    steps = [step for group in groups for _, step in group]
    weights = np.array([w * t / sum(w for w, _ in group) for group, t in zip(groups, taste) for w, _ in group])
    wanted = int(rng.integers(3, 20))
    for _ in range(6 * wanted):
        if len(d.nodes) >= wanted:
            break
        try:
            steps[int(rng.choice(len(steps), p=weights / weights.sum()))](d)
        except Refused:
            continue
    model = d.model(_outputs(d))
    onnx.checker.check_model(model)
    return model, dict(d.inputs)


def _shape(d: Draft) -> tuple[int, ...]:
    size, channels = (lambda: int(d.among(*SIZES))), int(d.among(*CHANNELS))
    match d.among("image", "image", "image", "sequence", "matrix", "vector", "signal", "scalar"):
        case "image":
            return (int(d.among(1, 1, 1, 2)), channels, size(), size())
        case "sequence":
            return (int(d.among(1, 1, 2)), size(), channels)
        case "signal":
            return (1, channels, 4 * size())
        case "matrix":
            return (size(), channels)
        case "vector":
            return (channels,)
        case _:
            return d.among((), (1,), (1, 1, 1, 1))


def _outputs(d: Draft) -> list[str]:
    """Values that nothing reads, mostly; then the awkward ones."""
    loose = [name for name in d.made if name not in d.read and d.dtype(name) != np.bool_]
    found = [name for name in loose if d.chance(0.85)] or loose or list(d.inputs)[:1]
    if d.made and d.chance(0.4):
        found.append(d.among(*d.made))  # read inside as well, perhaps
    if d.chance(0.1):
        found.append(d.one("Identity", d.among(*d.inputs)))
    if d.chance(0.05):
        found.append(d.among(*d.inputs))
    if d.chance(0.1):
        found += [d.one("Identity", found[0]), d.one("Identity", found[0])]
    if d.chance(0.1):
        found.append(d.one("Reshape", found[0], d.integers([-1])))
    if d.chance(0.1):  # another view of an input
        found.append(d.one("Reshape", d.among(*d.inputs), d.integers([1, -1] if d.chance(0.5) else [-1])))
    if d.chance(0.05):
        found.append(d.one("Add", d.weights(3), d.weights(2, 3)))  # a constant
    order = d.rng.permutation(len(found))
    return list(dict.fromkeys(found[int(k)] for k in order))


# ---- checking ------------------------------------------------------------------------------------------------------


def compiled(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Through the compiler, with default schedules."""
    from stormdrop.driver.compile import compile as compile_model

    return compile_model(model, schedules=lambda task: None).run(dict(inputs))


def unfused(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Every node a kernel of its own."""
    from stormdrop.compare.unfused import Unfused
    from stormdrop.frontend.onnx import load

    graph = load(model)
    return dict(zip(graph.output_names, Unfused().run(graph, inputs)))


def difference(model: onnx.ModelProto, inputs: Mapping[str, Array], run: Run) -> str | None:
    """Which output is wrong and by how much, or None."""
    names = [o.name for o in model.graph.output]
    wanted = dict(zip(names, session_of(model, 1).run(names, dict(inputs))))
    before = {k: a.copy() for k, a in inputs.items()}
    found = run(model, inputs)
    if list(found) != names:
        return f"outputs {list(found)}, not {names}"
    if any(not np.array_equal(inputs[k], a) for k, a in before.items()):
        return "an input was overwritten"
    for name, right in wanted.items():
        got = np.asarray(found[name])
        if got.shape != right.shape or got.dtype != right.dtype:
            return f"{name} is {got.dtype}{list(got.shape)}, not {right.dtype}{list(right.shape)}"
        if right.dtype != np.float32:
            if not np.array_equal(got, right):
                return f"{name} differs"
            continue
        largest = float(np.max(np.abs(right)))
        apart = float(np.max(np.abs(got - right)))
        if not apart <= TOLERANCE * largest:
            return f"{name} differs by {apart:.3g}, its largest value is {largest:.3g}"
    return None


def failure(seed: int, run: Run) -> str | None:
    """How the model of a seed goes wrong, or None; a runtime that raises is wrong too."""
    model, inputs = random_model(seed)
    try:
        return difference(model, inputs, run)
    except Exception as error:  # whatever it is, it is what is looked for
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", metavar="FIRST[:END]")
    parser.add_argument("--unfused", action="store_true", help="every node a kernel of its own")
    parser.add_argument("--show", action="store_true", help="print the models")
    given = parser.parse_args()
    first, _, end = given.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    if given.show:
        for seed in seeds:
            print(onnx.printer.to_text(random_model(seed)[0]))
        return
    began, wrong = time.monotonic(), 0
    for seed in seeds:
        if seed % 100 == 0:
            print(f"… {seed}", file=sys.stderr, flush=True)
        if (why := failure(seed, unfused if given.unfused else compiled)) is not None:
            wrong += 1
            print(f"seed {seed}: {why}", flush=True)
    print(f"{wrong} of {len(seeds)} fail, {time.monotonic() - began:.0f} s", file=sys.stderr)
    sys.exit(min(wrong, 1))


if __name__ == "__main__":
    main()
