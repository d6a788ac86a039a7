"""Models by number of threads: time, efficiency, onnxruntime beside it, and where the time goes.

    python -m benchmarks.scaling resnet50 mobilenet_v2 --threads 1 --threads 2
    python -m benchmarks.scaling resnet50 --threads 16 --busy 1 --busy 2      # also beside busy CPUs
    python -m benchmarks.scaling resnet50 --callers 2 --callers 8             # also called by several Python threads
    python -m benchmarks.scaling resnet50 --beside mobilenet_v2               # and beside another model in its process
    python -m benchmarks.scaling --table                                      # print what is stored

Times are those of the fair clock (`stormdrop/compare/steady.py`), by default schedules. `efficiency` is the time with
one thread over the time with n and over n. The account is that of `model.profile(standalone=True)`: shares of the time
in which threads were late, waited, had no CPU, and computed longer than the kernel does alone.

Several callers loop over one model; a model beside it is called in a loop by a Python thread of its own. Two models
share one pool, or each has its own ("own pools"), as onnxruntime's sessions do. `ms` is the median of a call, its wait
for other calls included, `runs/s` those of all callers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from benchmarks.core import geometric_mean, say
from benchmarks.models import LARGEST_PROTO, by_the_clock, compiled, keep, known, stored
from stormdrop import zoo
from stormdrop.compare.steady import Loops, Side, steady
from stormdrop.device.host import detect
from stormdrop.model.profile import Profile
from tests.support.inputs import inputs_for

RESULTS = Path(__file__).parent / "results" / "scaling.json"
PROFILED = 40
SHARED, OWN = "stormdrop", "stormdrop, own pools"


def measure(name: str, threads: int, given: argparse.Namespace) -> dict[str, Any]:
    model = zoo.build(name)
    inputs = inputs_for(model)
    ours = compiled(model, threads, tuned=False)
    row = by_the_clock(ours, model, inputs, argparse.Namespace(threads=threads, seconds=given.seconds, busy=given.busy))
    row |= {"account": account(ours.profile(*inputs.values(), repeats=PROFILED, standalone=True))}
    with tempfile.TemporaryDirectory() as folder:
        sides = sides_of(name, threads, Path(folder))
        together: dict[str, Any] = {}
        for callers in given.callers:
            many = {kind: replace(side, callers=callers) for kind, side in sides.items() if kind != OWN}
            together[f"{callers} callers"] = figures(steady(many, given.seconds))
        for other in given.beside:
            theirs = sides_of(other, threads, Path(folder))
            both = {kind: replace(side, beside=theirs[kind]) for kind, side in sides.items()}
            together[f"beside {other}"] = figures(steady(both, given.seconds))
    return row | {"together": together}


def sides_of(name: str, threads: int, folder: Path) -> dict[str, Side]:
    """A model as each side runs it."""
    model = zoo.build(name)
    inputs = inputs_for(model)
    ours, source = folder / f"{name}.sd", folder / f"{name}.onnx"
    compiled(model, threads, tuned=False).save(ours)
    onnx.save(model, str(source), save_as_external_data=model.ByteSize() > LARGEST_PROTO, location=f"{name}.data")
    return {
        SHARED: Side("stormdrop", ours, threads, inputs),
        OWN: Side("stormdrop", ours, threads, inputs, {"pool": "own"}),
        "onnxruntime": Side("onnxruntime", source, threads, inputs),
    }


def figures(found: Mapping[str, Loops]) -> dict[str, dict[str, float]]:
    return {
        side: {
            "seconds": loops.runs.seconds,
            "runs_per_second": loops.runs_per_second,
            "beside_per_second": loops.beside_per_second,
            "cpu_seconds": loops.cpu_seconds,
        }
        for side, loops in found.items()
    }


def account(profile: Profile) -> dict[str, float]:
    """Shares of the model's time."""
    rows, whole = profile.rows, profile.seconds
    parts = {
        "late": sum(row.late for row in rows),
        "waiting": sum(row.waiting for row in rows),
        "off": sum(row.off for row in rows),
        "slower": sum(row.slowdown or 0.0 for row in rows),
    }
    return {name: seconds / whole for name, seconds in parts.items()}


def table(results: Mapping[str, Any]) -> str:
    """Of each machine, a line per model and number of threads; then those beside busy CPUs."""
    lines: list[str] = []
    for machine, models in results.items():
        rows = [(name, t, r) for name, all in models.items() for t, r in sorted(all.items(), key=lambda x: int(x[0]))]
        lines += [*([""] if lines else []), machine, ""]
        lines.append(
            "| model | threads | ms (least) | efficiency | onnxruntime ms | speed | CPU ms | late | waiting | off "
            "| slower by |"
        )
        lines.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
        for name, threads, r in rows:
            alone = models[name].get("1", {}).get("seconds")
            efficiency = f"{alone / r['seconds'] / int(threads):.0%}" if alone else ""
            shares = " | ".join(f"{share:.1%}" for share in r["account"].values())
            lines.append(
                f"| {name} | {threads} | {r['seconds'] * 1e3:.2f} ({r['least'] * 1e3:.2f}) | {efficiency} "
                f"| {r['their_seconds'] * 1e3:.2f} | {r['speedup']:.2f} | {r['cpu_seconds'] * 1e3:.1f} | {shares} |"
            )
        for threads in dict.fromkeys(t for _, t, _ in rows):
            some = [r["speedup"] for _, t, r in rows if t == threads]
            lines.append(f"| geometric mean ({len(some)}) | {threads} | | | | {geometric_mean(some):.2f} | | | | | |")
        lines += ["", "| model | threads | busy CPUs | times slower | onnxruntime, times slower |"]
        lines.append("|---|---:|---:|---:|---:|")
        for name, threads, r in rows:
            for count, beside in r.get("busy", {}).items():
                ours, theirs = beside["seconds"] / r["seconds"], beside["their_seconds"] / r["their_seconds"]
                lines.append(f"| {name} | {threads} | {count} | {ours:.2f} | {theirs:.2f} |")
        if any(r.get("together") for _, _, r in rows):
            lines += ["", "| model | threads | | side | ms | runs/s | runs/s of the other | CPU ms a run |"]
            lines.append("|---|---:|---|---|---:|---:|---:|---:|")
        for name, threads, r in rows:
            for what, sides in r.get("together", {}).items():
                for side, f in sides.items():
                    other = f"{f['beside_per_second']:.1f}" if f["beside_per_second"] else ""
                    lines.append(
                        f"| {name} | {threads} | {what} | {side} | {f['seconds'] * 1e3:.2f} "
                        f"| {f['runs_per_second']:.1f} | {other} | {f['cpu_seconds'] * 1e3:.1f} |"
                    )
    return "\n".join(lines)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *known()["zoo"]], metavar="MODEL")
    parser.add_argument("--threads", type=int, action="append", help="may be repeated (default: all CPUs)")
    parser.add_argument("--busy", type=int, action="append", default=[], metavar="N")
    parser.add_argument("--callers", type=int, action="append", default=[], metavar="N")
    parser.add_argument("--beside", action="append", default=[], choices=known()["zoo"], metavar="MODEL")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each side")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where results are kept")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args(None if arguments is None else list(arguments))
    for name in given.names if not given.table else ():
        for threads in given.threads or [detect().threads]:
            row = measure(name, threads, given)
            machine = f"{detect(threads).name}, {os.cpu_count()} CPUs"
            results = stored(given.json)
            results.setdefault(machine, {}).setdefault(name, {})[str(threads)] = row
            keep(given.json, results)
            say(
                f"{name}, {threads} threads: {row['seconds'] * 1e3:.2f} ms, onnxruntime {row['speedup']:.2f} times that"
            )
    print(table(stored(given.json)))


if __name__ == "__main__":
    main()
