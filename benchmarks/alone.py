"""Kernels alone against in the model: whether what a search times is what the model then takes.

    python -m benchmarks.alone resnet50 mobilenet_v2 --threads 1 --threads 2
    python -m benchmarks.alone --table                            # print what is stored

Of the kernels that take at least 1 % of a model, by default schedules: how many take within 10 % of their time in the
model when they are timed alone, and the one that is furthest off. Both ways of timing alone are of one run of
`model.profile(standalone=True)`: *again and again* (each run finds what the last one left in the near caches, weights
cold where the model's exceed the last cache), and *as tuning times them* (`stormdrop/device/interlude.py`). A figure
below 1 is a kernel that takes less time alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.core import say
from benchmarks.models import compiled, keep, known, stored
from stormdrop import zoo
from stormdrop.device.host import detect
from stormdrop.model.profile import Profile
from tests.support.inputs import inputs_for

RESULTS = Path(__file__).parent / "results" / "alone.json"
LEAST_SHARE = 0.01
NEAR = 0.1


def measure(name: str, threads: int, repeats: int) -> dict[str, Any]:
    model = zoo.build(name)
    ours = compiled(model, threads, tuned=False)
    profile = ours.profile(*inputs_for(model).values(), repeats=repeats, standalone=True)
    return {"seconds": profile.seconds, "kernels": len(profile.rows), **compared(profile)}


def compared(profile: Profile) -> dict[str, Any]:
    """Both ways of timing alone, over the kernels that matter."""
    rows = [row for row in profile.rows if row.share >= LEAST_SHARE]
    ways = {
        "again": {row: row.standalone / row.seconds for row in rows if row.standalone is not None},
        "judged": {row: row.judged / row.seconds for row in rows if row.judged is not None},
    }
    found: dict[str, Any] = {"large": len(rows)}
    for way, ratios in ways.items():
        worst = max(ratios, key=lambda row: abs(ratios[row] - 1))
        near = [row for row, ratio in ratios.items() if abs(ratio - 1) <= NEAR]
        found[way] = {
            "near": len(near) / len(rows),
            "sum": sum(ratios[row] * row.seconds for row in rows) / sum(row.seconds for row in rows),
            "worst": ratios[worst],
            "worst_kernel": worst.label,
            "worst_share": worst.share,
        }
    return found


def table(results: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for machine, models in results.items():
        lines += [*([""] if lines else []), machine, ""]
        lines.append(
            "| model | threads | ms | kernels ≥ 1 % | again and again: within 10 % | sum | worst "
            "| as tuning times: within 10 % | sum | worst | kernel |"
        )
        lines.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|")
        for name, all_threads in models.items():
            for threads, r in sorted(all_threads.items(), key=lambda item: int(item[0])):
                cells = [f"{r[w]['near']:.0%} | {r[w]['sum']:.2f} | {r[w]['worst']:.2f}" for w in ("again", "judged")]
                kernel = f"{r['judged']['worst_kernel']}, {r['judged']['worst_share']:.1%}"
                head = f"{name} | {threads} | {r['seconds'] * 1e3:.2f} | {r['large']} of {r['kernels']}"
                lines.append(f"| {head} | {' | '.join(cells)} | {kernel} |")
    return "\n".join(lines)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *known()["zoo"]], metavar="MODEL")
    parser.add_argument("--threads", type=int, action="append", help="may be repeated (default: all CPUs)")
    parser.add_argument("--repeats", type=int, default=100, help="runs of the model, and of each kernel alone")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where results are kept")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args(None if arguments is None else list(arguments))
    for name in given.names if not given.table else ():
        for threads in given.threads or [detect().threads]:
            row = measure(name, threads, given.repeats)
            results = stored(given.json)
            machine = f"{detect(threads).name}, {os.cpu_count()} CPUs"
            results.setdefault(machine, {}).setdefault(name, {})[str(threads)] = row
            keep(given.json, results)
            again, judged = (f"{row[way]['near']:.0%}" for way in ("again", "judged"))
            say(f"{name}, {threads} threads: within 10 %: again and again {again}, as tuning times them {judged}")
    print(table(stored(given.json)))


if __name__ == "__main__":
    main()
