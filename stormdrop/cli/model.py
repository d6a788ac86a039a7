"""`stormdrop info`, `compile`, `run` and `show`: look at a model, make native code of it, run it. `check` and `bench`
are in `cli_check`.

Imports nothing but click until a command runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stormdrop.cli.options import json_option, log_options, threads_option
from stormdrop.cli.source import (
    COMPILED,
    Chosen,
    Source,
    built,
    compile_model,
    input_options,
    source_options,
    untuned_option,
)
from stormdrop.errors import UserError

if TYPE_CHECKING:
    from stormdrop.graph.partition import Partition, TaskUse
    from stormdrop.report.model import Listed
    from stormdrop.runtime.model import Model
    from stormdrop.space.rules import Rule
    from stormdrop.space.schedule import Schedule
    from stormdrop.target.machine import Target

LIBRARY = ".so"
SHOWN = ("task", "sketch", "schedule", "loops", "llvm", "asm")
SHOWN_UNASKED = ("schedule", "loops")


def _print(tree: object) -> None:
    click.echo(json.dumps(tree, allow_nan=False))


@click.command(
    short_help="What a model is made of.",
    epilog="""\b
Examples:
  stormdrop info resnet50.onnx
  stormdrop info zoo:bert_base_seq128
  stormdrop info m.onnx --shapes input=8x3x224x224
  stormdrop info m.onnx --passes      what every graph pass changes
  stormdrop info m.onnx --json | jq '.tasks[] | {id, label, count}'
""",
)
@source_options
@click.option("--passes", is_flag=True, help="Print the graph as imported, and what every pass changes of it.")
@threads_option
@json_option
@log_options
def info(source: Source, passes: bool, threads: int | None, as_json: bool) -> None:
    """Say what a MODEL is made of: inputs, outputs, operators, and the tasks it is cut into. Nothing is compiled.

    MODEL is an ONNX file, zoo:NAME, or a file that `stormdrop compile` wrote.
    """
    from stormdrop.report.console import results

    if passes:
        if as_json or source.is_compiled:
            raise click.UsageError("--passes prints text, of a model that is not compiled yet")
        from stormdrop.report.passes import passes_text

        for line in passes_text(source.open().graph):
            click.echo(line)
        return
    if source.is_compiled:
        from stormdrop.report.model import image_json, print_image

        image = source.open_compiled(threads).image
        if as_json:
            _print(image_json(source.model, image))
        else:
            print_image(results(), source.model, image)
        return
    from stormdrop.driver.compile import memory_of, suited
    from stormdrop.report.model import ModelReport, print_model
    from stormdrop.runtime.host import detect

    opened = source.open()
    parts = opened.parts
    target = suited(detect(threads), parts)
    kernels, arena_bytes = memory_of(parts, target)
    report = ModelReport(
        source.model, opened.graph, _listed(parts, target, source.rules), kernels, arena_bytes, target.threads
    )
    if as_json:
        _print(report.to_json())
    else:
        print_model(results(), report)


def _listed(parts: Partition, target: Target, rules: tuple[Rule, ...]) -> tuple[Listed, ...]:
    from stormdrop.report.console import notes
    from stormdrop.report.model import Listed

    chosen = Chosen(target, False, notes(), rules)
    return tuple(Listed(use, chosen(use.task) is not None) for use in parts.tasks)


@click.command(
    short_help="Make native code of a model.",
    epilog="""\b
Examples:
  stormdrop compile resnet50.onnx                  writes resnet50.sd
  stormdrop compile resnet50.onnx -o build/resnet50.sd --threads 4
  stormdrop compile zoo:mobilenet_v2 -o libmobilenet.so --header mobilenet.h
""",
)
@source_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write: .sd for Stormdrop, .so for a C library.  [default: the model's name with .sd, here]",
)
@click.option(
    "--header",
    type=click.Path(path_type=Path),
    metavar="FILE.h",
    help="With a library: the C header.  [default: beside it, with .h]",
)
@untuned_option
@threads_option
@json_option
@log_options
def compile(
    source: Source, output: Path | None, header: Path | None, untuned: bool, threads: int | None, as_json: bool
) -> None:
    """Make native code of a MODEL (an ONNX file or zoo:NAME) for this machine and write it to a file.

    Kernels are built as the store knows them to be fastest, the others by the analytic default.
    """
    from stormdrop.report.console import heading, print_pairs, results
    from stormdrop.report.model import image_rows
    from stormdrop.report.text import bytes_text, span_text, threads_text

    path = Path(source.stem + COMPILED) if output is None else output
    if path.suffix not in (COMPILED, LIBRARY):
        raise click.UsageError(f"{path.name} could be anything: -o takes a name that ends in {COMPILED} or {LIBRARY}")
    if header is not None and path.suffix != LIBRARY:
        raise click.UsageError(f"--header goes with a library: give -o a name that ends in {LIBRARY}")
    if header is None and path.suffix == LIBRARY:
        header = path.with_suffix(".h")
    for file in (path, *([header] if header is not None else [])):
        refuse_unwritable(file)
    made = compile_model(source.open(), threads, untuned, source.rules)
    image = made.model.image
    began = time.perf_counter()
    _write(made.model, path, header, source.stem)
    written = time.perf_counter() - began
    files = [f for f in (path, header) if f is not None]
    sizes = {str(f): f.stat().st_size for f in files}
    if as_json:
        _print(
            {
                "model": source.model,
                "files": sizes,
                "threads": image.threads,
                "tasks": made.tasks,
                "stored_tasks": made.stored,
                "kernels": len(image.calls),
                "weights_bytes": image.weights_bytes,
                "arena_bytes": image.arena_bytes,
                "seconds": made.seconds,
            }
        )
        return
    console = results()
    heading(console, f"{source.model}, {threads_text(image.threads)}")
    rows = [("file", f"{name}, {bytes_text(size)}") for name, size in sizes.items()]
    spent = f"{span_text(made.seconds or 0.0)} to compile, {span_text(written)} to write"
    print_pairs(console, [*rows, *image_rows(image), ("schedules", made.told), ("spent", spent)])


def refuse_unwritable(path: Path) -> None:
    """Asked before the work is done. Raises click.UsageError or UserError."""
    from stormdrop.report.text import clean

    try:
        is_taken = path.exists() and not path.is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise UserError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    if is_taken:
        raise click.UsageError(f"{clean(str(path))} is not an ordinary file: name another one")
    if not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: there is no directory {path.parent}")


def _write(model: Model, path: Path, header: Path | None, name: str) -> None:
    if header is None:
        model.save(path)
        return
    from stormdrop.export.c_library import write_library

    write_library(model.image, model.weights, path, header, name)


@click.command(
    short_help="Run a model once.",
    epilog="""\b
Examples:
  stormdrop run resnet50.onnx                      on random numbers
  stormdrop run resnet50.sd --input image.npy --output out.npz
  stormdrop run m.onnx --input ids=ids.npy --input mask=mask.npy
  stormdrop run m.onnx --input inputs.npz --json
""",
)
@source_options
@input_options
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE.npz", help="Save the outputs by name.")
@untuned_option
@threads_option
@json_option
@log_options
def run(
    source: Source,
    given: tuple[str, ...],
    seed: int,
    output: Path | None,
    untuned: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run a MODEL once (an ONNX file, zoo:NAME, or a compiled .sd file) and say what comes out.

    Without --input floats are standard normal, and whole numbers and truth values 0 or 1.
    """
    from stormdrop.compare.inputs import random_inputs, read_inputs
    from stormdrop.report.console import notes, results, say
    from stormdrop.report.model import print_outputs, summary_json

    if output is not None:
        refuse_unwritable(output)
    opened = None if source.is_compiled else source.open()
    if given and opened is not None:
        read_inputs(given, opened.graph.inputs)  # a mistake is told before anything is compiled
    model = built(source, opened, None, threads, untuned).model
    arrays = read_inputs(given, model.inputs) if given else random_inputs(model.inputs, seed)
    if not given and model.inputs:
        say(notes(), f"inputs are random, seed {seed}: floats standard normal, others 0 or 1; --input gives real ones")
    outputs = model.run(arrays)
    names = _save(output, outputs) if output is not None else {}
    if as_json:
        told = {"model": source.model, "threads": model.threads, "random": not given, "seed": None if given else seed}
        _print(
            {
                **told,
                "outputs": [summary_json(n, a) for n, a in outputs.items()],
                "saved": None if output is None else str(output),
            }
        )
        return
    print_outputs(results(), outputs)
    if output is not None:
        say(notes(), f"the outputs are saved in {output}")
        for name, kept in names.items():
            if name != kept:
                say(notes(), f"{name} is called {kept} there")


def _save(path: Path, outputs: Mapping[str, Any]) -> dict[str, str]:
    from stormdrop.compare.inputs import saved
    from stormdrop.files import replacing

    data, names = saved(outputs)
    with replacing(path) as write:
        write(memoryview(data))
    return names


@click.command(
    short_help="Show how a task of a model is computed.",
    epilog="""\b
Examples:
  stormdrop show resnet50.onnx                     lists the tasks
  stormdrop show resnet50.onnx t3                  schedule and loops of one
  stormdrop show resnet50.onnx layer1.0.conv2 --as asm
  stormdrop show resnet50.onnx Conv7x7 --as task --as sketch
""",
)
@source_options
@click.argument("task", required=False)
@click.option(
    "--as",
    "parts",
    type=click.Choice(SHOWN),
    multiple=True,
    help="What to print; may be repeated.  [default: schedule, loops]",
)
@untuned_option
@threads_option
@json_option
@log_options
def show(
    source: Source, task: str | None, parts: tuple[str, ...], untuned: bool, threads: int | None, as_json: bool
) -> None:
    """Show how a TASK of a MODEL is computed: by the best schedule the store knows, or by default.

    TASK is an id as `info` lists it, the beginning of a digest, the name of a node or value, or a part of a name or
    label.
    """
    from stormdrop.driver.compile import suited
    from stormdrop.report.console import notes, results
    from stormdrop.report.model import find_task, print_tasks
    from stormdrop.runtime.host import detect

    if task is None and parts:
        raise click.UsageError("--as is for one task: name it; without --as the tasks are listed")
    rules, found = source.rules, source.open().parts
    target = suited(detect(threads), found)
    if task is None:
        listed = _listed(found, target, rules)
        if as_json:
            _print({"model": source.model, "tasks": [t.to_json() for t in listed]})
        else:
            print_tasks(results(), listed)
        return
    use = find_task(found, task)
    stored = Chosen(target, untuned, notes(), rules)(use.task)
    _show(use, stored, target, parts or SHOWN_UNASKED, as_json, rules)


def _show(
    use: TaskUse,
    stored: Schedule | None,
    target: Target,
    parts: tuple[str, ...],
    as_json: bool,
    rules: tuple[Rule, ...],
) -> None:
    from stormdrop.report.console import heading, print_pairs, results
    from stormdrop.report.model import Listed, calls_text, print_sections, shapes_text
    from stormdrop.report.operator import code_sections, print_sketches
    from stormdrop.report.schedule import schedule_lines
    from stormdrop.report.text import counted, threads_text
    from stormdrop.runtime.building import program_of
    from stormdrop.space.default import default_schedule

    schedule = stored or default_schedule(use.task, target, rules)
    origin = "the best the store knows" if stored is not None else "by default"
    code = (
        code_sections(program_of(use.task, schedule, target, rules=rules), target, parts)
        if {*parts} & {"loops", "llvm", "asm"}
        else []
    )
    if as_json:
        texts = {"task": str(use.task)} if "task" in parts else {}
        texts |= dict(zip([p for p in ("loops", "llvm", "asm") if p in parts], (text for _, text in code)))
        tree = Listed(use, stored is not None).to_json() | {
            "threads": target.threads,
            "schedule": schedule.to_json(),
            "text": texts,
        }
        _print(tree | ({"sketches": _sketches(use, target, rules)} if "sketch" in parts else {}))
        return
    console = results()
    heading(console, f"{use.id}: {use.calls[0].label}, {shapes_text(use.calls[0])}, {threads_text(target.threads)}")
    print_pairs(
        console, [("called", counted(use.count, "time")), ("for", calls_text(use)), ("digest", use.task.digest)]
    )
    print_sections(console, [("task", str(use.task))] if "task" in parts else [])
    if "sketch" in parts:
        console.print()
        print_sketches(console, use.task, target, rules)
    lines = "\n".join(f"  {line}" for line in schedule_lines(schedule))
    print_sections(console, [*([(f"schedule, {origin}", lines)] if "schedule" in parts else []), *code])


def _sketches(use: TaskUse, target: Target, rules: tuple[Rule, ...]) -> list[dict[str, Any]]:
    from stormdrop.report.operator import derivation_text
    from stormdrop.space.default import ranked
    from stormdrop.space.sketch import sketches

    return [
        {
            "expected_seconds": seconds,
            "knobs": len(s.knobs),
            "variant": use.task.variants[s.variant].name,
            "derivation": derivation_text(s),
        }
        for s, _, seconds in ranked(sketches(use.task, target, rules))
    ]
