"""The core's figures: kernels against the machine's peak, against memory bandwidth, and against peers, in one run.

    python benchmarks/core.py                 # every part, some ten minutes; results go to benchmarks/results/core.json
    python benchmarks/core.py default odd     # some parts; the others keep the results they have
    python benchmarks/core.py --table         # print the stored results as a table

Every share of peak is a median of ratios: kernel, peak and peers are timed in turns, in one process, on the same
threads. FLOPs are nominal (those of the direct algorithm). Bytes are those of `Task.minimal_bytes`: every input read
once, every output written once; the triad it is compared with counts its three arrays the same way and has the same
total footprint.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import StormdropError
from stormdrop.builder.building import build_artifact, program_of
from stormdrop.device.arrays import aligned
from stormdrop.device.host import detect
from stormdrop.device.host_device import HostDevice
from stormdrop.device.peak import PeakMeter, StreamMeter
from stormdrop.device.pool.pool import Pool, shared_pool
from stormdrop.ir.tensor import Task
from stormdrop.model.kernel import PreparedKernel
from stormdrop.operators.catalogue import build as build_task
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.cpu import Cpu
from stormdrop.tuning.api import tune

RESULTS = Path(__file__).parent / "results" / "core.json"
SIX: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("GMM", (1, 512, 512, 512)),
    ("GMM", (1, 1024, 1024, 1024)),
    ("C2D", (1, 56, 56, 64, 64, 3, 1, 1)),
    ("C2D", (1, 14, 14, 256, 256, 3, 1, 1)),
    ("C2D", (1, 28, 28, 128, 512, 1, 1, 0)),
    ("C2D", (1, 7, 7, 512, 512, 3, 1, 1)),
)
MEMORY: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("ADR", (1, 56, 56, 256)),
    ("ADR", (1, 7, 7, 2048)),
    ("MXP", (1, 112, 112, 64, 3, 2, 1)),
    ("MXP", (1, 56, 56, 192, 3, 2, 1)),
    ("SFM", (256, 256)),
    ("SFM", (512, 512)),
    ("SFM", (1024, 1024)),
    ("SFM", (2048, 2048)),
    ("DEP", (1, 112, 112, 32, 3, 1, 1)),
    ("DEP", (1, 112, 112, 64, 3, 2, 1)),
    ("DEP", (1, 14, 14, 512, 3, 2, 1)),
    ("DEP", (1, 7, 7, 1024, 3, 1, 1)),
    ("TRN", (1024, 1024)),
    ("TRN", (1000, 3000)),
    ("DOT", (1048576,)),
    ("DOT", (10007,)),
    ("GMV", (4096, 4096)),
    ("GMV", (1000, 2048)),
)


@dataclass
class Bench:
    """The machine that everything is timed on."""

    target: Cpu
    pool: Pool
    peak: PeakMeter
    seed: int

    @property
    def threads(self) -> int:
        return self.target.threads


def label(op: str, args: Sequence[int]) -> str:
    return f"{op} {' '.join(map(str, args))}"


def geometric_mean(values: Iterable[float]) -> float:
    each = list(values)
    return exp(sum(map(log, each)) / len(each))


def random_inputs(task: Task, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {t.name: rng.standard_normal(t.shape, dtype=np.float32) for t in task.inputs}


class Runner:
    """One kernel with inputs, ready to be timed."""

    def __init__(self, bench: Bench, task: Task, schedule: Schedule, inputs: Mapping[str, NDArray[Any]]) -> None:
        artifact = build_artifact(task, schedule, bench.target)
        self.recording = PreparedKernel(artifact, inputs, HostDevice(bench.pool)).record()
        self.inputs: list[NDArray[Any]] = []
        for t in task.runtime_inputs:
            self.inputs.append(aligned(t.nbytes).view(np.float32))
            self.inputs[-1][...] = inputs[t.name].ravel()
        self.outputs: list[NDArray[Any]] = [aligned(t.nbytes) for t in task.outputs]
        self.recording.bind(self.inputs, self.outputs)
        self.repeats = max(1, min(2000, int(0.004 / max(self.seconds(3), 1e-7))))

    def seconds(self, repeats: int | None = None) -> float:
        return float(np.median(self.recording.bench(repeats or self.repeats)))


@contextmanager
def pinned(bench: Bench) -> Generator[None]:
    """Our threads each on a CPU of its own; afterwards the caller runs anywhere again, and so does what it starts."""
    cpus = os.sched_getaffinity(0)
    bench.pool.pin()
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus)


def shares(bench: Bench, task: Task, runner: Runner, rounds: int = 15) -> tuple[float, float]:
    """Median seconds, and the median over rounds of GFLOP/s over the peak timed just before and after."""
    ratios: list[float] = []
    times: list[float] = []
    with pinned(bench):
        before = bench.peak.gflops()
        for _ in range(rounds):
            seconds = runner.seconds()
            after = bench.peak.gflops()
            times.append(seconds)
            ratios.append(task.flops / seconds / 1e9 / ((before + after) / 2))
            before = after
    return median(times), median(ratios)


def peer(
    bench: Bench, op: str, args: Sequence[int], inputs: Mapping[str, NDArray[Any]]
) -> tuple[str, Callable[[], object]] | None:
    """NumPy's BLAS for a product, onnxruntime's Conv (channels first, its own layout) for a convolution."""
    if op == "GMM":
        x, w = inputs["X"][0], inputs["W"][0]
        out = np.empty((x.shape[0], w.shape[1]), np.float32)
        return "numpy", lambda: np.matmul(x, w, out=out)
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return None
    n, h, width, ci, _, _, stride, pad = args
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride] * 2, pads=[pad] * 4)
    weights = numpy_helper.from_array(np.ascontiguousarray(inputs["W"].transpose(3, 2, 0, 1)), "w")
    kind = onnx.TensorProto.FLOAT
    x, y = helper.make_tensor_value_info("x", kind, [n, ci, h, width]), helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([node], "conv", [x], [y], [weights])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = bench.threads
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {"x": np.ascontiguousarray(inputs["X"].transpose(0, 3, 1, 2))}

    def run() -> object:
        return session.run(None, feed)

    return "onnxruntime", run


def against(runner: Runner, other: Callable[[], object], rounds: int = 15) -> tuple[float, float]:
    """The peer's median seconds, and the median ratio of its time to ours, in turns."""
    other()
    times: list[float] = []
    ratios: list[float] = []
    for _ in range(rounds):
        other()  # its threads are awake again
        best = min(_timed(other) for _ in range(3))
        times.append(best)
        time.sleep(0.05)  # a peer's threads spin for a while after their work; do not let them share our cores
        end = time.perf_counter() + 0.05
        while time.perf_counter() < end:  # and let the scheduler spread our own again
            runner.seconds()
        ratios.append(best / min(runner.seconds() for _ in range(3)))
    return median(times), median(ratios)


def _timed(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def part_default(bench: Bench) -> dict[str, Any]:
    """The six, default schedule, with peers."""
    rng = np.random.default_rng(bench.seed)
    rows: dict[str, Any] = {}
    for op, args in SIX:
        task = build_task(op, args)
        inputs = random_inputs(task, rng)
        runner = Runner(bench, task, default_schedule(task, bench.target), inputs)
        seconds, share = shares(bench, task, runner)
        row: dict[str, Any] = {"seconds": seconds, "share": share}
        other = peer(bench, op, args, inputs)
        if other is not None:
            row["peer"], (row["peer_seconds"], row["speedup"]) = other[0], against(runner, other[1])
        rows[label(op, args)] = row
        versus = f", {row['speedup']:.2f}x {row['peer']}" if "speedup" in row else ""
        say(f"default {label(op, args)}: {share:.1%} of peak{versus}")
    values = [r["share"] for r in rows.values()]
    return {"cases": rows, "geometric_mean": geometric_mean(values), "least": min(values)}


def part_search(bench: Bench) -> dict[str, Any]:
    """The six, after a storm and droplets."""
    rng = np.random.default_rng(bench.seed)
    rows: dict[str, Any] = {}
    for op, args in SIX:
        task = build_task(op, args)
        inputs = random_inputs(task, rng)
        found = tune(task, bench.target, seed=bench.seed)
        runner = Runner(bench, task, found.best, inputs)
        seconds, share = shares(bench, task, runner, 25)
        rows[label(op, args)] = {
            "seconds": seconds,
            "share": share,
            "trials": found.trials,
            "failed": found.failed,
            "tuning_seconds": found.tuning_seconds,
            "median_build_seconds": found.median_build_seconds,
            "schedule": found.best.to_json(),
        }
        say(
            f"search {label(op, args)}: {share:.1%} of peak after {found.tuning_seconds:.0f} s, {found.failed} of "
            f"{found.trials} failed"
        )
    return {"cases": rows}


def part_shapes(bench: Bench) -> dict[str, Any]:
    """Default schedules of 40 shapes drawn from the seed, channels uniform from 3 to 1024."""
    return _shapes(bench, lambda rng: int(rng.integers(3, 1025)))


def part_narrow(bench: Bench) -> dict[str, Any]:
    """As `shapes`, with channels uniform by their logarithm: half of them below 56, some too few to fill a vector."""
    return _shapes(bench, lambda rng: round(exp(rng.uniform(log(3), log(1024)))))


def _shapes(bench: Bench, channels_from: Callable[[np.random.Generator], int]) -> dict[str, Any]:
    rng = np.random.default_rng(bench.seed)
    rows: dict[str, float] = {}
    while len(rows) < 40:
        if rng.random() < 0.4:
            op, args = "GMM", (1, *(int(rng.integers(5, 1025)) for _ in range(3)))
        else:
            kernel, stride = int(rng.choice([1, 3, 5])), int(rng.choice([1, 2]))
            h, w = (int(rng.integers(5, 61)) for _ in range(2))
            channels = [channels_from(rng) for _ in range(2)]
            op, args = "C2D", (1, h, w, channels[0], channels[1], kernel, stride, kernel // 2)
        task = build_task(op, args)
        runner = Runner(bench, task, default_schedule(task, bench.target), random_inputs(task, rng))
        _, share = shares(bench, task, runner, 5)
        rows[label(op, args)] = share
        say(f"shape {label(op, args)}: {share:.1%}")
    values = list(rows.values())
    return {"seed": bench.seed, "cases": rows, "geometric_mean": geometric_mean(values), "least": min(values)}


def part_odd(bench: Bench) -> dict[str, Any]:
    """Odd extents against their even neighbours: a short search each, timed in turns."""
    pairs = (
        (("GMM", (1, 509, 509, 509)), ("GMM", (1, 512, 512, 512))),
        (("C2D", (1, 17, 17, 58, 58, 3, 1, 1)), ("C2D", (1, 16, 16, 64, 64, 3, 1, 1))),
    )
    rng = np.random.default_rng(bench.seed)
    rows: dict[str, Any] = {}
    for odd, even in pairs:
        found: list[float] = []
        for op, args in (odd, even):
            task = build_task(op, args)
            schedule = tune(task, bench.target, seed=bench.seed).best
            found.append(shares(bench, task, Runner(bench, task, schedule, random_inputs(task, rng)), 25)[1])
        rows[f"{label(*odd)} against {label(*even)}"] = {
            "odd": found[0],
            "even": found[1],
            "ratio": found[0] / found[1],
        }
        say(f"odd {label(*odd)}: {found[0]:.1%} against {found[1]:.1%}")
    return {"cases": rows}


def part_memory(bench: Bench) -> dict[str, Any]:
    """Memory-bound operators against our own triad with the same footprint, pool and run, after a short search."""
    rng = np.random.default_rng(bench.seed)
    rows: dict[str, Any] = {}
    for op, args in MEMORY:
        task = build_task(op, args)
        inputs = random_inputs(task, rng)
        found = tune(task, bench.target, trials=150, seed=bench.seed)
        runner = Runner(bench, task, found.best, inputs)
        meter = StreamMeter(bench.target, "triad", task.minimal_bytes)
        ratios: list[float] = []
        rates: list[float] = []
        with pinned(bench):
            for _ in range(15):
                triad = meter.gbs()
                rate = task.minimal_bytes / runner.seconds() / 1e9
                rates.append(rate)
                ratios.append(rate / triad)
        share = shares(bench, task, runner, 7)[1]
        rows[label(op, args)] = {
            "gbs": median(rates),
            "ratio": median(ratios),
            "share_of_fma_peak": share,
            "schedule": found.best.to_json(),
        }
        say(
            f"memory {label(op, args)}: {median(rates):.1f} GB/s, {median(ratios):.2f} of triad, {share:.1%} of FMA "
            "peak"
        )
    return {"cases": rows}


def part_build(bench: Bench) -> dict[str, Any]:
    """Schedule to callable kernel: the six defaults, and random legal points of all operators."""
    rng = np.random.default_rng(bench.seed)
    rows: dict[str, float] = {}
    for op, args in SIX:
        task = build_task(op, args)
        schedule = default_schedule(task, bench.target)
        rows[label(op, args)] = median([_build_seconds(bench, task, schedule) for _ in range(7)])
    times: list[float] = []
    failures: list[str] = []
    for op, args in (*SIX, *MEMORY):
        task = build_task(op, args)
        for sketch in sketches(task, bench.target)[:6]:
            for point in sketch.sample_legal(4, rng):
                try:
                    times.append(_build_seconds(bench, task, sketch.schedule(point)))
                except StormdropError as error:
                    failures.append(f"{label(op, args)}: {error}")
    say(
        f"build: defaults {1e3 * median(rows.values()):.1f} ms, random points {1e3 * median(times):.1f} ms median of "
        f"{len(times)}"
    )
    return {"defaults": rows, "random_median_seconds": median(times), "random_points": len(times), "failures": failures}


def _build_seconds(bench: Bench, task: Task, schedule: Schedule) -> float:
    from stormdrop.codegen.llvm import Code

    start = time.perf_counter()
    code = Code(build_artifact(task, schedule, bench.target).code)
    seconds = time.perf_counter() - start
    code.close()
    return seconds


def part_space(bench: Bench) -> dict[str, Any]:
    """Features per second on one core, and the size of the space of C2D 14/256."""
    task = build_task("C2D", (1, 14, 14, 256, 256, 3, 1, 1))
    rng = np.random.default_rng(bench.seed)
    found = sketches(task, bench.target)
    rate: list[float] = []
    sketch = found[0]
    points = sketch.sample(100_000, rng)
    for _ in range(3):
        rate.append(len(points) / _timed(lambda: sketch.features(points)))
    distinct: set[bytes] = set()
    while len(distinct) < 1_000_000:
        rows = sketch.sample(200_000, rng)
        distinct.update(row.tobytes() for row in rows[sketch.legal(rows)])
    programs = {str(program_of(task, sketch.schedule(p), bench.target)) for p in sketch.sample_legal(500, rng)}
    say(
        f"space: {max(rate):,.0f} points per second, more than {len(distinct):,} legal points in one of {len(found)} "
        "sketches"
    )
    return {
        "features_per_second": max(rate),
        "legal_points_seen": len(distinct),
        "sketches": len(found),
        "distinct_of_500_programs": len(programs),
    }


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "space": part_space,
    "build": part_build,
    "default": part_default,
    "shapes": part_shapes,
    "narrow": part_narrow,
    "odd": part_odd,
    "search": part_search,
    "memory": part_memory,
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(results: Mapping[str, Any]) -> str:
    """The stored results as Markdown."""
    lines = [f"{results['machine']}, {results['threads']} threads, f32, peak {results['peak_gflops']:.0f} GFLOP/s", ""]
    lines += [
        "| case | default: share of peak | against | searched: share of peak | seconds of search |",
        "|---|---|---|---|---|",
    ]
    for name, row in results.get("default", {}).get("cases", {}).items():
        tuned = results.get("search", {}).get("cases", {}).get(name)
        versus = f"{row['speedup']:.2f}x {row['peer']}" if "speedup" in row else ""
        after = f"{tuned['share']:.1%} | {tuned['tuning_seconds']:.0f} |" if tuned else "| |"
        lines.append(f"| {name} | {row['share']:.1%} | {versus} | {after}")
    lines += [
        "",
        *_sentences(results),
        "",
        "| memory-bound case | GB/s | of triad | of FMA peak |",
        "|---|---|---|---|",
    ]
    for name, row in results.get("memory", {}).get("cases", {}).items():
        lines.append(f"| {name} | {row['gbs']:.1f} | {row['ratio']:.0%} | {row['share_of_fma_peak']:.0%} |")
    return "\n".join(lines)


def _sentences(results: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for part, what in (("shapes", "channels uniform"), ("narrow", "channels log-uniform")):
        if found := results.get(part):
            share = f"geometric mean {found['geometric_mean']:.0%} of peak, least {found['least']:.0%}"
            lines.append(f"- 40 random shapes, default schedule, {what} (seed {found['seed']}): {share}.")
    for pair, row in results.get("odd", {}).get("cases", {}).items():
        lines.append(f"- {pair}: {row['ratio']:.2f} of the neighbour's share.")
    if built := results.get("build"):
        least, most = (1e3 * pick(built["defaults"].values()) for pick in (min, max))
        points = f"{1e3 * built['random_median_seconds']:.0f} ms median over {built['random_points']} random points"
        lines.append(f"- Schedule to loaded code: {least:.0f} to {most:.0f} ms for the six defaults, {points}.")
    if space := results.get("space"):
        lines.append(f"- Features: {space['features_per_second']:,.0f} points per second on one core.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"some of: {', '.join(PARTS)} (default: all)")
    parser.add_argument(
        "--seed", type=int, default=None, help="of random shapes and searches (default: from the clock)"
    )
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--table", action="store_true", help="print the stored results")
    given = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if given.table:
        print(table(results))
        return
    for name in given.parts:
        if name not in PARTS:
            parser.error(f"unknown part {name}")
    target = detect(given.threads)
    pool = shared_pool(target.threads)
    seed = given.seed if given.seed is not None else time.time_ns() % 1_000_000
    bench = Bench(target, pool, PeakMeter(target), seed)
    bench.peak.search(3)
    results |= {
        "machine": target.name,
        "threads": target.threads,
        "peak_gflops": median([bench.peak.gflops() for _ in range(9)]),
    }
    for name in given.parts or PARTS:
        results[name] = PARTS[name](bench)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
