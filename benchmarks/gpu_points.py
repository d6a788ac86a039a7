"""Chosen points of operators, timed on a GPU.

    python -m benchmarks.gpu_points             # the default schedule of every operator
    python -m benchmarks.gpu_points FILE        # a line for each: GMM 1 512 512 512 | s0.depth=3 s0.0.layout=1

`gpu_points.txt` beside this file has points that the estimate was compared with.

A line without knobs times the default schedule; knobs named change the default point; `sketch=K` takes the K-th sketch
of the task instead. Printed are microseconds, the estimate, and the line.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.core import say
from benchmarks.gpu import cases, kernel_seconds
from stormdrop.base.errors import StormdropError
from stormdrop.device.targets import target_for
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_point
from stormdrop.space.sketch import sketches


def timed(line: str) -> str:
    """The row of one line."""
    operator, _, chosen = line.partition("|")
    name, *numbers = operator.split()
    task, target = build(name, [int(n) for n in numbers]), target_for("cuda")
    knobs = {key: int(value) for key, _, value in (part.partition("=") for part in chosen.split())}
    number = knobs.pop("sketch", None)
    if number is None:
        sketch, point = default_point(task, target)
    else:
        sketch = sketches(task, target)[number]
        point = sketch.smallest()[0]
    values = sketch.values(point) | knobs
    rows = sketch.canonical(np.array([[values[n] for n in sketch.names]], dtype=np.int64))
    estimate = float(sketch.assess(rows)[0])
    (seconds,) = kernel_seconds(task, [sketch.schedule(rows[0])])
    return f"{seconds * 1e6:10.2f} {estimate * 1e6:10.2f}  {line}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_points", description="Chosen points on a GPU.")
    parser.add_argument("file", type=Path, nargs="?")
    file: Path | None = parser.parse_args().file
    defaults = [" ".join(map(str, (name, *numbers))) for name, numbers in cases(())]
    for line in defaults if file is None else file.read_text().splitlines():
        if line.strip():
            try:
                say(timed(line))
            except StormdropError as error:
                say(f"{'':10} {type(error).__name__}: {error}  {line}")


if __name__ == "__main__":
    main()
