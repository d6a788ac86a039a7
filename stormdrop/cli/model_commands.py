"""`stormdrop info`, `compile`, `run` and `show`: look at a model, make native code of it, run it."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stormdrop.base.errors import UserError
from stormdrop.cli import options
from stormdrop.cli.sizes import Sized, built_sizes, models_of, sizes_of
from stormdrop.cli.source import Source, built, input_options, machine_options, remark, schedule_options, source_options
from stormdrop.compiler import COMPILED
from stormdrop.ir.shape import shape_text
from stormdrop.report.console import heading, print_pairs
from stormdrop.report.text import bytes_text, clean, counted, name_text, span_text

if TYPE_CHECKING:
    from rich.console import Console

    from stormdrop.compiler.choose import Choice
    from stormdrop.graph.partition import Partition, TaskUse
    from stormdrop.report.model_reports import Listed
    from stormdrop.target.machine import Target

LIBRARY = ".so"
SHOWN = ("task", "sketch", "schedule", "loops", "llvm", "asm")
SHOWN_UNASKED = ("schedule", "loops")


@click.command(
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
@click.option("--passes", is_flag=True, help="Print the graph as imported, and the changes by every pass.")
@machine_options
def info(source: Source, passes: bool, as_json: bool) -> None:
    """Show the contents of a MODEL: inputs, outputs, operators, and the tasks it is cut into. Nothing is compiled.

    MODEL is an ONNX file, zoo:NAME, or a file that `stormdrop compile` wrote.
    """
    if passes:
        if source.is_compiled or as_json:
            raise click.UsageError("--passes prints text, of a model that is not compiled yet")
        from stormdrop.report.model_reports import passes_text

        for line in passes_text(source.open(is_any_size=True).graph):
            click.echo(line)
        return
    if source.is_compiled:
        from stormdrop.report.model_reports import image_json, print_image

        reports = [(image_json(source.model, image), image) for image in source.open_images()]
        options.show_each(as_json, [(tree, partial(print_image, tree=tree, image=image)) for tree, image in reports])
        return
    from stormdrop.compiler.model_build import memory_of
    from stormdrop.report.model_reports import model_json, open_json, parts_json, print_model

    opened = source.open(is_any_size=True)
    parts = opened.parts
    target = source.target().with_weights(parts.constant_bytes)
    kernels, arena_bytes = memory_of(parts, target)
    listed = _listed(source, parts, target)
    tree = model_json(source.model, opened.graph, listed, kernels, arena_bytes, target.threads)
    if opened.mixed is not None:
        tree |= parts_json(opened.mixed)
    tree |= open_json(opened.declared, opened.chosen)
    options.show(as_json, tree, lambda console: print_model(console, tree, listed))


def _listed(source: Source, parts: Partition, target: Target) -> tuple[Listed, ...]:
    from stormdrop.report.model_reports import Listed

    choose = source.choices(parts, target)
    return tuple(Listed(use, choose(use.task)) for use in parts.tasks)


@click.command(
    epilog="""\b
Examples:
  stormdrop compile resnet50.onnx                  writes resnet50.sd
  stormdrop compile resnet50.onnx -o build/resnet50.sd --threads 4
  stormdrop compile resnet50.onnx --target cuda:sm_80   for an A100
  stormdrop compile zoo:mobilenet_v2 -o libmobilenet.so --header mobilenet.h
  stormdrop compile m.onnx --shapes x=1x8 --shapes x=4x8   two sizes, one file
""",
)
@source_options
@options.output(
    "-o",
    "--output",
    metavar="FILE",
    help_text="Where to write: .sd for Stormdrop, .so for a C library.  [default: the model's name with .sd, here]",
)
@options.output("--header", metavar="FILE.h", help_text="With a library: the C header.  [default: beside it, with .h]")
@schedule_options
@machine_options
def compile(source: Source, output: Path | None, header: Path | None, as_json: bool) -> None:
    """Compile a MODEL (an ONNX file or zoo:NAME) to native code for this machine and write it to a file.

    Kernels with a verdict of tuning use its schedule, all other kernels the analytic default.
    """
    from stormdrop.export.c_library import export_library
    from stormdrop.report.model_reports import image_rows

    path = Path(source.stem + COMPILED) if output is None else output
    if path.suffix not in (COMPILED, LIBRARY):
        raise click.UsageError(f"{path.name} could be anything: -o takes a name that ends in {COMPILED} or {LIBRARY}")
    if header is not None and path.suffix != LIBRARY:
        raise click.UsageError(f"--header goes with a library: give -o a name that ends in {LIBRARY}")
    if header is None and path.suffix == LIBRARY:
        header = path.with_suffix(".h")
    files = [path] if header is None else [path, header]
    for file in files:
        options.refuse_unwritable(file)
    if header is not None and (source.target_name or "host") != "host":
        raise click.UsageError(
            f"a C library runs on the CPU: with --target {source.target_name} give -o a name ending in {COMPILED}"
        )
    source = replace(source, fallback=None)
    with _for_a_file():
        made = built_sizes(source) if source.sizes else built(source, source.open())
    images = [model.image for model in models_of(made.model)]
    image = images[-1]
    began = time.perf_counter()
    if header is None:
        made.model.save(path)
    else:
        export_library(made.model, path, header, source.stem)
    written = time.perf_counter() - began
    sizes = {str(f): f.stat().st_size for f in files}
    tree = {
        "model": source.model,
        "files": sizes,
        "threads": image.threads,
        "tasks": made.tasks,
        "stored_tasks": made.stored,
        "kernels": len(image.calls),
        "weights_bytes": image.weights_bytes,
        "arena_bytes": image.arena_bytes,
        "seconds": made.seconds,
        **({"sizes": [[list(p.shape) for p in i.inputs] for i in images]} if len(images) > 1 else {}),
    }

    def print_text(console: Console) -> None:
        heading(console, f"{source.model}, {image.units}")
        rows = [("file", f"{name}, {bytes_text(size)}") for name, size in sizes.items()]
        spent = f"{span_text(made.seconds or 0.0)} to compile, {span_text(written)} to write"
        if len(images) > 1:
            shown = "; ".join(", ".join(shape_text(p.shape) for p in i.inputs) for i in images)
            rows.append(("sizes", f"{len(images)}: {shown}; of the last one:"))
        print_pairs(console, [*rows, *image_rows(image), ("schedules", made.schedules_text), ("spent", spent)])

    options.show(as_json, tree, print_text)


@contextmanager
def _for_a_file() -> Generator[None]:
    """Adds a remedy to the error of a model that needs another runtime, which no file can contain."""
    from stormdrop.model.fallback import REFUSALS

    try:
        yield
    except UserError as error:
        if not isinstance(error, REFUSALS) and not isinstance(error.__cause__, REFUSALS):
            raise
        remedy = "no saved file or C library can hold it: `stormdrop run` and sd.compile run it with onnxruntime"
        raise UserError(f"{error}; {remedy}") from error


@click.command(
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
@options.output("--output", metavar="FILE.npz", help_text="Save the outputs by name; one output alone as FILE.npy.")
@schedule_options
@machine_options
def run(source: Source, given: tuple[str, ...], seed: int, output: Path | None, as_json: bool) -> None:
    """Run a MODEL once (an ONNX file, zoo:NAME, or a compiled .sd file) and summarise its outputs.

    Without --input floats are standard normal, truth values 0 or 1, and integers in the range that the model uses.
    """
    if output is not None:
        options.refuse_unwritable(output)
    sizes = list(sizes_of(source, given, seed, is_one=True))
    if output is not None and len(sizes) > 1:
        raise click.UsageError("--output takes the outputs of one size: give --shapes or --input")
    for sized in sizes:
        if sized.opened is not None:  # an error before anything is compiled
            _refuse_one_array(output, sized.opened.output_count)
    if not given and any(sized.arrays for sized in sizes):
        kinds = "floats standard normal, integers from the range that the model uses"
        remark(f"inputs are random, seed {seed}: {kinds}; --input gives real ones")
    options.show_each(as_json, (_outputs(source, sized, None if given else seed, output) for sized in sizes))


def _outputs(source: Source, sized: Sized, seed: int | None, output: Path | None) -> options.Shown:
    """Runs a model at one size, and saves the outputs."""
    from stormdrop.base.files import replacing
    from stormdrop.compare.inputs import saved, saved_alone
    from stormdrop.report.model_reports import print_outputs, summary_json

    model = sized.make().model
    _refuse_one_array(output, len(model.outputs))
    outputs = model.run(sized.arrays)
    names: dict[str, str] = {}
    if output is not None:
        _refuse_other_values(outputs)
        data, names = (saved_alone(outputs), {}) if output.suffix == ".npy" else saved(outputs)
        with replacing(output) as write:
            write(memoryview(data))
    tree = {"model": source.model, "threads": model.threads, "random": seed is not None, "seed": seed}
    tree |= {"outputs": [summary_json(n, a) for n, a in outputs.items()], "saved": output and str(output)}

    def print_text(console: Console) -> None:
        if sized.suffix:
            heading(console, f"{source.model}{sized.suffix}")
        print_outputs(console, outputs)
        if output is not None:
            remark(f"the outputs are saved in {output}")
        for name, kept in names.items():
            if name != kept:
                remark(f"{name} is called {kept} there")

    return tree, print_text


def _refuse_one_array(output: Path | None, count: int) -> None:
    """Raises click.UsageError if a file of one array is given for another number of outputs."""
    if output is not None and output.suffix == ".npy" and count != 1:
        fault = f"{clean(output.name)} would hold one array, and the model has {count} outputs"
        raise click.UsageError(f"{fault}: give --output a name that ends in .npz")


def _refuse_other_values(outputs: Mapping[str, Any]) -> None:
    """Raises UserError for texts and sequences, which onnxruntime may compute."""
    for name, value in outputs.items():
        if getattr(getattr(value, "dtype", None), "kind", "O") in "OUS":
            raise UserError(f"the output {name_text(name)} is no array of numbers: leave out --output")


@click.command(
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
    help="The form to print; may be repeated.  [default: schedule, loops]",
)
@schedule_options
@machine_options
def show(source: Source, task: str | None, parts: tuple[str, ...], as_json: bool) -> None:
    """Show the kernel of a TASK of a MODEL: its schedule by tuning, or by default.

    TASK is an id as `info` lists it, the beginning of a digest, the name of a node or value, or a part of a name or
    label.
    """
    from stormdrop.report.model_reports import find_task, print_tasks

    if task is None and parts:
        raise click.UsageError("--as is for one task: name it; without --as the tasks are listed")
    partition = source.open(is_any_size=True).parts
    target = source.target().with_weights(partition.constant_bytes)
    if task is None:
        listed = _listed(source, partition, target)
        tree = {"model": source.model, "tasks": [t.to_json() for t in listed]}
        options.show(as_json, tree, lambda console: print_tasks(console, listed))
        return
    use = find_task(partition, task)
    choice = source.choices(partition, target)(use.task)
    options.show(as_json, *_shown(source, use, choice, target, parts or SHOWN_UNASKED))


def _shown(source: Source, use: TaskUse, choice: Choice, target: Target, parts: tuple[str, ...]) -> options.Shown:
    from stormdrop.builder.building import program_of
    from stormdrop.compiler.choose import Origin
    from stormdrop.report.model_reports import Listed, calls_text, print_sections
    from stormdrop.report.operator import code_sections, print_sketches, sketches_json
    from stormdrop.report.text import schedule_lines
    from stormdrop.space.default import default_schedule

    rules = source.rules
    schedule = choice.schedule or default_schedule(use.task, target, rules)
    levels = [level for level in ("loops", "llvm", "asm") if level in parts]
    code: list[tuple[str, str]] = []
    if levels:
        code = code_sections(program_of(use.task, schedule, target, rules=rules), target, levels)
    texts = {"task": str(use.task)} if "task" in parts else {}
    texts |= zip(levels, (text for _, text in code))
    tree = Listed(use, choice).to_json()
    tree |= {"threads": target.threads, "schedule": schedule.to_json(), "text": texts}
    if "sketch" in parts:
        tree["sketches"] = sketches_json(use.task, target, rules)

    def print_text(console: Console) -> None:
        heading(console, f"{use.id}: {use.calls[0].label}, {use.calls[0].shapes_text()}, {target.units}")
        called = counted(use.count, "time")
        print_pairs(console, [("called", called), ("for", calls_text(use)), ("digest", use.task.digest)])
        print_sections(console, [("task", str(use.task))] if "task" in parts else [])
        if "sketch" in parts:
            console.print()
            print_sketches(console, use.task, target, rules)
        by_origin = {Origin.VERDICT: "as tuning has decided", Origin.GIVEN: "the fastest trial, unproved"}
        title = f"schedule, {by_origin.get(choice.origin, 'by default')}"
        lines = "\n".join(f"  {line}" for line in schedule_lines(schedule))
        print_sections(console, [*([(title, lines)] if "schedule" in parts else []), *code])

    return tree, print_text
