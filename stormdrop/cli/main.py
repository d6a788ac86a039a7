"""The command line: results on stdout, progress on stderr; exit 0 done, 1 failed, 2 wrong usage, 130 aborted.

Each command imports its modules when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import errno
from importlib import import_module
from typing import Any

import click

from stormdrop.base.codec import encode
from stormdrop.base.errors import StormdropError
from stormdrop.cli import options
from stormdrop.report.text import clean

EXAMPLES = """\b
Examples:
  stormdrop bench zoo:resnet50 --against onnxruntime   without tuning
  stormdrop check resnet50.onnx                        are its results right?
  stormdrop tune resnet50.onnx --time 5m               find faster kernels
  stormdrop compile resnet50.onnx                      writes resnet50.sd
  stormdrop show resnet50.onnx t3 --as asm             a kernel's machine code
  stormdrop op conv2d 1 56 56 64 64 3 1 1              one convolution
  stormdrop op matmul 512 512 512 --time 30s --plot progress.png
"""
_SECTIONS = {
    "Models": ("info", "bench", "check", "tune", "compile", "run", "show", "zoo"),
    "Operators": ("op",),
    "This machine": ("doctor", "peak", "calibrate", "store"),
}
ABORTED = 130  # 128 + SIGINT, as shells have it


class _Commands(click.Group):
    """The group of commands. Our own errors become one line and exit code 1, Ctrl-C 130; other errors keep their
    traceback.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StormdropError as error:
            raise click.ClickException(clean(" ".join(str(error).split()))) from error
        except MemoryError as error:
            raise click.ClickException(clean(f"out of memory: {error or 'this machine has too little'}")) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise click.ClickException(f"cannot write: {error.strerror}") from error
        except KeyboardInterrupt:
            click.echo("aborted", err=True)
            raise SystemExit(ABORTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections of commands, the most used commands first."""
        for title, names in _SECTIONS.items():
            commands = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
            rows = [(name, command.get_short_help_str(formatter.width)) for name, command in commands]
            with formatter.section(title):
                formatter.write_dl(rows, col_max=12)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        ctx.meta[options.ARGUMENTS] = tuple(args)
        return name, command.load() if isinstance(command, _Elsewhere) else command, rest


class _Elsewhere(click.Command):
    """A command with a module that only a call imports: the help of all commands is quick."""

    def __init__(self, name: str, module: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._module = module

    def load(self) -> click.Command:
        return getattr(import_module(self._module), self.name or "")


@click.group(cls=_Commands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stormdrop", message="%(prog)s %(version)s")
@options.log
@click.pass_context
def main(ctx: click.Context) -> None:
    """Make an ONNX model fast on the machine you have.

    A model is cut into kernels, and these become native code: well chosen at once, and faster after some minutes of
    tuning. Measurements are kept and used again. A MODEL is an ONNX file, or zoo:NAME for a network of `stormdrop zoo
    ls`.
    """
    from stormdrop.report.logs import configure, silence, warnings_as_notes

    ctx.with_resource(warnings_as_notes())
    if ctx.obj is None:
        configure()
    ctx.call_on_close(silence)


_ELSEWHERE = {
    "op": ("stormdrop.cli.op", "Tune one operator and show its kernel."),
    "tune": ("stormdrop.cli.tune", "Search for faster kernels of a model, and keep them."),
    "info": ("stormdrop.cli.model_commands", "Say what a model is made of."),
    "compile": ("stormdrop.cli.model_commands", "Write a model's native code to a file."),
    "run": ("stormdrop.cli.model_commands", "Run a model once, on given or random inputs."),
    "show": ("stormdrop.cli.model_commands", "Show how a kernel of a model is computed."),
    "check": ("stormdrop.cli.check", "Compare a model's results with onnxruntime's."),
    "bench": ("stormdrop.cli.check", "Time a model, alone or against onnxruntime."),
    "calibrate": ("stormdrop.cli.calibrate", "Fit the estimate of kernels to this machine."),
    "store": ("stormdrop.cli.store", "Look at what was measured, move it, tidy it up."),
    "zoo": ("stormdrop.cli.zoo", "Well-known networks with random weights, as ONNX files."),
}

for _name, (_module, _short_help) in _ELSEWHERE.items():
    main.add_command(_Elsewhere(_name, _module, _short_help))


@main.command(
    short_help="Measure what this machine can do at best.",
    epilog="""\b
Examples:
  stormdrop peak              measures when called first, then tells what is known
  stormdrop peak --fresh      measure it again (about three seconds)
  stormdrop peak --threads 1 --json
  stormdrop peak --target cuda
""",
)
@click.option("--fresh", is_flag=True, help="Measure again, even if this machine is known.")
@options.target
@options.threads
@options.as_json
def peak(fresh: bool, target_name: str | None, threads: int | None, as_json: bool) -> None:
    """Measure the peak of this machine: multiply-adds, and bandwidth of every cache level and of memory."""
    if (target_name or "host") != "host":
        _gpu_peak(target_name or "", fresh, as_json)
        return
    from stormdrop.device.cpus import warn_if_crowded
    from stormdrop.device.host import detect
    from stormdrop.device.peak import measure_peak
    from stormdrop.report.machine import print_peak

    target = detect(threads)
    warn_if_crowded(target.threads)
    peak = measure_peak(target, fresh)
    options.show(as_json, encode(peak), lambda console: print_peak(console, target, peak))


def _gpu_peak(target_name: str, fresh: bool, as_json: bool) -> None:
    if target_name.startswith("cuda:sm_"):
        raise click.UsageError("a peak is measured on a GPU that is here: --target cuda or cuda:NUMBER")
    from stormdrop.device.cuda.detect import detect_gpu
    from stormdrop.device.cuda.device import cuda_device
    from stormdrop.device.cuda.peak import measure_gpu_peak
    from stormdrop.report.machine import print_gpu_peak

    ordinal = int(target_name.partition(":")[2] or 0)
    gpu, peak = detect_gpu(ordinal), measure_gpu_peak(cuda_device(ordinal), fresh)
    options.show(as_json, encode(peak), lambda console: print_gpu_peak(console, gpu, peak))


@main.command(
    short_help="Check this installation.",
    epilog="""\b
Examples:
  stormdrop doctor
  stormdrop doctor --json     for a script; exit code 1 if anything is broken
  stormdrop doctor --target cuda
""",
)
@options.target
@options.threads
@options.as_json
def doctor(target_name: str | None, threads: int | None, as_json: bool) -> None:
    """Check this installation: build and run one kernel, and print the fault if there is one."""
    from stormdrop.doctor.doctor import diagnose
    from stormdrop.report.machine import print_diagnosis

    diagnosis = diagnose(threads, target_name)
    options.show(as_json, diagnosis.to_json(), lambda console: print_diagnosis(console, diagnosis))
    if not diagnosis.ok:
        raise SystemExit(1)
