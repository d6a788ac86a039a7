"""Memory of a model at many sizes, and of many compilations and calls: `python -m benchmarks.sizes [NETWORK]`.

Each figure is the resident memory of a process of its own, in MiB:

    alone      the network compiled and run for the largest batch
    together   the same process for all batches from 1 on
    compile    a tiny model compiled again and again, after a tenth of the compilations and after all
    call       the same for calls of a tiny model at 8 sizes in turn
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

LARGEST = 32
COMPILATIONS, CALLS = 1_000, 100_000


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def network_mib(path: str, batches: range) -> dict[str, float]:
    import stormdrop as sd

    model: Any = sd.compile(path)
    shape = model.inputs[0].shape[1:]
    for batch in batches:
        model(np.zeros((batch, *shape), np.float32))
    return {
        "mib": resident_mib(),
        "weights_mib": sum({c: c.nbytes for m in model.models for c in m.chunks}.values()) / (1 << 20),
    }


def compilations_mib() -> dict[str, float]:
    import stormdrop as sd

    marks: dict[str, float] = {}
    for k in range(1, COMPILATIONS + 1):
        sd.compile(_tiny(), shapes={"x": (3, 8)})(np.zeros((3, 8), np.float32))
        if k in (COMPILATIONS // 10, COMPILATIONS):
            marks[f"after {k:,}"] = resident_mib()
    return marks


def calls_mib() -> dict[str, float]:
    import stormdrop as sd

    model = sd.compile(_tiny())
    arrays = [np.zeros((n, 8), np.float32) for n in range(1, 9)]
    marks: dict[str, float] = {}
    for k in range(1, CALLS + 1):
        model(arrays[k % 8])
        if k in (CALLS // 10, CALLS):
            marks[f"after {k:,}"] = resident_mib()
    return marks


def _tiny() -> Any:
    from onnx import TensorProto, helper, numpy_helper

    w = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "tiny", ports[:1], ports[1:], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _measured(*args: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-m", "benchmarks.sizes", "--part", *args], capture_output=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    if sys.argv[1:2] == ["--part"]:
        part, *rest = sys.argv[2:]
        if part == "compile":
            found = compilations_mib()
        elif part == "call":
            found = calls_mib()
        else:
            found = network_mib(rest[0], range(LARGEST, LARGEST + 1) if part == "alone" else range(1, LARGEST + 1))
        print(json.dumps(found))
        return
    from stormdrop import zoo

    name = sys.argv[1] if len(sys.argv) > 1 else "resnet50"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(zoo.build(name, batch=None).SerializeToString())
        alone, together = (_measured(part, str(path))["mib"] for part in ("alone", "together"))
    told = f"{alone:.0f} MiB, batches 1 to {LARGEST} {together:.0f} MiB"
    print(f"{name}: batch {LARGEST} alone {told}: {together / alone:.2f} times")
    for part in ("compile", "call"):
        (first, before), (last, after) = _measured(part).items()
        print(f"{part}: {before:.0f} MiB {first}, {after:.0f} MiB {last}: {after / before - 1:+.1%}")


if __name__ == "__main__":
    main()
