"""Whole models against onnxruntime: batch 1, f32, each side in a process of its own, in steady loops.

    python -m benchmarks.models                          # all that are not in benchmarks/results/models.json yet
    python -m benchmarks.models resnet50 light_vgg19     # these, measured anew
    python -m benchmarks.models --set small              # ten that take less than 2 ms
    python -m benchmarks.models --set light --tuned      # with the store's best schedules instead of the defaults
    python -m benchmarks.models resnet50 --profile --overhead --rss --float64
    python -m benchmarks.models --table                  # print what is stored

A model of the zoo goes by its name, a light one of ONNX's suite by light_NAME, one below 2 ms by small_NAME. Both
sides get the same number of threads and all their optimisations; onnxruntime's threads spin as they do by default.
`stormdrop/compare/steady.py` is the clock. A run is what a user's call takes, from Python to Python.

--busy N    also beside N processes that each keep a CPU busy (several times)
--rss       peak memory of a fresh process that loads the model from a file and runs it, for each side
--overhead  how much of a run is not spent in kernels
--profile   every kernel inside the model against alone
--float64   the errors of both sides against float64
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import stormdrop
from benchmarks.core import geometric_mean, say
from benchmarks.footprint import footprint
from stormdrop import zoo
from stormdrop.compare.steady import Loops, Side, steady
from stormdrop.compiler.compile import compile as compile_model
from stormdrop.device.host import detect
from stormdrop.model.model import Model
from tests.support.float64 import reference64, relative_error
from tests.support.inputs import inputs_for
from tests.support.light_models import light
from tests.support.light_models import names as light_names
from tests.support.small_models import SMALL, small

Array = NDArray[Any]
RESULTS = Path(__file__).parent / "results" / "models.json"
LIGHT, LITTLE = "light_", "small_"
LEAST_ROUNDS = 5
LARGEST_PROTO = 1 << 31


def known() -> dict[str, list[str]]:
    """The names of every set; `all` are those of well-known networks."""
    sets = {"light": [LIGHT + name for name in light_names()], "zoo": list(zoo.names())}
    return sets | {"all": [*sets["light"], *sets["zoo"]], "small": [LITTLE + name for name in SMALL]}


def build(name: str) -> onnx.ModelProto:
    if name.startswith(LITTLE):
        return small(name.removeprefix(LITTLE))
    return light(name.removeprefix(LIGHT)) if name.startswith(LIGHT) else zoo.build(name)


def compiled(model: onnx.ModelProto | str, threads: int, tuned: bool) -> Model:
    return (
        compile_model(model, threads=threads)
        if tuned
        else compile_model(model, schedules=lambda task: None, threads=threads)
    )


def session_of(model: onnx.ModelProto | str, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    given = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


# ---- measuring -----------------------------------------------------------------------------------------------------


def turn(run: Callable[[], object], runs: int) -> list[float]:
    """Seconds of some runs, after one that does not count."""
    run()
    found: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


def by_the_clock(
    ours: Model, model: onnx.ModelProto, inputs: Mapping[str, Array], given: argparse.Namespace
) -> dict[str, Any]:
    """Medians and minima of both sides, and how many times faster ours is by medians; alone and beside busy CPUs."""
    threads = int(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        compiled, source = Path(folder) / "model.sd", Path(folder) / "model.onnx"
        ours.save(compiled)
        onnx.save(model, str(source), save_as_external_data=model.ByteSize() > LARGEST_PROTO)
        sides = {
            "stormdrop": Side("stormdrop", compiled, threads, inputs),
            "onnxruntime": Side("onnxruntime", source, threads, inputs),
        }
        row: dict[str, Any] = _figures(steady(sides, given.seconds))
        if given.busy:
            row["busy"] = {str(n): _figures(steady(sides, given.seconds, busy=n)) for n in given.busy}
    return row


def _figures(found: Mapping[str, Loops]) -> dict[str, Any]:
    row: dict[str, float] = {}
    for prefix, loops in (("", found["stormdrop"]), ("their_", found["onnxruntime"])):
        row[f"{prefix}seconds"] = loops.runs.seconds
        row[f"{prefix}least"] = float(loops.runs.each.min())
        row[f"{prefix}rested"] = float(np.median(loops.rested))
        row[f"{prefix}cpu_seconds"] = loops.cpu_seconds
    return row | {"speedup": row["their_seconds"] / row["seconds"]}


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    model, threads = build(name), int(given.threads)
    inputs = inputs_for(model)
    start = time.perf_counter()
    ours = compiled(model, threads, given.tuned)
    row: dict[str, Any] = {"compile_seconds": time.perf_counter() - start}
    start = time.perf_counter()
    session = session_of(model, threads)
    row["their_load_seconds"] = time.perf_counter() - start
    names = [o.name for o in model.graph.output]
    wanted = dict(zip(names, session.run(names, inputs)))
    found = ours.run(inputs)
    row["error"] = max(relative_error(found[k], wanted[k]) for k in names)
    if given.float64:
        exact = reference64(model, inputs)
        row["error64"], row["their_error64"] = (
            max(relative_error(side[k], exact[k]) for k in names) for side in (found, wanted)
        )
        del exact
    del session
    row |= by_the_clock(ours, model, inputs, given)
    row["kernels"], row["kinds"] = len(ours.image.calls), len(ours.image.kernels)
    if given.overhead or given.profile:
        row |= inside(ours, list(inputs.values()), row["seconds"], given.profile)
    if given.rss:
        row["rss"] = memory(model, threads, given.tuned)
    return row


def inside(model: Model, inputs: Sequence[Array], wall: float, alone: bool) -> dict[str, Any]:
    """What of a run's time kernels take, and with `alone` how long they take outside of the model."""
    repeats = max(4, min(200, int(0.5 / wall)))
    rounds: list[tuple[float, float, float]] = []
    for _ in range(LEAST_ROUNDS):  # the round that was disturbed least says most
        whole = median(turn(lambda: model(*inputs), repeats))
        native = float(np.median(model.bench(*inputs, repeats=repeats)))
        rounds.append(
            (whole, native, model.profile(*inputs, repeats=repeats).seconds)
        )  # all kernels of a run, the median of runs
    whole, native, kernels = (min(times) for times in zip(*rounds))
    found: dict[str, Any] = {
        "overhead": {"wall": whole, "native": native, "kernels": kernels, "share": (whole - kernels) / whole}
    }
    if alone:
        profile = model.profile(*inputs, repeats=repeats, standalone=True)
        kernels = sum(row.seconds for row in profile.rows)
        say(str(profile.by_task()))
        standalone = sum(row.standalone or 0.0 for row in profile.rows)
        rows = [
            {
                "label": row.label,
                "digest": row.digest,
                "count": row.count,
                "seconds": row.seconds,
                "standalone": row.standalone,
                "gflops": row.gflops,
                "gbs": row.gbs,
                "peak_share": row.peak_share,
            }
            for row in profile.by_task().rows
        ]
        found["profile"] = {
            "in_model": kernels,
            "standalone": standalone,
            "peak_gflops": profile.peak_gflops,
            "kernels": rows,
        }
    return found


def memory(model: onnx.ModelProto, threads: int, tuned: bool) -> dict[str, Any]:
    """Bytes that a fresh process needs, at most and after its runs, for each side."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return {side: footprint(side, path, threads, tuned) for side in ("ours", "theirs")}


# ---- keeping and showing -------------------------------------------------------------------------------------------


def store(path: Path, name: str, way: str, row: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Into the file as it is now: two runs of this module may take turns."""
    results: dict[str, Any] = stored(path)
    results.setdefault(name, {})[way] = {**about, **row}
    keep(path, results)


def keep(path: Path, results: Mapping[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    temporary.replace(path)


def stored(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def table(results: Mapping[str, Any], ways: Sequence[str] = ("default", "tuned")) -> str:
    lines: list[str] = []
    for way in ways:
        rows = {name: entry[way] for name, entry in results.items() if way in entry}
        if not rows:
            continue
        machines = sorted(
            {f"{r['machine']}, {r['threads']} threads, onnxruntime {r['onnxruntime']}" for r in rows.values()}
        )
        lines += [*([""] if lines else []), f"{way} schedules; {'; '.join(machines)}", ""]
        lines += [
            "| model | ms (least) | onnxruntime ms (least) | speed | after a rest | compile s | kernels | error |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, r in rows.items():
            rested = f"{r['their_rested'] / r['rested']:.2f}" if "rested" in r else ""
            lines.append(
                f"| {name} | {milliseconds(r['seconds'])} ({milliseconds(r['least'])}) "
                f"| {milliseconds(r['their_seconds'])} ({milliseconds(r['their_least'])}) | {r['speedup']:.2f} "
                f"| {rested} "
                f"| {r['compile_seconds']:.1f} | {r['kernels']} | {r['error']:.1e} |"
            )
        for label, names in known().items():
            some = [rows[n]["speedup"] for n in names if n in rows]
            if some:
                lines.append(f"| geometric mean, {label} ({len(some)}) | | | {geometric_mean(some):.3f} | | | | |")
    return "\n".join(lines)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.{2 if seconds >= 1e-3 else 3}f}"


def details(name: str, row: Mapping[str, Any]) -> str:
    parts = [
        f"{name}: {milliseconds(row['seconds'])} ms (least {milliseconds(row['least'])}), onnxruntime "
        f"{milliseconds(row['their_seconds'])} "
        f"({milliseconds(row['their_least'])}): {row['speedup']:.2f}x, compiled in {row['compile_seconds']:.1f} s, "
        f"error {row['error']:.1e}"
    ]
    for n, beside in row.get("busy", {}).items():
        ours, theirs = beside["seconds"] / row["seconds"], beside["their_seconds"] / row["their_seconds"]
        parts.append(f"beside {n} busy CPUs {ours:.2f} times slower, onnxruntime {theirs:.2f}")
    if "error64" in row:
        parts.append(f"error against float64 {row['error64']:.1e}, theirs {row['their_error64']:.1e}")
    if "overhead" in row:
        parts.append(f"{row['overhead']['share']:.2%} of a run is not in kernels")
    if "profile" in row:
        p = row["profile"]
        parts.append(f"kernels {p['in_model'] * 1e3:.2f} ms in the model, {p['standalone'] * 1e3:.2f} ms alone")
    if "rss" in row:
        peaks = [row["rss"][side]["peak"] / 2**20 for side in ("ours", "theirs")]
        parts.append(f"peak memory {peaks[0]:.0f} MiB, theirs {peaks[1]:.0f} MiB")
    return "; ".join(parts)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models (default: those of the set that are not stored yet)")
    parser.add_argument("--set", choices=tuple(known()), default="all")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where results are kept")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing for each side of each model")
    parser.add_argument("--threads", type=int, default=detect().threads)
    parser.add_argument("--busy", type=int, action="append", default=[], metavar="N")
    parser.add_argument("--tuned", action="store_true", help="the store's best schedules")
    parser.add_argument("--again", action="store_true", help="measure what is stored, too")
    for part in ("rss", "overhead", "profile", "float64", "table"):
        parser.add_argument(f"--{part}", action="store_true")
    given = parser.parse_args(None if arguments is None else list(arguments))
    every = [*known()["all"], *known()["small"]]
    if unknown := [name for name in given.names if name not in every]:
        parser.error(f"unknown models {', '.join(unknown)}; there are {', '.join(every)}")
    way, target = "tuned" if given.tuned else "default", detect(given.threads)
    if not given.table:
        held = stored(given.json)
        for name in given.names or [n for n in known()[given.set] if given.again or way not in held.get(n, {})]:
            row = measure(name, given)
            about = {  # the load tells later whether the machine was busy with something else
                "load": round(os.getloadavg()[0], 1),
                "machine": target.name,
                "threads": target.threads,
                "stormdrop": stormdrop.__version__,
                "onnxruntime": onnxruntime.__version__,
                "date": date.today().isoformat(),
            }
            store(given.json, name, way, row, about)
            say(details(name, row))
            gc.collect()
    print(table(stored(given.json), (way,) if given.tuned else ("default", "tuned")))


if __name__ == "__main__":
    main()
