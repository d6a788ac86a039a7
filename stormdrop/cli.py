"""The command line: results on stdout, progress on stderr; exit 0 done, 1 failed, 2 wrong usage, 130 aborted.

Each command imports what it needs when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from stormdrop.cli_op import op
from stormdrop.cli_options import json_option, log_options, threads_option
from stormdrop.errors import StormdropError

EXAMPLES = """\b
Examples:
  stormdrop info resnet50.onnx
  stormdrop bench resnet50.onnx --against onnxruntime
  stormdrop op C2D 1 56 56 64 64 3 1 1
  stormdrop op GMM 1 512 512 512 --time 30s --plot progress.png
  stormdrop op GMM 1 512 512 512 --default --show asm
  stormdrop peak --json
  stormdrop doctor
"""
ABORTED = 130  # 128 + SIGINT, as shells have it


class _Commands(click.Group):
    """Turns our own errors into one line and exit code 1, Ctrl-C into 130; anything else is a bug and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        from stormdrop.report.text import clean

        try:
            return super().invoke(ctx)
        except StormdropError as error:
            raise click.ClickException(clean(" ".join(str(error).split()))) from error
        except KeyboardInterrupt:
            click.echo("aborted", err=True)
            raise SystemExit(ABORTED) from None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, _Elsewhere) else command, rest


class _Elsewhere(click.Command):
    """A command whose module is imported only when it is called: the help of all commands does without it."""

    def __init__(self, name: str, module: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._module = module

    def load(self) -> click.Command:
        return getattr(import_module(self._module), self.name or "")


@click.group(cls=_Commands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stormdrop", message="%(prog)s %(version)s")
@log_options
@click.pass_context
def main(ctx: click.Context) -> None:
    """Find fast kernels for the machine you have.

    Stormdrop writes an operator as a tensor expression, derives loop programs for it, measures some of them here, and
    keeps the fastest.
    """
    from stormdrop.logs import configure, silence

    if ctx.obj is None:
        configure()
    ctx.call_on_close(silence)


_ELSEWHERE = {
    "tune": ("stormdrop.cli_tune", "Find fast kernels for a whole model."),
    "info": ("stormdrop.cli_model", "What a model is made of."),
    "compile": ("stormdrop.cli_model", "Make native code of a model."),
    "run": ("stormdrop.cli_model", "Run a model once."),
    "show": ("stormdrop.cli_model", "Show how a task of a model is computed."),
    "check": ("stormdrop.cli_check", "Compare a model's results with another runtime's."),
    "bench": ("stormdrop.cli_check", "Time a model, alone or against onnxruntime."),
    "store": ("stormdrop.cli_store", "Look at what was measured, move it, tidy it up."),
    "zoo": ("stormdrop.cli_zoo", "Well-known networks with random weights, as ONNX files."),
}

main.add_command(op)
for _name, (_module, _told) in _ELSEWHERE.items():
    if find_spec(_module) is not None:
        main.add_command(_Elsewhere(_name, _module, _told))


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
@threads_option
@json_option
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
@threads_option
@json_option
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
