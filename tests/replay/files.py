"""A store and a compiled model that an earlier version wrote: later ones read them, or say which version wrote them.

    reservoir.sqlite, reservoir.json      a store, and the best schedules it has for its tasks
    model.sd, model.npz                   a compiled model, and arrays that it was run on with what came out

They are made for a machine with AVX2 and nothing else in particular.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from stormdrop.compare.inputs import saved as npz_of
from stormdrop.compiler.compile import compile as compile_model
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.ir.tensor import Task
from stormdrop.operators.catalogue import build
from stormdrop.store.store import Store
from stormdrop.target.machine import Target
from stormdrop.tuning.api import tune
from tests.replay.cases import DATA
from tests.replay.machines import machine
from tests.support.tiny_onnx import saved as onnx_file
from tests.support.tuning import tune_models

STORE, BEST, MODEL, ARRAYS = (DATA / name for name in ("reservoir.sqlite", "reservoir.json", "model.sd", "model.npz"))
OPERATORS = (("GMM", (1, 24, 40, 32)), ("C2D", (1, 10, 10, 8, 16, 3, 1, 1)), ("SFM", (16, 100)))
TRIALS = 12
MODEL_TRIALS = 40
THREADS = 2


def record_files() -> None:
    target = machine("avx2", THREADS)
    with tempfile.TemporaryDirectory() as folder:
        network = _network(Path(folder))
        _record_store(network, target)
        _record_model(network, target)


def _record_store(network: Path, target: Target) -> None:
    STORE.unlink(missing_ok=True)
    parts = tasks_of(read_graph(network))
    tuned: list[Task] = [build(name, shape) for name, shape in OPERATORS]
    with Store.open(STORE) as store:
        for task in tuned:
            tune(task, target, trials=TRIALS, store=store)
        tune_models([parts], target, trials=MODEL_TRIALS, store=store)
        tuned += [use.task for use in parts.tasks]
        lines: list[object] = []
        for task in tuned:
            best = store.best(task, target)
            assert best is not None, task.name
            lines.append({"task": task.to_json(), "trials": store.known(task, target), "best": best.schedule.to_json()})
    data = {"target": target.to_json(), "tasks": lines}
    BEST.write_text(json.dumps(data, separators=(",", ":")) + "\n")


def _record_model(network: Path, target: Target) -> None:
    model = compile_model(network, schedules=lambda task: None, target=target, threads=THREADS)
    model.save(MODEL)
    rng = np.random.default_rng(0)
    inputs = {port.name: rng.standard_normal(port.shape).astype(np.float32) for port in model.inputs}
    ARRAYS.write_bytes(npz_of({**inputs, **model.run(inputs)})[0])


def _network(folder: Path) -> Path:
    """A small picture's class: convolutions side by side, one fit for Winograd's algorithm; pooling, product,
    softmax.
    """
    rng = np.random.default_rng(7)
    weights: dict[str, NDArray[Any]] = {
        name: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in {"w0": (16, 3, 3, 3), "w1": (16, 16, 3, 3), "w2": (8, 16, 1, 1), "w3": (10, 24)}.items()
    }
    nodes = [
        helper.make_node("Conv", ["image", "w0"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "w2"], ["d"]),
        helper.make_node("Concat", ["c", "d"], ["e"], axis=1),
        helper.make_node("MaxPool", ["e"], ["f"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["f"], ["g"]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("Gemm", ["h", "w3"], ["i"], transB=1),
        helper.make_node("Softmax", ["i"], ["classes"]),
    ]
    return onnx_file(folder, nodes, {"image": [1, 3, 16, 16]}, {"classes": TensorProto.FLOAT}, weights, graph="small")
