"""What it costs, and saves, that a storm ends when it stops gaining, on the recorded tables.

    python -m benchmarks.stopping            # a minute; results go to benchmarks/results/stopping.json
    python -m benchmarks.stopping --table    # print what is stored

Whole searches (a storm, then droplets) with and without the end after `storm_patience` trials that gained nothing, each
with 2 % noise. `slower` is how much slower the best program of a search is than the fastest of the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.core import geometric_mean
from benchmarks.replayed import TABLES
from benchmarks.stored import StoredRows
from stormdrop.testing.replay import run_on_table
from stormdrop.testing.tables import Table
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.strategies import STRATEGIES

RESULTS = Path(__file__).parent / "results" / "stopping.json"
FOLDERS = (TABLES, TABLES.parent / "regions")
MOST_TRIALS = 1000
NOISE = 0.02
SEARCHES: Mapping[str, TuneSettings] = {
    "ends": TuneSettings(),
    "does not end": TuneSettings(storm_patience=MOST_TRIALS),
}


def searched(table: Table, settings: TuneSettings, seeds: Sequence[int]) -> dict[str, Any]:
    """Trials and quality of whole searches of one table."""
    done = [run_on_table(table, STRATEGIES["storm+droplet"], MOST_TRIALS, seed, settings, NOISE) for seed in seeds]
    return {
        "trials": sum(len(d.curve) for d in done) / len(done),
        "slower": geometric_mean([d.curve[-1] / table.optimum for d in done]),
    }


def table_of(results: Mapping[str, Any]) -> str:
    lines = ["| table | trials | without the end | slower | without the end |", "|---|---|---|---|---|"]
    ending, endless = (results.get(name, {}) for name in SEARCHES)
    for name in [k for k in ending if k in endless]:
        a, b = ending[name], endless[name]
        lines.append(f"| {name} | {a['trials']:.0f} | {b['trials']:.0f} | {a['slower']:.3f} | {b['slower']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="print the stored results")
    parser.add_argument("--again", action="store_true", help="forget what is stored")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = StoredRows(given.results)
    if given.again:
        rows.results.clear()
    for path in [] if given.table else [p for folder in FOLDERS for p in sorted(folder.glob("*.npz"))]:
        table = Table.load(path)
        for name, settings in SEARCHES.items():
            rows.once(name, path.stem, lambda t=table, s=settings: searched(t, s, range(given.seeds)))
    print(table_of(rows.results))


if __name__ == "__main__":
    main()
