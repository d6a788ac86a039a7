"""`stormdrop op`: tune one operator, or compare several searches on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from stormdrop.cli import options
from stormdrop.report.console import notes, say

if TYPE_CHECKING:
    from rich.console import Console

    from stormdrop.ir.expr import Dtype
    from stormdrop.tuning.operator import OperatorReport, Plan

SHOWN = ("sketches", "loops", "llvm", "asm")
DTYPES = ("f32", "bf16")


class _OperatorCommand(click.Command):
    """A command that lists the operators in its help only, since they import NumPy."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from stormdrop.operators.catalogue import OPERATORS

        super().format_help_text(ctx, formatter)
        formatter.width = max(formatter.width, 110)
        alias, usage = (max(map(len, column)) for column in zip(*((o.alias, o.usage) for o in OPERATORS.values())))
        rows = (f"  {o.alias:{alias}}  {o.name}  {o.usage:{usage}}  {o.note}" for o in OPERATORS.values())
        formatter.write_paragraph()
        formatter.write_text("\b\nOperators, their short names and arguments:\n" + "\n".join(rows))


@click.command(
    cls=_OperatorCommand,
    epilog="""\b
Examples:
  stormdrop op conv2d 1 14 14 256 256 3 1 1                  a storm, then droplets until they find no more
  stormdrop op conv2d 1 14 14 256 256 3 1 1 --time 30s       for half a minute; --trials 300: so many candidates
  stormdrop op matmul 512 512 512 --untuned --show asm       no search: the analytic choice, its machine code
  stormdrop op matmul 512 512 512 --search random --search storm+droplet --trials 200 --plot race.png
  stormdrop op softmax 1024 1024 --threads 1 --json          for a script
  stormdrop op matmul 512 512 512 --target cuda              on a GPU
""",
)
@click.argument("name")
@click.argument("args", nargs=-1, type=int)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    default="f32",
    show_default=True,
    help="Of the inputs; products of bf16 (matmul, bmm, matvec, dot) are summed and given as f32.",
)
@click.option("--untuned", is_flag=True, help="Only time the analytic choice; search nothing.")
@click.option(
    "--search",
    "searches",
    type=click.Choice(options.SEARCHES),
    multiple=True,
    default=("storm+droplet",),
    show_default="storm+droplet",
    help="The strategy; several are run one after the other, each from nothing, and compared.",
)
@options.count("--trials", "Candidates to measure at most.  [default: until droplets find no more, else 300]")
@options.duration("--time", "seconds", help_text="Search for at most so long: 10, 30s, 5m.")
@options.seed("the search and the data")
@options.kept
@options.output(
    "--plot", "plot_path", metavar="PATH", help_text="Draw the best so far over time and trials: .png, .svg or .pdf."
)
@click.option(
    "--show",
    type=click.Choice(SHOWN),
    multiple=True,
    help="The text beside the figures; may be repeated.  [default: loops]",
)
@options.rule
@options.on_models
@click.pass_context
def op(
    ctx: click.Context,
    name: str,
    args: tuple[int, ...],
    dtype: Dtype,
    untuned: bool,
    searches: tuple[str, ...],
    trials: int | None,
    seconds: float | None,
    seed: int,
    store: options.StoreFile,
    plot_path: Path | None,
    show: tuple[str, ...],
    own_rules: tuple[str, ...],
    target_name: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Tune one operator and show its kernel: schedule, loops, time, share of the machine's peak.

    Ctrl-C ends a search with its results so far; a second one aborts.
    """
    _refuse_contradictions(ctx, untuned, searches, as_json, show)
    rules = options.rules_with(own_rules)
    from stormdrop.operators.catalogue import build, resolve

    with options.wrong_usage():
        operator, sizes = resolve(name, args)
        task = build(operator.name, sizes, dtype)
    if plot_path is not None:
        from stormdrop.report.plot import check_plot

        check_plot(plot_path)
    from stormdrop.report.operator import print_operator
    from stormdrop.target.cpu import Cpu
    from stormdrop.tuning.operator import Plan

    console = notes()
    kept, searched = (None, ()) if untuned else (store.tune(), searches)
    machine = options.machine(target_name, threads)
    plan = Plan(operator.name, sizes, task, machine, searched, trials, seconds, seed, kept, rules)
    if dtype == "bf16" and isinstance(plan.target, Cpu) and not plan.target.has_bf16_dot:
        say(console, "this CPU has no dot products of bf16 (AVX512_BF16): products are f32 multiply-adds")
    report = measured(plan, console, quiet=options.log_options(ctx).verbosity > 0)
    options.show(as_json, report.to_json(), lambda console: print_operator(console, report, show))
    if plot_path is not None:
        from stormdrop.report.plot import save_plot

        save_plot(plot_path, [f.tuned for f in report.searches], report.peak_gflops)
        say(console, f"the progress is drawn in {plot_path}")


def measured(plan: Plan, console: Console, quiet: bool) -> OperatorReport:
    """Runs a plan with a live view of it; with `quiet` there is no view, since the log contains everything."""
    from stormdrop.report.logs import LogListener
    from stormdrop.report.operator import known_text
    from stormdrop.report.progress import TuningProgress
    from stormdrop.tuning.operator import PeakWatch, known, measure_operator

    watch = PeakWatch(plan.target)
    if len(plan.searches) == 1 and (best := known(plan)) is not None:
        say(console, known_text(best, plan.task, watch.highest))
    with TuningProgress(console, watch.highest) as progress:
        logged = LogListener(peak_gflops=watch.highest)
        return measure_operator(plan, watch, [logged] if quiet else [logged, progress], lambda text: say(console, text))


def _refuse_contradictions(
    ctx: click.Context, untuned: bool, searches: tuple[str, ...], as_json: bool, show: tuple[str, ...]
) -> None:
    if as_json and show:
        raise click.UsageError("--show prints text and --json prints one object: give either")
    if len(set(searches)) < len(searches):
        raise click.UsageError("the same --search is given twice: their results would only differ by chance")
    kept = {"store": "--store", "plot_path": "--plot"}
    for parameter, option in {"searches": "--search", "trials": "--trials", "seconds": "--time", **kept}.items():
        if untuned and ctx.get_parameter_source(parameter) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--untuned searches nothing: leave out {option}")
