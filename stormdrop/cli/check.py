"""`stormdrop check` and `bench`: a model compared with another runtime, in results and in speed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from stormdrop.base.errors import UserError
from stormdrop.cli import options
from stormdrop.cli.show_hint import print_show_hint
from stormdrop.cli.sizes import Sized, judged_at, models_of, sizes_of
from stormdrop.cli.source import (
    Opened,
    Source,
    compiled_option,
    input_options,
    machine_options,
    remark,
    schedule_options,
    source_options,
)
from stormdrop.compare import ABSOLUTE, TOLERANCE
from stormdrop.report.console import block, notes
from stormdrop.report.text import name_text, threads_text

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

    from stormdrop.compare.exact import CheckedOutput
    from stormdrop.compare.oracle import Oracle
    from stormdrop.model.model import Model

    Arrays = Mapping[str, NDArray[Any]]
    # At a size: the oracle of its results, and the inputs that are constants.
    Judged = Iterator[tuple[Sized, Oracle, Arrays]]

ORACLES = ("onnxruntime", "reference")
PEERS = ("onnxruntime",)
F64_SECONDS = 120.0
SECONDS = 3.0
PROFILED = 50
RESTLESS = 0.2
"""The middle half of all runs is closer together than this on a machine to itself."""


def _number(is_right: Callable[[float], bool], usage: str) -> Callable[..., float | None]:
    """Returns the check of a number in an option."""

    def checked(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
        if value is not None and not (is_right(value) and value < math.inf):
            raise click.BadParameter(f"give {usage}", ctx, param)
        return value

    return checked


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
    help="The side with the right results.  [default: onnxruntime if installed, else reference]",
)
@click.option(
    "--tolerance",
    type=float,
    callback=_number(lambda value: value > 0, "more than 0, such as 1e-3"),
    metavar="T",
    help="Largest error allowed, as a share of the output's largest magnitude.  "
    f"[default: {TOLERANCE}; with --precision tf32 and fp16 0.016, with bf16 0.06]",
)
@click.option(
    "--absolute",
    type=float,
    callback=_number(lambda value: value >= 0, "0 or more, such as 1e-8"),
    default=ABSOLUTE,
    show_default=True,
    metavar="A",
    help="Errors up to this are right at any magnitude of the output.",
)
@options.duration(
    "--f64-time",
    help_text="Most time for the reference in f64, which judges outputs outside the tolerance.  [default: 2m]",
    default=F64_SECONDS,
)
@input_options
@schedule_options
@machine_options
def check(
    source: Source,
    against: str | None,
    tolerance: float | None,
    absolute: float,
    f64_time: float,
    given: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Run a MODEL (an ONNX file or zoo:NAME) here and elsewhere on the same inputs and compare all outputs.

    Integers and truth values must be equal; NaNs and infinities must match. Outputs outside the tolerance are also
    compared with a reference in f64: the other side may be less exact, or the inputs ill-conditioned. The exit code is
    1 if an output is wrong. Parts that run in onnxruntime are judged by it too; with --against reference ONNX's
    reference evaluator judges a model in parts.
    """
    from stormdrop.report.versus import check_json, print_check
    from stormdrop.target.accuracy import network_tolerance

    _, _, precision = (source.target_name or "").partition("/")
    limit = max(TOLERANCE, network_tolerance(precision)) if tolerance is None else tolerance
    if source.is_compiled:
        source.open()  # raises an error with the remedy
    commands: list[tuple[int, str]] = []

    def checks() -> Iterator[options.Shown]:
        for sized, oracle, bound in _judged(source, sizes_of(source, given, seed), against):
            model, arrays = sized.make().model, {**sized.arrays, **bound}
            expected = judged_at(sized, partial(oracle.run, arrays))
            if expected is None:
                continue
            outputs = model.run(sized.arrays)
            names = _judgeable(model)
            checked = _checked(sized, oracle, arrays, names, outputs, expected, limit, absolute, f64_time)
            head = {"model": source.model, "threads": model.threads, "against": oracle.label}
            tree = {**head, "seed": None if given else seed, **check_json(checked, limit, absolute)}
            inputs = "the given inputs" if given else f"random inputs{sized.suffix}, seed {seed}"
            commands.append(_following(source, sized, oracle, checked, None if given else seed))
            yield tree, partial(print_check, model=source.model, against=oracle.label, checked=checked, inputs=inputs)

    def print_next(console: Console) -> None:
        if commands:
            block(console, f"next: {min(commands, key=lambda command: command[0])[1]}")

    trees = options.show_each(as_json, checks(), print_next)
    _refuse_none(trees)
    if not all(tree["ok"] for tree in trees):
        raise SystemExit(1)


def _refuse_none(trees: list[Any]) -> None:
    if not trees:
        raise UserError("every size was skipped: give a size with --shapes or --input")


def _checked(
    sized: Sized,
    oracle: Oracle,
    inputs: Arrays,
    names: list[str],
    outputs: Arrays,
    expected: Arrays,
    tolerance: float,
    absolute: float,
    seconds: float,
) -> list[CheckedOutput]:
    """Returns the outputs compared with the other side and, outside the tolerance, with the f64 reference."""
    from stormdrop.compare.exact import CheckedOutput, ExactReference, ShakenPeer, judged
    from stormdrop.compare.oracle import agreements

    beside = agreements(names, outputs, expected, tolerance, absolute)
    if all(a.ok for a in beside) or sized.opened is None:
        return [CheckedOutput(a) for a in beside]
    if sized.opened.mixed is not None:  # onnxruntime has a part of the graph
        remark(f"outside the tolerance: {oracle.label} runs on rounded inputs, for comparison")
        return judged(beside, outputs, expected, ShakenPeer(oracle.run, inputs), remark)
    remark(f"outside the tolerance: the reference in f64 judges, for at most {seconds:g} s (--f64-time)")
    reference = ExactReference(sized.opened.graph, sized.arrays, seconds)
    return judged(beside, outputs, expected, reference, remark)


def _following(
    source: Source, sized: Sized, oracle: Oracle, checked: list[CheckedOutput], seed: int | None
) -> tuple[int, str]:
    """Returns the rank of the next command at a size, and the command.

    The command is the reference as judge, a look at the model, other inputs, or a race.
    """
    from stormdrop.compare.oracle import Reference

    conclusions = {c.conclusion for c in checked}
    shapes = {k: a.shape for k, a in sized.arrays.items()} if sized.shapes_text else source.shapes
    words = [source.model, *options.shape_arguments(shapes)]
    model = shlex.join([*words, *(word for text in source.bound for word in ("--bind", text))])
    if "wrong" in conclusions:
        is_last = isinstance(oracle, Reference) or sized.opened is None or sized.opened.mixed is not None
        return 0, f"stormdrop show {model}" if is_last else f"stormdrop check {model} --against reference"
    if "ill-conditioned" in conclusions:
        other = "--input FILE.npz, with other inputs" if seed is None else f"--seed {seed + 1}"
        return 1, f"stormdrop check {model} {other}"
    return 2, f"stormdrop bench {model}"


def _judged(source: Source, sizes: Iterable[Sized], against: str | None) -> Judged:
    from stormdrop.compare.oracle import Reference

    oracle: Oracle | None = None
    for sized in sizes:
        opened = sized.opened or source.open()
        if oracle is None or isinstance(oracle, Reference):  # the reference has one graph for each size
            oracle = _oracle(opened, against, source.threads, is_first=oracle is None)
        yield sized, oracle, opened.bound


def _judgeable(model: Model) -> list[str]:
    """Returns the names of outputs with numbers, with a remark on texts and sequences, which onnxruntime computes."""
    from stormdrop.model.mixed import ForeignPort

    foreign = [p for p in model.outputs if isinstance(p, ForeignPort)]
    for port in foreign:
        remark(f"the output {name_text(port.name)} ({port.type}) is of onnxruntime, and is not compared")
    return [p.name for p in model.outputs if p not in foreign]


def _oracle(opened: Opened, against: str | None, threads: int | None, is_first: bool) -> Oracle:
    """Returns the other side of the comparison. Only the first of several sizes prints notes."""
    from stormdrop.compare.oracle import OnnxReference, Reference, has_onnxruntime
    from stormdrop.device.cpus import thread_count
    from stormdrop.model.onnx_session import OnnxSession

    if opened.mixed is not None and against == "reference":
        return OnnxReference(opened.onnx)
    if opened.mixed is not None and is_first:
        remark("onnxruntime judges the whole model: the parts that it runs itself are right by definition")
    if against == "onnxruntime" or (against is None and has_onnxruntime()):
        return OnnxSession(opened.onnx, thread_count(threads))
    if is_first:
        why = "" if against else "onnxruntime is not installed; "
        remark(f"{why}comparing with the reference interpreter, which takes minutes for a large model")
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
@options.count("--repeats", "Timed runs of each side.  [default: as --time says]")
@options.duration(
    "--time", "seconds", help_text="Time to run each side for: 10, 30s, 2m.  [default: 3s]", default=SECONDS
)
@options.count("--warm-up", "Runs of each side before any is timed.", least=0, default=3, show_default=True)
@click.option(
    "--busy",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Also time beside N programs that each keep a CPU busy; may be repeated.",
)
@click.option("--profile", is_flag=True, help="Also say where the time goes, kernel by kernel.")
@options.spin
@options.affinity
@input_options
@schedule_options
@machine_options
@click.pass_context
def bench(
    ctx: click.Context,
    source: Source,
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
    as_json: bool,
) -> None:
    """Time whole runs of a MODEL (an ONNX file, zoo:NAME, or a compiled .sd file), NumPy arrays in and out.

    Each side runs in a process of its own, in steady loops that alternate; medians are compared. A call after a rest
    and CPU time are printed beside them. A model with a part in onnxruntime is compiled again in its process.
    """
    from stormdrop.device.pool.pool import PoolSettings

    pool: dict[str, Any] = {k: v for k, v in (("spin", spin), ("affinity", affinity)) if v is not None}
    if pool:  # an error before anything is compiled
        with options.wrong_usage():
            PoolSettings.of(source.threads, spin, affinity).cpus()
    if repeats is not None and ctx.get_parameter_source("seconds") is not ParameterSource.DEFAULT:
        raise click.UsageError("--repeats and --time exclude each other: give either")
    if source.is_compiled and (against is not None or source.compiled is not None):
        raise click.UsageError("name the ONNX model it was made of, and give this file as --compiled FILE")
    clock = {"seconds": seconds, "repeats": repeats, "warm_up": warm_up}
    timed = (_timed(source, sized, against, busy, profile, pool, clock) for sized in sizes_of(source, given, seed))
    _refuse_none(options.show_each(as_json, (shown for shown in timed if shown is not None)))


def _timed(
    source: Source,
    sized: Sized,
    against: str | None,
    busy: tuple[int, ...],
    profile: bool,
    pool: dict[str, Any],
    clock: dict[str, Any],
) -> options.Shown | None:
    """Times a model at one size; None for a skipped size. `clock` has the options of `steady`."""
    from stormdrop.compare.steady import Side, steady
    from stormdrop.device.cpus import thread_count
    from stormdrop.model.mixed import MixedModel
    from stormdrop.model.open_model import load
    from stormdrop.report.versus import bench_json, print_bench, print_profile

    made = sized.make()
    model, arrays, opened = made.model, sized.arrays, sized.opened
    model.run(arrays)  # a model with open dimensions is compiled for these
    native = models_of(model)[-1]
    is_mixed = any(isinstance(m, MixedModel) for m in models_of(model))
    is_for_gpu = not is_mixed and native.image.is_for_gpu
    units = threads_text(model.threads) if is_mixed else native.image.units
    settings = {"stormdrop": "; ".join([made.schedules_text, units, *(f"{k} {v}" for k, v in pool.items())])}
    peer_threads = thread_count(source.threads) if is_for_gpu else model.threads
    with TemporaryDirectory() as folder:
        if is_mixed and opened is not None:  # no file can hold it: the other process compiles it again
            there = {**source.settings(), "fallback": "onnxruntime", **pool}
            side = Side("mixed", _onnx_file(opened, folder), model.threads, arrays, there)
        else:
            file = Path(folder) / "model.sd"
            model.save(file)
            if pool:
                model = load(file, model.threads, **pool)
            where = {"ordinal": native.ordinal} if is_for_gpu else {}
            side = Side("stormdrop", file, model.threads, arrays, {**pool, **where})
        sides = {"stormdrop": side}
        if against is not None and opened is not None:
            all_arrays = {**arrays, **opened.bound}
            doubt = partial(_doubt, opened, model, peer_threads, arrays, all_arrays)
            if (peer := judged_at(sized, doubt)) is None:
                return None
            settings["onnxruntime"] = peer
            sides["onnxruntime"] = Side("onnxruntime", _onnx_file(opened, folder), peer_threads, all_arrays)
        with notes().status("timing") as status:
            run = partial(steady, sides, tell=status.update, **clock)
            times, beside = run(), {count: run(busy=count) for count in dict.fromkeys(busy)}
    spreads = {name: t.runs.spread for name, t in times.items()}
    restless = max(spreads, key=spreads.__getitem__)
    if spreads[restless] > RESTLESS:
        remark(f"times of {restless} spread by {spreads[restless]:.0%}: is something else running here?")
    kernels = model.profile(*(arrays[p.name] for p in model.inputs), repeats=PROFILED) if profile else None
    tree = {**bench_json(source.model, model.threads, times, beside), "settings": settings}
    if kernels is not None:
        tree["profile"] = kernels.to_json()

    def print_text(console: Console) -> None:
        print_bench(console, f"{source.model}{sized.suffix}", units, times, beside, settings)
        if kernels is not None:
            print_profile(console, kernels)
            shapes = {name: array.shape for name, array in arrays.items()} if made.is_open else None
            print_show_hint(console, source, kernels.by_task().shown_id, shapes)

    return tree, print_text


def _onnx_file(opened: Opened, folder: str) -> Path:
    """Returns the model as a file for another process."""
    if isinstance(opened.onnx, str):
        return Path(opened.onnx)
    path = Path(folder) / "model.onnx"
    path.write_bytes(opened.onnx)
    return path


def _doubt(opened: Opened, model: Model, threads: int, arrays: Arrays, all_arrays: Arrays) -> str:
    """Warns of wrong results before speed is measured, since the speed of wrong results is meaningless.

    Returns the peer's settings.
    """
    from stormdrop.compare.oracle import agreements
    from stormdrop.model.onnx_session import OnnxSession

    peer = OnnxSession(opened.onnx, threads)
    for a in agreements(_judgeable(model), model.run(arrays), peer.run(all_arrays)):
        if not a.ok:
            fault = f"the output {name_text(a.name)} differs by {a.relative:.1e} of its magnitude"
            remark(f"WARNING: {fault}; see `stormdrop check`")
    return peer.settings
