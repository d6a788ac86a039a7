"""How many measurements a search needs: every strategy on recorded tables, Optuna's TPE beside them.

    python -m benchmarks.replayed                    # all tables; results in benchmarks/results/replayed.json
    python -m benchmarks.replayed gmm --seeds 5      # one of them, quickly
    python -m benchmarks.replayed --table            # print the stored results

Counted are candidates, until one is within 5 % of the table's optimum; the median of many seeds. Every search may know
what is legal without measuring. The cost model starts empty; storm begins, as always, from what the analytic prior
likes. Random search takes the sketches in turn and draws from their rows; a droplet begins at a random row, and at
another one when it ends. TPE sees each knob as an ordered range, the sketch and flags as categories; what it proposes
twice, or what is illegal, is not counted.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.core import say
from stormdrop.device.cpus import available_cpus
from stormdrop.testing.replay import run_on_table
from stormdrop.testing.tables import Table, TableSpace
from stormdrop.tuning.droplet import Droplet
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.strategies import STRATEGIES, Context, RandomSearch, StrategyFactory
from stormdrop.tuning.strategy import Candidate, Outcome, Proposal, Strategy, candidate

TABLES = Path(__file__).parents[1] / "tests" / "data" / "tables"
RESULTS = Path(__file__).parent / "results" / "replayed.json"
SLACK = 0.05
BATCH = 16  # what our searches are asked for at once: where measuring costs nothing, building together gains nothing
ASKS = 4  # proposals of TPE for each measurement it may make

Search = Callable[[Table, int, int, float], int | None]
"""A table, a number of measurements, a seed, and seconds that are enough: the measurements that were needed, None if
too few.
"""


class Rain:
    """Droplets from random starts, one after the other."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[Candidate, float | None] = {}
        self._droplet = self._next()

    phase = "droplet"
    eager = False

    def ask(self, n: int) -> Proposal:
        for _ in range(100):  # a start that is known to lead nowhere ends at once
            proposal = self._droplet.ask(n)
            if proposal.candidates:
                return proposal
            self._droplet = self._next()
        return Proposal(())

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        self._known |= {o.candidate: o.value for o in outcomes}
        self._droplet.tell(outcomes)

    def _next(self) -> Droplet:
        c = self._context
        k = int(c.rng.integers(len(c.spaces)))
        start = candidate(k, c.spaces[k].sample_legal(1, c.rng)[0])
        return Droplet(c.spaces, [(start, self._known.get(start))], c.ranker, c.rng, c.settings.droplet, self._known)


def _random(context: Context) -> Strategy:
    return RandomSearch(context.spaces, context.rng)


def _ours(factory: StrategyFactory) -> Search:
    def search(table: Table, trials: int, seed: int, enough: float) -> int | None:
        return run_on_table(table, factory, trials, seed, TuneSettings(batch=BATCH), enough=enough).needed(enough)

    return search


def tpe(table: Table, trials: int, seed: int, enough: float) -> int | None:
    """Optuna's default sampler. A point that is illegal counts as pruned: the sampler learns to avoid it."""
    optuna: Any = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study: Any = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    seen: set[Candidate] = set()
    for _ in range(ASKS * trials):
        trial: Any = study.ask()
        k = int(trial.suggest_categorical("sketch", list(range(len(table.spaces)))))
        space = table.spaces[k]
        point = space.canonical(np.array([_suggested(trial, k, space)], dtype=np.int64))
        row = int(space.rows(point)[0])
        seconds = float(space.seconds[row]) if row >= 0 else np.nan
        if row >= 0:
            seen.add(candidate(k, point[0]))
        if seconds <= enough:
            return len(seen)
        if len(seen) == trials:
            break
        if np.isnan(seconds):
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, float(np.log(seconds)))
    return None


def _suggested(trial: Any, k: int, space: TableSpace) -> list[int]:
    found: list[int] = []
    for knob in space.knobs:
        name = f"{k} {knob.name}"
        if len(knob.choices) == 1:
            found.append(knob.choices[0])
        elif knob.unit == "flag":
            found.append(int(trial.suggest_categorical(name, list(knob.choices))))
        else:
            found.append(knob.choices[int(trial.suggest_int(name, 0, len(knob.choices) - 1))])
    return found


SEARCHES: Mapping[str, Search] = {
    "random": _ours(_random),
    "storm": _ours(STRATEGIES["storm"]),
    "droplet": _ours(Rain),
    "storm+droplet": _ours(STRATEGIES["storm+droplet"]),
    "Optuna TPE": tpe,
}


@cache
def _loaded(path: Path) -> Table:
    return Table.load(path)


def needed(path: Path, search: str, trials: int, seed: int) -> int | None:
    """Measurements that one search needs on one table; None where those are more than `trials`."""
    table = _loaded(path)
    return SEARCHES[search](table, min(trials, table.size), seed, table.optimum * (1 + SLACK))


def compared(path: Path, searches: Sequence[str], seeds: int, trials: int, processes: Executor) -> dict[str, Any]:
    """Measurements that each search needs on one table."""
    table = _loaded(path)
    found: dict[str, Any] = {}
    for name in searches:
        began = time.monotonic()
        each = list(processes.map(partial(needed, path, name, trials), range(seeds)))
        lasted = time.monotonic() - began
        found[name] = {"median": _median(each), "each": each, "seconds": round(lasted, 1)}
        say(f"  {name}: {_shown(found[name]['median'])} measurements, {lasted:.1f} s")
    return {
        "task": table.task.name,
        "programs": table.size,
        "optimum": table.optimum,
        "near": table.share_within(SLACK),
        "trials": min(trials, table.size),
        "searches": found,
    }


def _median(each: Sequence[int | None]) -> float | None:
    """None where more than half of the seeds came too late."""
    middle = median(np.inf if n is None else n for n in each)
    return float(middle) if np.isfinite(middle) else None


def _shown(value: float | None) -> str:
    return "too many" if value is None else f"{value:g}"


def report(results: Mapping[str, Any]) -> str:
    """Tables as rows, searches as columns: the median number of measurements, and how often storm+droplet's that is."""
    lines: list[str] = []
    for name, one in results.items():
        best = f"{one['optimum'] * 1e6:.1f} µs"
        lines.append(
            f"{name}: {one['task']}, {one['programs']} programs, {one['near']:.2%} within {SLACK:.0%} of {best}"
        )
        ours = one["searches"].get("storm+droplet", {}).get("median")
        for search, found in one["searches"].items():
            value = found["median"]
            times = f"{value / ours:6.1f} x" if value is not None and ours else ""
            late = sum(n is None for n in found["each"])
            misses = f"   {late} of {len(found['each'])} not within {one['trials']}" if late else ""
            lines.append(f"  {search:14s} {_shown(value):>9s} {times}{misses}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="how many measurements each search needs on recorded tables")
    parser.add_argument("tables", nargs="*", help="their names or files (default: all that are in the repository)")
    parser.add_argument("--search", action="append", choices=list(SEARCHES), help="only these (default: all)")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=1000, help="measurements after which a search is given up")
    parser.add_argument("--processes", type=int, default=available_cpus())
    parser.add_argument("--table", action="store_true", help="print the stored results")
    given = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if given.table:
        print(report(results))
        return
    paths = [Path(t) if t.endswith(".npz") else TABLES / f"{t}.npz" for t in given.tables] or sorted(
        TABLES.glob("*.npz")
    )
    if not paths:
        sys.exit(f"there are no tables in {TABLES}; python -m benchmarks.record makes one")
    searches = list(given.search or SEARCHES)
    if "Optuna TPE" in searches and importlib.util.find_spec("optuna") is None:
        say("Optuna is not installed (pip install '.[bench]'): its part is left out")
        searches.remove("Optuna TPE")
    is_whole = not given.search and given.seeds >= 20
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as processes:
        for path in paths:
            say(path.stem)
            results[path.stem] = compared(path, searches, given.seeds, given.trials, processes)
            if is_whole:
                RESULTS.parent.mkdir(exist_ok=True)
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(report({p.stem: results[p.stem] for p in paths}))


if __name__ == "__main__":
    main()
