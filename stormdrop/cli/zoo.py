"""`stormdrop zoo`: list well-known networks, and write them as ONNX files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from stormdrop.cli.options import json_option
from stormdrop.errors import UserError


@click.group(
    short_help="Well-known networks with random weights, as ONNX files.",
    epilog="""\b
Examples:
  stormdrop zoo ls
  stormdrop zoo build resnet50
""",
)
def zoo() -> None:
    """Well-known networks as ONNX files, with seeded random weights: nothing is downloaded."""


@zoo.command(
    short_help="Which networks there are.",
    epilog="""\b
Examples:
  stormdrop zoo ls
  stormdrop zoo ls --json     for a script
""",
)
@json_option
def ls(as_json: bool) -> None:
    """Which networks there are: parameters, operations of one inference (a multiply-add is two), inputs."""
    from stormdrop.zoo import flops, names, parameters
    from stormdrop.zoo.catalogue import describe

    rows = [(n, parameters(n), flops(n) / 1e9, {i.name: (1, *i.sizes) for i in describe(n).inputs}) for n in names()]
    if as_json:
        click.echo(
            json.dumps({"networks": [dict(zip(("name", "parameters", "gflops", "inputs"), row)) for row in rows]})
        )
        return
    from stormdrop.report.console import print_table, results

    # BERT's three inputs have one shape.
    shapes = [", ".join(dict.fromkeys("x".join(map(str, shape)) for shape in inputs.values())) for *_, inputs in rows]
    cells = [(name, f"{count:,}", f"{gflops:.2f}", shape) for (name, count, gflops, _), shape in zip(rows, shapes)]
    print_table(results(), ("network", "parameters", "GFLOP", "input"), cells, words=(0, 3))


@zoo.command(
    short_help="Write a network as an ONNX file.",
    epilog="""\b
Examples:
  stormdrop zoo build resnet50                          writes resnet50.onnx
  stormdrop zoo build bert_base_seq128 -o models/bert.onnx --batch 8
  stormdrop zoo build vgg19 --seed 7 --json
""",
)
@click.argument("name")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write.  [default: NAME.onnx, here]",
)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Inputs at once.")
@click.option("--symbolic-batch", is_flag=True, help="Leave the batch open instead.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="S", help="Of the weights.")
@click.option("--opset", type=int, metavar="V", help="ONNX operators to use.  [default: 18]")
@json_option
def build(
    name: str, output: Path | None, batch: int, symbolic_batch: bool, seed: int, opset: int | None, as_json: bool
) -> None:
    """Write a network as an ONNX file; one that is there is replaced once the new one is whole."""
    from stormdrop.report.text import bytes_text, clean
    from stormdrop.zoo import DEFAULT_OPSET, build, parameters
    from stormdrop.zoo.catalogue import describe

    opset = DEFAULT_OPSET if opset is None else opset
    lead = None if symbolic_batch else batch
    path = Path(f"{name}.onnx") if output is None else output
    try:
        describe(name, lead, opset)
    except UserError as error:
        raise click.UsageError(clean(str(error))) from error
    # Asked before the weights are drawn, which takes seconds for large networks.
    if path.exists() and not path.is_file():
        raise click.UsageError(f"{clean(str(path))} is not an ordinary file: name one with -o")
    if not path.absolute().parent.is_dir():
        raise click.ClickException(f"cannot write {clean(str(path))}: there is no directory {clean(str(path.parent))}")
    data = build(name, lead, seed, opset).SerializeToString()
    try:
        _replace(path, data)
    except OSError as error:
        raise click.ClickException(f"cannot write {clean(str(path))}: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps({"name": name, "file": str(path), "bytes": len(data), "parameters": parameters(name)}))
    else:
        click.echo(f"{clean(str(path))}: {bytes_text(len(data))}, {parameters(name):,} parameters")


def _replace(path: Path, data: bytes) -> None:
    """All of the data or none of it: what is interrupted leaves the file as it was, and nothing beside it."""
    target = path.resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
