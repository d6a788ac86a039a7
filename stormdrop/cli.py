"""The command line: results on stdout, progress on stderr; exit 0 done, 1 failed, 2 wrong usage.

Each command imports what it needs when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import json
from typing import Any

import click

from stormdrop.errors import StormdropError, UserError

SHOWN = ("sketches", "loops", "llvm", "asm")
EXAMPLES = """\b
Examples:
  stormdrop op C2D 1 56 56 64 64 3 1 1
  stormdrop op GMM 1 512 512 512 --default --show asm
  stormdrop peak --json
  stormdrop doctor
"""


class _Commands(click.Group):
    """Turns our own errors into one line and exit code 1; anything else is a bug and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StormdropError as error:
            raise click.ClickException(" ".join(str(error).split())) from error


def _threads_option(command: Any) -> Any:
    told = "Threads to run kernels with.  [default: STORMDROP_THREADS, else the CPUs this process may use]"
    return click.option("--threads", type=click.IntRange(min=1), metavar="N", help=told)(command)


def _json_option(command: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(command)


@click.group(cls=_Commands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stormdrop", message="%(prog)s %(version)s")
def main() -> None:
    """Find fast kernels for the machine you have.

    Stormdrop writes an operator as a tensor expression, derives loop programs for it, measures some of them here, and
    keeps the fastest.
    """


def _operator_help() -> str:
    """The list of operators; they import NumPy, so only the help of `op` asks for it."""
    from stormdrop.ops.catalogue import OPERATORS

    width = max(len(" ".join(o.arguments)) for o in OPERATORS.values())
    rows = (f"  {o.name}  {' '.join(o.arguments):{width}}  {o.note}" for o in OPERATORS.values())
    return "\b\nOperators and their arguments:\n" + "\n".join(rows)


class _OperatorCommand(click.Command):
    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        formatter.width = max(formatter.width, 110)
        formatter.write_paragraph()
        formatter.write_text(_operator_help())


@main.command(
    cls=_OperatorCommand,
    short_help="Tune one operator and show its kernel.",
    epilog="""\b
Examples:
  stormdrop op C2D 1 14 14 256 256 3 1 1                     tune one convolution with 64 trials
  stormdrop op C2D 1 14 14 256 256 3 1 1 --trials 300        look longer
  stormdrop op GMM 1 512 512 512 --default                   no search: the analytic choice
  stormdrop op GMM 1 512 512 512 --default --show asm        and its machine code
  stormdrop op SFM 1024 1024 --threads 1 --json              for a script
""",
)
@click.argument("name")
@click.argument("args", nargs=-1, type=int)
@click.option("--default", "default_only", is_flag=True, help="Only time the analytic choice; search nothing.")
@click.option("--search", type=click.Choice(["random"]), default="random", show_default=True, help="How to search.")
@click.option("--trials", type=click.IntRange(min=1), default=64, show_default=True, metavar="N", help="Candidates to measure.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="S", help="Of the search and the data.")
@click.option("--show", type=click.Choice(SHOWN), multiple=True, help="What to print with the figures; may be repeated.  [default: loops]")
@_threads_option
@_json_option
def op(
    name: str,
    args: tuple[int, ...],
    default_only: bool,
    search: str,
    trials: int,
    seed: int,
    show: tuple[str, ...],
    threads: int | None,
    as_json: bool,
) -> None:
    """Tune one operator and show its kernel: schedule, loops, time, share of the machine's peak."""
    from stormdrop.ops.catalogue import build

    if as_json and show:
        raise click.UsageError("--show prints text and --json prints one object: give one of them")
    try:
        task = build(name, args)
    except UserError as error:
        raise click.UsageError(str(error)) from error
    from stormdrop.report.console import results
    from stormdrop.report.operator import measure_operator, print_operator
    from stormdrop.target.machine import detect

    report = measure_operator(name.upper(), args, task, detect(threads), None if default_only else trials, seed)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        print_operator(results(), report, show)


@main.command(
    short_help="Measure what this machine can do at best.",
    epilog="""\b
Examples:
  stormdrop peak              what is known of this machine; measured the first time
  stormdrop peak --fresh      measure it again (about three seconds)
  stormdrop peak --threads 1 --json
""",
)
@click.option("--fresh", is_flag=True, help="Measure again, even if this machine is known.")
@_threads_option
@_json_option
def peak(fresh: bool, threads: int | None, as_json: bool) -> None:
    """Measure what this machine can do at best: multiply-adds, and bandwidth of every cache level and of memory."""
    from stormdrop.report.console import results
    from stormdrop.report.peak import print_peak
    from stormdrop.target.machine import detect
    from stormdrop.target.peak import measure_peak

    target = detect(threads)
    found = measure_peak(target, fresh)
    if as_json:
        click.echo(found.to_json())
    else:
        print_peak(results(), target, found)


@main.command(
    short_help="Check this installation.",
    epilog="""\b
Examples:
  stormdrop doctor
  stormdrop doctor --json     for a script; exit code 1 if anything is broken
""",
)
@_threads_option
@_json_option
def doctor(threads: int | None, as_json: bool) -> None:
    """Check this installation: build and run one kernel, and say what is wrong if anything is."""
    from stormdrop.report.console import results
    from stormdrop.report.doctor import diagnose, print_diagnosis

    found = diagnose(threads)
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        print_diagnosis(results(), found)
    if not found.ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
