"""How many points a storm judges per second on one core, and where the time goes.

    python -m benchmarks.scoring                              # C2D 1 14 14 256 256 3 1 1
    python -m benchmarks.scoring GMM 1 512 512 512 --rows 4096

First the chain: legal rows are mutated, made canonical, told apart, checked and scored by the learned model; every row
goes through every step, in pieces of a generation's size. Then batches of a real storm, which scores only what is new
and legal. Times are those of the thread, not of the wall, so that other work on the machine disturbs them less.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before NumPy and the model's library read it

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from stormdrop.operators.catalogue import build  # noqa: E402
from stormdrop.space.cpu_judge import FEATURES  # noqa: E402
from stormdrop.space.default import ranked  # noqa: E402
from stormdrop.space.sketch import Sketch, sketches  # noqa: E402
from stormdrop.target.cpu import cross  # noqa: E402
from stormdrop.tuning import evolve  # noqa: E402
from stormdrop.tuning.cost_model import CostModel, ModelRanker  # noqa: E402
from stormdrop.tuning.evolve import Genome, Hasher, Operators  # noqa: E402
from stormdrop.tuning.storm import ORIGINS, Storm  # noqa: E402
from stormdrop.tuning.strategy import Outcome, Points, Ranker, candidate  # noqa: E402


@dataclass
class Watch:
    """Seconds and rows by step."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    rows: dict[str, int] = field(default_factory=dict[str, int])

    def __call__(self, step: str, rows: int, action: Callable[[], Any]) -> Any:
        start = time.thread_time()
        result = action()
        self.seconds[step] = self.seconds.get(step, 0.0) + time.thread_time() - start
        self.rows[step] = self.rows.get(step, 0) + rows
        return result


class TimedSpace:
    """A sketch whose calls are timed."""

    def __init__(self, sketch: Sketch, watch: Watch) -> None:
        self._sketch, self._watch, self.knobs = sketch, watch, sketch.knobs

    def canonical(self, points: Points) -> Points:
        return self._watch("canonical", len(points), lambda: self._sketch.canonical(points))

    def legal(self, points: Points) -> NDArray[np.bool_]:
        return self._watch("legal", len(points), lambda: self._sketch.legal(points))

    def snapped(self, points: Points) -> Points:
        return self._sketch.snapped(points)

    def sample_legal(self, n: int, rng: np.random.Generator) -> Points:
        return self._watch("sample", n, lambda: self._sketch.sample_legal(n, rng))

    def features(self, points: Points) -> NDArray[np.float64]:
        return self._watch("features", len(points), lambda: self._sketch.features(points))

    def prior(self, points: Points) -> NDArray[np.float64]:
        return self._watch("prior", len(points), lambda: self._sketch.prior(points))


class TimedRanker:
    """The whole of scoring; of which features are timed by the space."""

    def __init__(self, ranker: Ranker, watch: Watch) -> None:
        self._ranker, self._watch = ranker, watch

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
        return self._watch("score", len(points), lambda: self._ranker.score(sketch, points))


def trained(found: Sequence[Sketch], groups: Sequence[str]) -> Ranker:
    """A model that knows this task, and maybe others, whose trees are asked too; values are priors with noise."""
    rng = np.random.default_rng(0)
    model = CostModel(FEATURES)
    for group in groups:
        for sketch in found:
            points = sketch.sample_legal(ceil(600 / len(found)), rng)
            model.add(
                group, sketch.features(points), sketch.prior(points) * np.exp(0.3 * rng.standard_normal(len(points)))
            )
    model.refresh()
    return ModelRanker(found, model, "this")


def _mutated(genome: Genome, parents: Points, operators: Operators, rng: np.random.Generator) -> Points:
    drawn = operators.drawn(len(parents), 1.0, rng)
    return genome.values(evolve.mutated(genome, genome.places(parents), drawn, 1.0, rng))


def chain(found: Sequence[Sketch], rankers: Sequence[Ranker], watch: Watch, rows: int, repeats: int) -> None:
    """All rows through all steps, sketch by sketch, in the end by each of the rankers."""
    rng = np.random.default_rng(0)
    operators = Operators(move=0.0)
    for k, sketch in enumerate(found):
        genome, hasher = Genome(sketch.knobs), Hasher(len(sketch.knobs))
        parents = sketch.sample_legal(rows, rng)
        seen = hasher(sketch.sample_legal(rows, rng))
        for _ in range(repeats):
            n = len(parents)
            children = watch("mutate", n, partial(_mutated, genome, parents, operators, rng))
            points = watch("canonical", n, lambda: sketch.canonical(children))  # noqa: B023
            watch("unseen", n, lambda: evolve.unseen(hasher(points), seen))  # noqa: B023
            watch("legal", n, lambda: sketch.legal(points))  # noqa: B023
            watch("features", n, lambda: sketch.features(parents))  # noqa: B023
            for number, ranker in enumerate(rankers):
                watch(f"score{number}", n, lambda: ranker.score(k, parents))  # noqa: B023


def storm(
    found: Sequence[Sketch], ranker: Ranker, seeds: Sequence[Points], watch: Watch, batches: int, n: int
) -> tuple[int, int]:
    """Batches that are told their priors as values. Returns the rows made and the rows scored."""
    spaces = [TimedSpace(s, watch) for s in found]
    search = Storm(
        spaces,
        TimedRanker(ranker, watch),
        np.random.default_rng(0),
        seeds=[candidate(k, p) for k, p in enumerate(seeds)],
    )
    for _ in range(batches):
        proposal = watch("ask", n, lambda: search.ask(n))
        search.tell([Outcome(c, float(found[c.sketch].prior(np.array([c.point]))[0])) for c in proposal.candidates])
    return sum(search.statistics[name].made for name in ORIGINS), watch.rows["score"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="*", default=["C2D", "1", "14", "14", "256", "256", "3", "1", "1"])
    parser.add_argument("--rows", type=int, default=4096, help="rows of a piece of the chain")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--batches", type=int, default=8)
    args = parser.parse_args()
    best = ranked(sketches(build(args.task[0], [int(a) for a in args.task[1:]]), cross("avx512")))
    found = [s for s, _, _ in best]
    rankers = [trained(found, ["this"]), trained(found, ["this", "another"])]
    print(
        f"{' '.join(args.task)}: {len(found)} sketches, {min(len(s.knobs) for s in found)} to "
        f"{max(len(s.knobs) for s in found)} knobs"
    )
    watch = Watch()
    chain(found, rankers, Watch(), args.rows, 1)
    chain(found, rankers, watch, args.rows, args.repeats)
    cost = {step: seconds / watch.rows[step] * 1e6 for step, seconds in watch.seconds.items()}
    models = {"own trees": cost.pop("score0"), "own and shared trees": cost.pop("score1")}
    print("the chain, µs per row")
    for step, micros in cost.items():
        print(f"  {step:10}{micros:8.2f}")
    for trees, micros in models.items():
        beside = sum(cost.values()) - cost["features"]  # scoring computes the features itself
        print(
            f"  model     {micros - cost['features']:8.2f} with {trees}: together {1e6 / (beside + micros):,.0f} rows "
            "per second"
        )
    watch = Watch()
    made, scored = storm(found, rankers[0], [p for _, p, _ in best], watch, args.batches, 64)
    total = watch.seconds["ask"]
    print(
        f"a storm: {args.batches} batches of 64 in {total:.2f} s; {made / total:,.0f} rows made, "
        f"{scored / total:,.0f} scored a second"
    )
    for step in ("canonical", "legal", "sample", "score"):
        print(f"  {step:10}{watch.seconds[step] / total:8.0%}")


if __name__ == "__main__":
    main()
