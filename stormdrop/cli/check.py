"""`stormdrop check` and `bench`: a model beside another runtime, for what it computes and for how fast."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from stormdrop.cli import options
from stormdrop.cli.sizes import MixedSized, Sized, mixed_size, models_of, one_or_sizes, sizes_of
from stormdrop.cli.source import (
    Opened,
    Source,
    compiled_option,
    input_options,
    source_options,
    taken_option,
)
from stormdrop.report.console import notes, results, say
from stormdrop.report.text import name_text

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.status import Status

    from stormdrop.compare.oracle import Oracle
    from stormdrop.compare.steady import Loops
    from stormdrop.runtime.model import Model

    Arrays = Mapping[str, NDArray[Any]]
    # At a size: who knows its results, and the inputs that are constants.
    Judged = Iterator[tuple[Sized | MixedSized, Oracle, Arrays]]

ORACLES = ("onnxruntime", "reference")
PEERS = ("onnxruntime",)
TOLERANCE = 1e-3
"""As in `stormdrop.compare.oracle`, which is not imported for the sake of `--help`."""
SECONDS = 3.0
PROFILED = 50
RESTLESS = 0.2
"""The middle half of all runs is closer together than this on a machine to itself."""


def _positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise click.BadParameter("give more than 0, such as 1e-3", ctx, param)
    return value


@click.command(
    epilog="""\b
Examples:
  stormdrop check resnet50.onnx                    against onnxruntime
  stormdrop check resnet50.onnx --against reference --tolerance 1e-4
  stormdrop check resnet50.onnx --compiled resnet50.sd
  stormdrop check m.onnx --input inputs.npz --json
  stormdrop check m.onnx --shapes ids=1x16 --shapes ids=2x100    at two sizes
""",
)
@source_options
@compiled_option
@click.option(
    "--against",
    type=click.Choice(ORACLES),
    help="Whose results are right.  [default: onnxruntime if installed, else reference]",
)
@click.option(
    "--tolerance",
    type=float,
    callback=_positive,
    metavar="T",
    help="Largest error allowed, as a share of the output's largest magnitude.  "
    f"[default: {TOLERANCE}; with --precision tf32 and fp16 0.016, with bf16 0.06]",
)
@input_options
@taken_option
@options.fallback
@options.on_models
def check(
    source: Source,
    compiled: str | None,
    against: str | None,
    fallback: str | None,
    tolerance: float | None,
    given: tuple[str, ...],
    seed: int,
    taken: str | None,
    target_name: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run a MODEL (an ONNX file or zoo:NAME) here and elsewhere on the same inputs and compare all outputs.

    The exit code is 1 if one of them is too far off. Whole numbers and truth values must be equal, NaNs and infinities
    where they are expected. With --fallback the judge is ONNX's reference evaluator.
    """
    from stormdrop.compare.oracle import agreements
    from stormdrop.report.versus import check_json, print_check
    from stormdrop.target.accuracy import network_tolerance

    if tolerance is None:
        _, _, precision = (target_name or "").partition("/")
        tolerance = max(TOLERANCE, network_tolerance(precision))
    if source.is_compiled:
        source.open()  # says what is needed
    if fallback is not None and (against == fallback or compiled is not None):
        raise click.UsageError(f"{fallback} cannot judge what it runs itself, and no compiled file needs it")
    trees: list[dict[str, Any]] = []
    if fallback is not None:
        sizes = [mixed_size(source, given, seed, threads, taken, fallback)]
        judges = _judged_mixed(source, sizes)
    else:
        judges = _judged(source, sizes_of(source, given, seed, compiled, target_name, threads, taken), against, threads)
    for sized, oracle, bound in judges:
        model, arrays = sized.make().model, sized.arrays
        found = model.run(arrays)
        expected = oracle.run({**arrays, **bound})
        judged = agreements([p.name for p in model.outputs], found, expected, tolerance)
        head = {"model": source.model, "threads": model.threads, "against": oracle.told}
        trees.append({**head, "seed": None if given else seed, **check_json(judged, tolerance)})
        if not as_json:
            inputs = "the given inputs" if given else f"random inputs{sized.shown}, seed {seed}"
            print_check(results(), source.model, oracle.told, judged, inputs)
    if as_json:
        options.print_json(one_or_sizes(trees))
    if not all(tree["ok"] for tree in trees):
        raise SystemExit(1)


def _judged(source: Source, sizes: Iterable[Sized], against: str | None, threads: int | None) -> Judged:
    from stormdrop.compare.oracle import Reference

    oracle: Oracle | None = None
    for sized in sizes:
        opened = sized.opened or source.open()
        if oracle is None or isinstance(oracle, Reference):  # the reference has one graph for each size
            oracle = _oracle(opened, against, threads)
        yield sized, oracle, opened.bound


def _judged_mixed(source: Source, sizes: Iterable[MixedSized]) -> Judged:
    """onnxruntime cannot judge what it runs itself."""
    from stormdrop.compare.inputs import read_bound
    from stormdrop.compare.oracle import OnnxReference

    for sized in sizes:
        yield sized, OnnxReference(source.onnx), read_bound(source.bound)


def _oracle(opened: Opened, against: str | None, threads: int | None) -> Oracle:
    from stormdrop.compare.oracle import OnnxRuntime, Reference, has_onnxruntime
    from stormdrop.runtime.threads import thread_count

    if against == "onnxruntime" or (against is None and has_onnxruntime()):
        return OnnxRuntime(opened.onnx, thread_count(threads))
    why = "" if against else "onnxruntime is not installed; "
    say(notes(), f"{why}comparing with the reference interpreter, which takes minutes for a large model")
    return Reference(opened.graph)


@click.command(
    epilog="""\b
Examples:
  stormdrop bench resnet50.onnx
  stormdrop bench resnet50.onnx --against onnxruntime --threads 2
  stormdrop bench resnet50.onnx --against onnxruntime --busy 1
  stormdrop bench resnet50.onnx --spin 0 --affinity compact
  stormdrop bench resnet50.sd --repeats 200 --profile
  stormdrop bench zoo:mobilenet_v2 --against onnxruntime --json | jq .speedup
""",
)
@source_options
@compiled_option
@click.option("--against", type=click.Choice(PEERS), help="Race it against this, with as many threads.")
@options.count("--repeats", "Timed runs of each side.  [default: as --seconds says]")
@options.duration("--seconds", told="Time to run each side for: 10, 30s, 2m.  [default: 3s]", default=SECONDS)
@options.count("--warm-up", "Runs of each side before any is timed.", least=0, default=3, show_default=True)
@click.option(
    "--busy",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Also time beside N programs that each keep a CPU busy; may be repeated.",
)
@click.option("--profile", is_flag=True, help="Also say where the time goes, kernel by kernel.")
@options.pool
@input_options
@taken_option
@options.on_models
@click.pass_context
def bench(
    ctx: click.Context,
    source: Source,
    compiled: str | None,
    against: str | None,
    repeats: int | None,
    seconds: float,
    warm_up: int,
    busy: tuple[int, ...],
    profile: bool,
    spin: float | None,
    affinity: str | None,
    given: tuple[str, ...],
    seed: int,
    taken: str | None,
    target_name: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Time whole runs of a MODEL (an ONNX file, zoo:NAME, or a compiled .sd file), NumPy arrays in and out.

    Each side runs in a process of its own, in steady loops that alternate; medians are compared. A call after a rest
    and CPU time are printed beside them.
    """
    from stormdrop.compare.steady import Side, steady
    from stormdrop.report.versus import bench_json, print_bench, print_profile
    from stormdrop.runtime.open_model import load_compiled
    from stormdrop.runtime.pool_settings import PoolSettings
    from stormdrop.runtime.threads import thread_count

    pool: dict[str, Any] = {k: v for k, v in (("spin", spin), ("affinity", affinity)) if v is not None}
    if pool:  # what is wrong is told before anything is compiled
        with options.wrong_usage():
            PoolSettings.of(threads, spin, affinity).cpus()
    if repeats is not None and ctx.get_parameter_source("seconds") is not ParameterSource.DEFAULT:
        raise click.UsageError("--repeats and --seconds both say how long: give one of them")
    if source.is_compiled and (against is not None or compiled is not None):
        raise click.UsageError("name the ONNX model it was made of, and give this file as --compiled FILE")
    trees: list[dict[str, Any]] = []
    for sized in sizes_of(source, given, seed, compiled, target_name, threads, taken):
        made = sized.make()
        model, arrays, opened = made.model, sized.arrays, sized.opened
        model.run(arrays)  # a model with open dimensions is compiled for these
        image = models_of(model)[-1].image
        settings = {"stormdrop": "; ".join([made.told, image.units, *(f"{k} {v}" for k, v in pool.items())])}
        peer_threads = thread_count(threads) if image.is_for_gpu else model.threads
        with TemporaryDirectory() as folder:
            file = Path(folder) / "model.sd"
            model.save(file)
            if pool:
                model = load_compiled(file, model.threads, **pool)
            where = {"ordinal": models_of(model)[-1].ordinal} if image.is_for_gpu else {}
            sides = {"stormdrop": Side("stormdrop", file, model.threads, arrays, {**pool, **where})}
            if against is not None and opened is not None:
                all_arrays = {**arrays, **opened.bound}
                settings["onnxruntime"] = _doubt(opened, model, peer_threads, arrays, all_arrays)
                sides["onnxruntime"] = Side("onnxruntime", _onnx_file(opened, folder), peer_threads, all_arrays)
            if as_json:
                for name, told in settings.items():
                    say(notes(), f"{name}: {told}")
            with notes().status("timing") as status:

                def timed(neighbours: int, sides: dict[str, Side] = sides, status: Status = status) -> dict[str, Loops]:
                    told = status.update
                    return steady(sides, seconds, repeats=repeats, warm_up=warm_up, busy=neighbours, tell=told)

                times, beside = timed(0), {count: timed(count) for count in dict.fromkeys(busy)}
        spreads = {name: t.runs.spread for name, t in times.items()}
        restless = max(spreads, key=spreads.__getitem__)
        if spreads[restless] > RESTLESS:
            say(notes(), f"times of {restless} spread by {spreads[restless]:.0%}: is something else running here?")
        kernels = model.profile(*(arrays[p.name] for p in model.inputs), repeats=PROFILED) if profile else None
        tree = bench_json(source.model, model.threads, times, beside)
        trees.append(tree | ({"profile": kernels.to_json()} if kernels is not None else {}))
        if not as_json:
            print_bench(results(), f"{source.model}{sized.shown}", image.units, times, beside, settings)
            if kernels is not None:
                print_profile(results(), kernels)
    if as_json:
        options.print_json(one_or_sizes(trees))


def _onnx_file(opened: Opened, folder: str) -> Path:
    """The model as a file for another process."""
    if isinstance(opened.onnx, str):
        return Path(opened.onnx)
    path = Path(folder) / "model.onnx"
    path.write_bytes(opened.onnx)
    return path


def _doubt(opened: Opened, model: Model, threads: int, arrays: Arrays, all_arrays: Arrays) -> str:
    """Speed is worth nothing where results are wrong: say so before it is measured. Returns the peer's settings."""
    from stormdrop.compare.oracle import OnnxRuntime, agreements

    peer = OnnxRuntime(opened.onnx, threads)
    judged = agreements([p.name for p in model.outputs], model.run(arrays), peer.run(all_arrays))
    for a in judged:
        if not a.ok:
            told = f"the output {name_text(a.name)} differs by {a.relative:.1e} of its magnitude"
            say(notes(), f"WARNING: {told}; see `stormdrop check`")
    return peer.settings
