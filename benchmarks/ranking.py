"""How well the cost model ranks programs of an operator that it has never seen, beside the prior and beside chance.

    python benchmarks/ranking.py            # collect (some five minutes), then the table; resumable
    python benchmarks/ranking.py --table      # from what was collected before

Points of all sketches of the cases of `operators.json` are timed until the two fastest timings agree, and the fastest
counts: disturbances only ever add. Half of the points are the prior's best of a random handful, as a search would take
them. A pair is in order if the score is higher for the one that is faster; pairs count that differ by more than 5 %, by
both timings.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.cpu_judge import FEATURES
from stormdrop.space.default import ranked
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.machine import Target
from stormdrop.tuning.cost_model import CostModel, CostSettings

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "ranking.json"
POOL = 32
BATCH = 32
TOO_SLOW = 5e-3
DIFFERENT, SAME = 1.05, 1.02
MOST_PASSES = 6
TOP = (1, 5, 16)
OWN = (16, 32)
FAMILIES = {
    "convolution": ("C1D", "C2D", "C3D", "DIL", "CBR", "GRP", "CAP", "T2D"),
    "product": ("GMM", "DEN", "TBG", "GMV"),
    "window": ("DEP", "MXP"),
    "reduction": ("NRM", "SFM", "DOT"),
    "movement": ("ADR", "TRN"),
}
PRIOR = FEATURES.index("prior")
Floats = NDArray[np.float64]
Score = Callable[["Case"], Floats]


@dataclass(frozen=True)
class Case:
    """The points of one task; `passes` are their two fastest timings, NaN where they failed."""

    operator: str
    name: str
    features: Floats
    passes: Floats

    @property
    def seconds(self) -> Floats:
        """Infinite where both timings failed."""
        return np.fmin.reduce(np.nan_to_num(self.passes, nan=np.inf))

    @property
    def labels(self) -> Floats:
        return np.where(np.isfinite(self.seconds), self.seconds, np.nan)

    @property
    def family(self) -> str:
        return next(name for name, members in FAMILIES.items() if self.operator in members)

    def part(self, rows: NDArray[np.int64]) -> Case:
        return Case(self.operator, self.name, self.features[rows], self.passes[:, rows])


# ---- collecting
# ----------------------------------------------------------------------------------------------------------


def collect(folder: Path, points: int, seconds: float, seed: int) -> None:
    """Time points of the cases that `folder` does not hold yet, until all are there or the time is up."""
    folder.mkdir(parents=True, exist_ok=True)
    table: Mapping[str, Sequence[Sequence[int]]] = json.loads((HERE / "operators.json").read_text())
    cases = [
        (operator, args)
        for k in range(max(map(len, table.values())))
        for operator, all in table.items()
        for args in all[k : k + 1]
    ]
    target, end = detect(), time.monotonic() + seconds
    with Measurer(target) as measurer:
        for operator, args in cases:  # first the first case of every operator
            name = "_".join(map(str, (operator, *args)))
            path = folder / f"{name}.npz"
            if path.exists() or time.monotonic() > end:
                continue
            task = build(operator, args)
            rng = np.random.default_rng([seed, *name.encode()])
            drawn = draw(task, target, points, rng)
            if drawn is None:
                continue
            schedules, features = drawn
            passes = timed(measurer, task, schedules)
            np.savez(path, features=features, passes=passes, operator=operator, version=FEATURES.version)
            print(f"{name}: {len(schedules)} points, the best {np.nanmin(passes) * 1e6:.1f} µs", flush=True)


def draw(task: Task, target: Target, points: int, rng: np.random.Generator) -> tuple[list[Schedule], Floats] | None:
    """Different legal points over all sketches with their features; None where a kernel takes too long to run many of
    them.
    """
    found = ranked(sketches(task, target))
    if found[0][2] > TOO_SLOW:
        return None
    chosen: dict[Schedule, Floats] = {}
    for turn in range(3 * points):
        sketch = found[turn % len(found) if turn < 2 * len(found) else int(rng.integers(len(found)))][0]
        pool = sketch.sample_legal(POOL, rng)
        at = int(np.argmin(sketch.prior(pool))) if turn % 2 else int(rng.integers(len(pool)))
        chosen.setdefault(sketch.schedule(pool[at]), sketch.features(pool[at : at + 1])[0])
        if len(chosen) == points:
            break
    return list(chosen), np.array(list(chosen.values()))


def timed(measurer: Measurer, task: Task, schedules: Sequence[Schedule]) -> Floats:
    """The two fastest timings of every point: all are timed twice, and again while those two differ."""
    timings = np.full((0, len(schedules)), np.nan)
    best: float | None = None
    for _ in range(MOST_PASSES):
        two = np.sort(timings, axis=0)[:2]  # NaN comes last
        open = np.arange(len(schedules)) if len(two) < 2 else np.flatnonzero(~(two[1] <= SAME * two[0]))
        row = np.full(len(schedules), np.nan)
        for k in range(0, len(open), BATCH):
            batch = open[k : k + BATCH]
            results = measurer.measure(task, [schedules[i] for i in batch], best)
            row[batch] = [min((r.seconds, *r.samples)) if isinstance(r, Timing) else np.nan for r in results]
            best = float(np.fmin(np.nanmin(row), best or np.inf)) if np.isfinite(row).any() else best
        timings = np.concatenate([timings, row[None]])
    return np.sort(timings, axis=0)[:2]


def read(folder: Path) -> list[Case]:
    found: list[Case] = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as held:
            if int(held["version"]) == FEATURES.version:
                found.append(Case(str(held["operator"]), path.stem, held["features"], held["passes"]))
    return [c for c in found if np.isfinite(c.seconds).sum() > 1]


# ---- judging
# -------------------------------------------------------------------------------------------------------------


def pairs(case: Case) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Which is faster, which is slower, and whether both timings say so."""
    i, j = np.triu_indices(len(case.seconds), 1)
    fast, slow = np.where(case.seconds[i] < case.seconds[j], (i, j), (j, i))
    clear = case.seconds[slow] > DIFFERENT * case.seconds[fast]  # never where both failed
    fast, slow = fast[clear], slow[clear]
    runs = np.nan_to_num(case.passes, nan=np.inf)
    return fast, slow, np.logical_and.reduce(runs[:, fast] < runs[:, slow])


def in_order(case: Case, scores: Floats) -> float:
    """The share of pairs that the scores order as both timings do."""
    fast, slow, sure = pairs(case)
    better = (scores[fast] - scores[slow])[sure]
    return float(np.mean((better > 0.0) + 0.5 * (better == 0.0))) if len(better) else np.nan


def best_of_top(case: Case, scores: Floats, k: int) -> float:
    """How fast the fastest of the k highest scores is, beside the fastest of all."""
    return float(case.seconds.min() / case.seconds[np.argsort(-scores, kind="stable")[:k]].min())


def judge(cases: Sequence[Case], score: Score) -> dict[str, Any]:
    """Means over the cases of an operator, then over operators; the least over operators of the pairs in order."""
    each: dict[str, list[list[float]]] = {}
    for case in cases:
        scores = score(case)
        each.setdefault(case.operator, []).append(
            [in_order(case, scores), *(best_of_top(case, scores, k) for k in TOP)]
        )
    by_operator = {operator: np.nanmean(rows, axis=0) for operator, rows in each.items()}
    mean = np.nanmean(list(by_operator.values()), axis=0)
    return {
        "in_order": float(mean[0]),
        "least_in_order": float(min(row[0] for row in by_operator.values())),
        **{f"top{k}": float(value) for k, value in zip(TOP, mean[1:])},
        "operators": {operator: round(float(row[0]), 3) for operator, row in by_operator.items()},
    }


def taught(cases: Sequence[Case], settings: CostSettings) -> CostModel:
    model = CostModel(FEATURES, settings)
    for place, case in enumerate(cases):
        model.add_rows(case.features, case.labels, np.full(len(case.features), place), [c.name for c in cases])
    model.refresh()
    return model


def table(cases: Sequence[Case], settings: CostSettings, seed: int) -> dict[str, Any]:
    """All rows of the table.

    What is learned from never holds a case of the operator, or of the family, that is judged.
    """
    rng = np.random.default_rng(seed)
    still = replace(settings, growth=inf)  # of what is judged only own trees may learn
    by_operator = {o: taught([c for c in cases if c.operator != o], still) for o in {c.operator for c in cases}}
    by_family = {f: taught([c for c in cases if c.family != f], still) for f in {c.family for c in cases}}
    rows = {
        "chance": judge(cases, lambda c: rng.random(len(c.features))),
        "prior": judge(cases, lambda c: -c.features[:, PRIOR]),
        "model, another family": judge(cases, lambda c: by_family[c.family].predict(c.features)),
        "model, another operator": judge(cases, lambda c: by_operator[c.operator].predict(c.features)),
    }
    # With rows of the task itself: half of its points are told, the others are judged.
    known = {c.name: rng.permutation(len(c.features)) for c in cases}
    halves = [c.part(known[c.name][max(OWN) :]) for c in cases]
    rows["prior, half"] = judge(halves, lambda c: -c.features[:, PRIOR])
    rows["model, half, another operator"] = judge(halves, lambda c: by_operator[c.operator].predict(c.features))
    whole = {c.name: c for c in cases}
    for n in OWN:

        def told(case: Case, model: CostModel, n: int = n) -> Floats:
            own, group = whole[case.name].part(known[case.name][:n]), f"{case.name} {n}"
            model.add(group, own.features, own.labels)
            model.refresh()
            return model.predict(case.features, group)

        rows[f"model, half, {n} own rows alone"] = judge(halves, lambda c: told(c, CostModel(FEATURES, settings)))
        rows[f"model, half, {n} own rows"] = judge(halves, lambda c: told(c, by_operator[c.operator]))
    return {
        "cases": len(cases),
        "rows": sum(len(c.features) for c in cases),
        "threads": detect().threads,
        "sure": float(np.mean([pairs(c)[2].mean() for c in cases])),
        "table": rows,
    }


def show(result: Mapping[str, Any]) -> None:
    print(f"{result['cases']} cases, {result['rows']} points, {result['threads']} threads")
    print(f"both timings agree on {result['sure']:.0%} of the pairs\n")
    print(f"| {'ranked by':34s} | in order | least | {' | '.join(f'top {k:2d}' for k in TOP)} |")
    print(f"|{'-' * 36}|---------:|------:|{'|'.join('-------:' for _ in TOP)}|")
    for name, row in result["table"].items():
        tops = " | ".join(f"{row[f'top{k}']:6.3f}" for k in TOP)
        print(f"| {name:34s} | {row['in_order']:8.3f} | {row['least_in_order']:5.2f} | {tops} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="collect nothing")
    parser.add_argument("--data", type=Path, default=HERE.parent / "build" / "ranking", help="where timings are kept")
    parser.add_argument("--points", type=int, default=64, help="for each case")
    parser.add_argument("--seconds", type=float, default=300.0, help="for collecting")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not args.table:
        collect(args.data, args.points, args.seconds, args.seed)
    cases = read(args.data)
    if len({c.operator for c in cases}) < 2:
        raise SystemExit(f"{args.data} holds no timings of two operators; run without --table, or for longer")
    result = table(cases, CostSettings(), args.seed)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
