"""How much memory a process needs that loads a model from a file and runs it.

    python -m benchmarks.footprint ours|theirs MODEL.onnx [--threads 2] [--tuned]       # prints JSON, bytes

Each side imports only what its user would import. `peak` is the most that was ever in memory, `after` what is left
after the runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

RUNS = 3


def footprint(side: str, path: Path, threads: int, tuned: bool) -> dict[str, int]:
    """Of a fresh process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.footprint",
        side,
        str(path),
        "--threads",
        str(threads),
        *(["--tuned"] if tuned else []),
    ]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def _bytes(key: str) -> int:
    """From the kernel's account of this process; getrusage would count the parent as it was before exec."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key + ":"))
    return int(line.split()[1]) * 1024


def _ours(path: str, threads: int, tuned: bool) -> None:
    from stormdrop.compiler.compile import compile as compile_model
    from stormdrop.ir.expr import NUMPY

    model = (
        compile_model(path, threads=threads)
        if tuned
        else compile_model(path, threads=threads, schedules=lambda task: None)
    )
    inputs = {port.name: np.ones(port.shape, NUMPY[port.dtype]) for port in model.inputs}
    for _ in range(RUNS):
        model.run(inputs)


def _theirs(path: str, threads: int) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    inputs = {port.name: np.ones(port.shape, types[port.type]) for port in session.get_inputs()}
    for _ in range(RUNS):
        session.run(None, inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("ours", "theirs"))
    parser.add_argument("path")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tuned", action="store_true")
    given = parser.parse_args()
    if given.side == "ours":
        _ours(given.path, given.threads, given.tuned)
    else:
        _theirs(given.path, given.threads)
    print(json.dumps({"peak": _bytes("VmHWM"), "after": _bytes("VmRSS")}))


if __name__ == "__main__":
    main()
