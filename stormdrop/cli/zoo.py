"""`stormdrop zoo`: list well-known networks, and write them as ONNX files."""

from __future__ import annotations

from pathlib import Path

import click

from stormdrop.cli import options
from stormdrop.report.console import print_table
from stormdrop.report.text import bytes_text, clean


@click.group(
    epilog="""\b
Examples:
  stormdrop zoo ls
  stormdrop zoo build resnet50
""",
)
def zoo() -> None:
    """Write well-known networks as ONNX files, with seeded random weights: nothing is downloaded."""


@zoo.command(
    short_help="List the networks.",
    epilog="""\b
Examples:
  stormdrop zoo ls
  stormdrop zoo ls --json     for a script
""",
)
@options.as_json
def ls(as_json: bool) -> None:
    """List the networks: parameters, operations of one inference (a multiply-add is two), inputs."""
    from stormdrop.zoo import describe, flops, names, parameters

    rows = [(n, parameters(n), flops(n) / 1e9, {i.name: (1, *i.sizes) for i in describe(n).inputs}) for n in names()]
    # BERT's three inputs have one shape.
    shapes = [", ".join(dict.fromkeys("x".join(map(str, shape)) for shape in inputs.values())) for *_, inputs in rows]
    cells = [(name, f"{count:,}", f"{gflops:.2f}", shape) for (name, count, gflops, _), shape in zip(rows, shapes)]
    tree = {"networks": [dict(zip(("name", "parameters", "gflops", "inputs"), row)) for row in rows]}
    headings = ("network", "parameters", "GFLOP", "input")
    options.show(as_json, tree, lambda console: print_table(console, headings, cells, words=(0, 3)))


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
@options.output("-o", "--output", metavar="FILE", help_text="Where to write.  [default: NAME.onnx, here]")
@options.count("--batch", "Inputs at once.", default=1, show_default=True)
@click.option("--symbolic-batch", is_flag=True, help="Leave the batch open instead.")
@options.seed("the weights")
@click.option("--opset", type=int, metavar="V", help="ONNX operators to use.  [default: 18]")
@options.as_json
def build(
    name: str, output: Path | None, batch: int, symbolic_batch: bool, seed: int, opset: int | None, as_json: bool
) -> None:
    """Write a network as an ONNX file; an existing file is replaced once the new file is complete."""
    from stormdrop.base.files import replacing
    from stormdrop.zoo import DEFAULT_OPSET, build, describe, parameters

    opset = DEFAULT_OPSET if opset is None else opset
    lead = None if symbolic_batch else batch
    path = Path(f"{name}.onnx") if output is None else output
    with options.wrong_usage():
        describe(name, lead, opset)
    options.refuse_unwritable(path)  # before the weights are drawn, which takes seconds for large networks
    data = build(name, lead, seed, opset).SerializeToString()
    with replacing(path) as write:
        write(memoryview(data))
    tree = {"name": name, "file": str(path), "bytes": len(data), "parameters": parameters(name)}
    text = f"{clean(str(path))}: {bytes_text(len(data))}, {tree['parameters']:,} parameters"
    options.show(as_json, tree, lambda _: click.echo(text))
