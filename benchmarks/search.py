"""The search's figures, each part alone and resumable: what is in benchmarks/results/search.json is not measured again.

    python -m benchmarks.search                      # every part; hours on two cores, most of it the part `long`
    python -m benchmarks.search rate reach           # some parts
    python -m benchmarks.search long --seeds 1       # fewer seeds; run again with more, and only those are added
    python -m benchmarks.search --table              # print what is stored
    python -m benchmarks.search rate --again         # measure a part anew
    python -m benchmarks.search long --only GMM C2D --results elsewhere.json
    python -m benchmarks.search long --minutes 9     # what fits into so many minutes; run again to go on

rate    candidates per second of one whole search, from before its process starts until it has ended
reach   wall time from nothing to TVM's share of peak after 300 trials, and how often the default is there already
fresh   the recorded seconds of winners against another fresh process
ranker  the learned model against random ranking and against the estimate alone, 100 trials of storm
gain    what droplets add to storms of several sizes; gain-unseeded: to storms that begin from random points
long    the default search (a storm of at most 300 trials, then droplets) against a storm of 2,000
longest the same against 10,000 trials, few operators

Two kernels are compared by timing them in turns in a process that has seen neither. All searches begin without a store.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.core import geometric_mean, label
from benchmarks.long_storm import EXPECTED, LONG_PARTS, long_table
from benchmarks.search_bench import ONE_EACH, ROUNDS, TURN_SECONDS, Bench, Case, ratio, seconds_in_turns
from benchmarks.stored import StoredRows, TimeIsUp
from stormdrop.device.host import detect
from stormdrop.device.peak import PeakMeter
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.operators.catalogue import build
from stormdrop.space.cpu_judge import FEATURES
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, replay
from stormdrop.store.record import versions
from stormdrop.tuning.api import tune
from stormdrop.tuning.cost_model import CostModel
from stormdrop.tuning.droplet import Droplet
from stormdrop.tuning.events import Event, Measured
from stormdrop.tuning.resources import RecordOrigin, Resources
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.session import Session
from stormdrop.tuning.storm import Storm
from stormdrop.tuning.strategies import Context, StrategyFactory, best_of_each
from stormdrop.tuning.strategy import Candidate, Space, Strategy, candidate
from stormdrop.tuning.tuned import Trial

RESULTS = Path(__file__).parent / "results" / "search.json"
REACH: tuple[tuple[Case, float, float], ...] = (  # a case, TVM's share of peak after 300 trials, the seconds it took
    (("GMM", (1, 512, 512, 512)), 0.96, 215),
    (("C2D", (1, 56, 56, 64, 64, 3, 1, 1)), 0.98, 285),
    (("C2D", (1, 14, 14, 256, 256, 3, 1, 1)), 0.98, 262),
)
SIZES = (10, 25, 50, 100, 200, 300)
KEPT = 12
"""Of a search's improvements, the last ones; with the first, they are timed again at its end."""


# ---- from nothing --------------------------------------------------------------------------------------------------


def child(case: Case, seed: int, threads: int) -> None:
    """A whole search as a user's script would make it; prints what the parent needs to know."""
    improvements: list[tuple[float, Schedule]] = []

    def listen(event: Event) -> None:
        if isinstance(event, Measured) and event.is_best:
            improvements.append((time.time(), event.trial.schedule))

    target, task = detect(threads), build(*case)
    tuned = tune(task, target, seed=seed, listen=listen)
    ended = time.time()
    meter = PeakMeter(target)
    meter.search(3)
    peak = median(meter.gflops() for _ in range(9))
    del improvements[1:-KEPT]  # the first one is the default
    schedules = [s for _, s in improvements]
    with Measurer(target, MeasureSettings(seed=seed, turn_seconds=TURN_SECONDS)) as measurer:
        again = measurer.retime(task, schedules, ROUNDS)
    peak = max(peak, median(meter.gflops() for _ in range(9)))
    shares = [task.flops / r.seconds / 1e9 / peak if isinstance(r, Timing) else 0.0 for r in again]
    print(
        json.dumps(
            {
                "trials": tuned.trials,
                "failed": tuned.failed,
                "ended": ended,
                "peak": peak,
                "seconds": tuned.seconds,
                "stopped": tuned.stopped,
                "improvements": [[at, share] for (at, _), share in zip(improvements, shares)],
            }
        )
    )


def from_nothing(case: Case, seed: int, threads: int) -> dict[str, Any]:
    """Run `child` in a new process with an empty cache directory; times are seconds since before it was started."""
    op, args = case
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | {"STORMDROP_CACHE_DIR": empty}
        command = [sys.executable, "-m", "benchmarks.search", "--child", op, *map(str, args)]
        command += ["--seed", str(seed), "--threads", str(threads)]
        began = time.time()
        done = subprocess.run(
            command, env=environment, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, check=True
        )
    found = json.loads(done.stdout)
    found["wall"] = found.pop("ended") - began
    found["improvements"] = [[at - began, share] for at, share in found["improvements"]]
    return found


def part_rate(bench: Bench) -> None:
    case = REACH[2][0]
    for seed in range(bench.seeds):

        def measure(seed: int = seed) -> dict[str, Any]:
            found = from_nothing(case, seed, bench.target.threads)
            return {
                "rate": found["trials"] / found["wall"],
                **{k: found[k] for k in ("trials", "failed", "wall", "stopped")},
            }

        bench.once("rate", f"{label(*case)} seed {seed}", measure)


def part_reach(bench: Bench) -> None:
    """When the first improvement was measured that is at TVM's share of peak when timed again, in turns, at the end.

    `default` is the share of peak of the first of them: of the default schedule, which a search measures first.
    """
    for case, share, theirs in REACH:
        for seed in range(5):

            def measure(
                case: Case = case, share: float = share, theirs: float = theirs, seed: int = seed
            ) -> dict[str, Any]:
                found = from_nothing(case, seed, bench.target.threads)
                reached = [at for at, s in found["improvements"] if s >= share]
                best = max(s for _, s in found["improvements"])
                return {
                    "seconds": min(reached, default=None),
                    "share": best,
                    "default": found["improvements"][0][1],
                    "wanted": share,
                    "theirs": theirs,
                    "wall": found["wall"],
                }

            bench.once("reach", f"{label(*case)} seed {seed}", measure)


def part_fresh(bench: Bench) -> None:
    for case in bench.cases(ONE_EACH):

        def measure(case: Case = case) -> dict[str, Any]:
            task = build(*case)
            tuned = tune(task, bench.target, seed=1, trials=64)
            with bench.measurer(seed=99) as measurer:
                again = measurer.prove(task, tuned.best)
            seconds = again.seconds if isinstance(again, Timing) else float("nan")
            return {"recorded": tuned.seconds, "again": seconds, "ratio": seconds / tuned.seconds}

        bench.once("fresh", label(*case), measure)


# ---- one ingredient at a time --------------------------------------------------------------------------------------


class _BlindRanker:
    """Knows nothing: what a search finds with it is owed to measuring alone."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
        return self._rng.random(len(points))


class _EstimateRanker:
    """The estimate alone: nothing is learned from what is measured."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._spaces = spaces

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
        return -np.log(self._spaces[sketch].prior(points))


def _unseeded_storm(context: Context) -> Strategy:
    return Storm(context.spaces, context.ranker, context.rng, context.settings.storm, ())


def _unseeded_blind_storm(context: Context) -> Strategy:
    ranker = _BlindRanker(np.random.default_rng(context.rng.integers(2**32)))
    return _unseeded_storm(replace(context, ranker=ranker))


def _unseeded_estimate_storm(context: Context) -> Strategy:
    return _unseeded_storm(replace(context, ranker=_EstimateRanker(context.spaces)))


def part_ranker(bench: Bench) -> None:
    """How much slower the best of 100 trials is where the ranking is random, and where it is the estimate's; the seeds
    are withheld from all."""
    for case in bench.cases(ONE_EACH):
        for seed in range(bench.seeds):

            def measure(case: Case = case, seed: int = seed) -> dict[str, Any]:
                task = build(*case)
                with bench.measurer(seed) as measurer:
                    found = [
                        tune(task, bench.target, search=s, trials=100, seed=seed, measurer=measurer)
                        for s in (_unseeded_storm, _unseeded_blind_storm, _unseeded_estimate_storm)
                    ]
                seconds = seconds_in_turns(bench.target, task, [t.best for t in found])
                return {"loss": ratio(seconds[1], seconds[0]), "estimate": ratio(seconds[2], seconds[0])}

            bench.once("ranker", f"{label(*case)} seed {seed}", measure)


def part_gain(bench: Bench) -> None:
    _gain(bench, "gain", "storm")


def part_gain_unseeded(bench: Bench) -> None:
    """The same where the storm begins from random points, as Ansor's does, instead of the prior's best."""
    _gain(bench, "gain-unseeded", _unseeded_storm)


def _gain(bench: Bench, part: str, search: str | StrategyFactory) -> None:
    for case in bench.cases(ONE_EACH):
        for seed in range(bench.seeds):
            bench.once(part, f"{label(*case)} seed {seed}", lambda c=case, s=seed: _gains(bench, build(*c), s, search))


def _gains(bench: Bench, task: Task, seed: int, search: str | StrategyFactory) -> dict[str, Any]:
    """One storm; droplets from its first 10, 25, … trials, with a model that has seen those only."""
    with bench.measurer(seed) as measurer:
        storm = tune(task, bench.target, search=search, trials=max(SIZES), seed=seed, measurer=measurer)
        pairs = {
            size: _droplet_from(bench, task, measurer, storm.history[:size], seed)
            for size in SIZES
            if size <= storm.trials
        }
    flat = [s for pair in pairs.values() for s in pair[:2]]
    seconds = seconds_in_turns(bench.target, task, flat)
    rows: dict[str, Any] = {}
    for i, (size, (start, end, trials)) in enumerate(pairs.items()):
        gain = 1.0 if start == end else ratio(seconds[2 * i], seconds[2 * i + 1])
        rows[str(size)] = {"gain": gain, "trials": trials, "seconds": median(seconds[2 * i + 1])}
    return rows


def _droplet_from(
    bench: Bench, task: Task, measurer: Measurer, trials: Sequence[Trial], seed: int
) -> tuple[Schedule, Schedule, int]:
    """The fastest of some trials, where droplets from them end, and how many kernels those measured."""
    cost = CostModel(FEATURES, TuneSettings().cost)
    values: dict[Candidate, float | None] = {}
    brief: set[Candidate] = set()

    def factory(context: Context) -> Strategy:
        place = {(s.variant, s.structure.steps): k for k, s in enumerate(session_spaces)}
        for trial in trials:
            sketch, point = replay(task, trial.schedule, bench.target)
            c = candidate(place[sketch.variant, sketch.structure.steps], point)
            values[c] = trial.result.seconds if isinstance(trial.result, Timing) else None
            if isinstance(trial.result, Timing) and trial.result.stopped_early:
                brief.add(c)
            seconds = np.array([np.nan if (v := values[c]) is None else v])
            cost.add("first", sketch.features(np.array([c.point])), seconds)
        cost.refresh()
        starts = best_of_each(values, brief, context.settings.droplet.starts)
        return Droplet(context.spaces, starts, context.ranker, context.rng, context.settings.droplet, values)

    from stormdrop.space.default import ranked
    from stormdrop.space.sketch import sketches

    session_spaces = [sketch for sketch, _, _ in ranked(sketches(task, bench.target))]
    origin = RecordOrigin("droplet", seed, versions(bench.target))
    session = Session(task, Resources(bench.target, measurer, factory, origin, cost))
    while session.round(16):
        pass
    timed = [t for t in trials if isinstance(t.result, Timing) and not t.result.stopped_early]
    start = min(timed, key=lambda t: t.result.seconds if isinstance(t.result, Timing) else 0.0).schedule
    strategy = session.strategy
    assert isinstance(strategy, Droplet)
    end = strategy.best()
    return start, start if end is None else session.spaces[end.sketch].schedule(end.point), session.measured


# ---- showing -------------------------------------------------------------------------------------------------------


def table(results: Mapping[str, Any]) -> str:
    lines: list[str] = [f"{results.get('machine', '?')}, {results.get('threads', '?')} threads, f32", ""]
    if rows := results.get("rate"):
        lines.append(f"- rate: {_values(rows, 'rate', '{:.0f}')} candidates per second")
    if rows := results.get("reach"):
        for case, share, theirs in REACH:
            searches = [r for k, r in rows.items() if k.startswith(label(*case) + " seed")]
            found = [r["seconds"] for r in searches]
            shown = ", ".join("never" if s is None else f"{s:.1f}" for s in found)
            middle = median(float("inf") if s is None else s for s in found) if found else float("nan")
            first = [r["default"] >= share for r in searches if "default" in r]
            by_default = f"; by the default schedule in {sum(first)} of {len(first)}" if first else ""
            lines.append(
                f"- reach: {label(*case)} at {share:.0%} of peak after {shown} s (median {middle:.1f}; TVM "
                f"{theirs:.0f}{by_default})"
            )
    if rows := results.get("fresh"):
        off = [abs(r["ratio"] - 1) for r in rows.values()]
        lines.append(f"- fresh: recorded against re-measured: median {median(off):.1%} apart, most {max(off):.1%}")
    if rows := results.get("ranker"):
        lines.append(
            f"- ranker: random ranking is {geometric_mean([r['loss'] for r in rows.values()]):.3f}x slower at 100 "
            "trials"
        )
        if alone := [r["estimate"] for r in rows.values() if "estimate" in r]:
            shown = f"{geometric_mean(alone):.3f}x slower in {len(alone)} searches"
            lines.append(f"- ranker: ranking by the estimate alone is {shown}")
    for part in ("gain", "gain-unseeded"):
        rows = results.get(part, {})
        lines += [
            "",
            f"| {part}: storm size | droplet's gain (geometric mean) | least | most | trials (median) |",
            "|---|---|---|---|---|",
        ]
        for size in map(str, SIZES):
            found = [r[size] for r in rows.values() if size in r]
            gains = [f["gain"] for f in found]
            if gains:
                trials = median(f["trials"] for f in found)
                lines.append(
                    f"| {size} | {geometric_mean(gains):.3f} | {min(gains):.3f} | {max(gains):.3f} | {trials:.0f} |"
                )
    for part in LONG_PARTS:
        if rows := results.get(part):
            lines += ["", *long_table(part, rows, EXPECTED[part])]
    return "\n".join(lines)


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Droplets' gain over the size of the storm before them: geometric mean, and from the least to the most."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    lines = (
        ("gain", "tab:blue", "storm from the prior's best"),
        ("gain-unseeded", "tab:orange", "storm from random points"),
    )
    for part, colour, name in lines:
        gains = [[r[str(n)]["gain"] for r in results.get(part, {}).values() if str(n) in r] for n in SIZES]
        if all(gains):
            axes.plot(SIZES, [geometric_mean(g) for g in gains], "o-", color=colour, label=name)
            axes.fill_between(SIZES, [min(g) for g in gains], [max(g) for g in gains], color=colour, alpha=0.12)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(
        xscale="log",
        xticks=SIZES,
        xticklabels=SIZES,
        xlabel="trials of the storm",
        ylabel="speed after droplets / before",
    )
    axes.minorticks_off()
    axes.set_title("One case of each operator: geometric mean; least to most", fontsize=10)
    axes.legend()
    figure.savefig(path, dpi=110)


def _values(rows: Mapping[str, Any], key: str, form: str) -> str:
    return ", ".join(form.format(r[key]) for r in rows.values())


PARTS: dict[str, Callable[[Bench], None]] = {
    "rate": part_rate,
    "reach": part_reach,
    "fresh": part_fresh,
    "ranker": part_ranker,
    "gain": part_gain,
    "gain-unseeded": part_gain_unseeded,
    **LONG_PARTS,
}


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"some of: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print the stored results")
    parser.add_argument("--plot", type=Path, help="draw the parts gain and gain-unseeded")
    parser.add_argument("--again", action="store_true", help="forget what is stored of these parts")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="OP", help="some operators, where a part has one case of each"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, help="begin nothing that would probably last longer than so many")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args(None if arguments is None else list(arguments))
    if given.child:
        child((given.child[0], tuple(map(int, given.child[1:]))), given.seed, given.threads)
        return
    rows = StoredRows(given.results, given.minutes)
    results = rows.results
    for name in given.parts:
        if name not in PARTS:
            parser.error(f"unknown part {name}")
    if given.plot:
        plot(results, given.plot)
    elif not given.table:
        target = detect(given.threads)
        results |= {"machine": target.name, "threads": target.threads}
        if given.again:
            for name in given.parts or PARTS:
                results.pop(name, None)
        with suppress(TimeIsUp):
            for name in given.parts or PARTS:
                PARTS[name](Bench(target, given.seeds, rows, given.only))
    print(table(results))


if __name__ == "__main__":
    main()
