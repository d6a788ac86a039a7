"""Tasks and partitions of networks and of ONNX's node suite, and the images of three models."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx

from stormdrop.base.codec import encode
from stormdrop.base.errors import UserError
from stormdrop.codegen.fingerprint import digest
from stormdrop.compiler.choose import Choice
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.compiler.model_build import _Build
from stormdrop.graph.partition import Partition
from stormdrop.operators.node import Value
from stormdrop.space.rules import RULES
from stormdrop.target.cpu import cross
from tests.support.onnx_suite import _array, all_cases, graph_of
from tests.support.small_models import SMALL, small

ONNX_VERSION = "version of onnx"
FAMILIES = (
    "alexnet",
    "densenet121",
    "googlenet",
    "inception_v3",
    "mnasnet1_0",
    "mobilenet_v2",
    "resnet18",
    "resnet50",
    "shufflenet_v2_x1_0",
    "squeezenet1_0",
    "vgg11",
    "bert_base_seq128",
    "resnet3d_18",
    "dcgan_generator",
    "efficientnet_b0",
)
"""The networks of the zoo, without further depths of the same family."""
IMAGES = ("small_images", "segments", "sentences")
HASH_DIGITS = 8
TARGET = cross("avx2").with_threads(2)


# ---- tasks and partitions ----------------------------------------------------------------------------------------


def networks(names: Iterable[str] = (*FAMILIES, *SMALL)) -> dict[str, str]:
    """Returns the tasks and the partition of each network."""
    results: dict[str, str] = {}
    for name in names:
        parts = tasks_of(read_graph(small(name) if name in SMALL else f"zoo:{name}"))
        results[f"{name} tasks"], results[f"{name} partition"] = tasks_digest(parts), partition_digest(parts)
    return results


def node_suite(part: str = "") -> dict[str, str]:
    """Returns the tasks and the partition of each case whose name has a part, or the error that refuses the case."""
    results = {ONNX_VERSION: onnx.__version__}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in _cases():
            if part in case.name:
                results[case.name] = _case_digest(case)
    return results


@cache
def _cases() -> list[Any]:
    return all_cases()


def _case_digest(case: Any) -> str:
    try:
        inputs = [_array(x) for x in case.data_sets[0][0]]
        if not all(isinstance(x, (np.ndarray, np.generic)) for x in inputs):
            return "has an input that is no array"
        parts = tasks_of(graph_of(case.model, dict(zip((i.name for i in case.model.graph.input), inputs)))[0])
    except UserError as error:
        return type(error).__name__
    return f"{tasks_digest(parts)} / {partition_digest(parts)}"


def tasks_digest(parts: Partition) -> str:
    """Returns the number of tasks, and a hash of the tasks in their order with labels and numbers of calls."""
    return f"{len(parts.tasks)}, {_hash([[use.task.digest, use.count, use.task.name] for use in parts.tasks])}"


def partition_digest(parts: Partition) -> str:
    """Returns the number of calls, and a hash of the order of calls, of the operands, and of the model's interface."""

    def described(values: Sequence[Value]) -> list[object]:
        return [[v.name, v.shape, v.dtype] for v in values]

    graph = parts.graph
    interface = [described(graph.inputs), described(graph.outputs), graph.output_names]
    constants = sorted([list(v.shape), v.dtype] for v in graph.constants)
    return f"{len(parts.calls)}, {_hash([parts.digest, interface, constants])}"


# ---- images ------------------------------------------------------------------------------------------------------


def images(names: Iterable[str] = IMAGES) -> dict[str, str]:
    """Returns a hash of each field of each image, with default schedules for a fixed target. Machine code, and its
    size, depend on the version of LLVM and are left out.
    """
    results: dict[str, str] = {}
    for name in names:
        parts = tasks_of(read_graph(small(name)))
        target = TARGET.with_weights(parts.constant_bytes)
        tree: dict[str, Any] = encode(_Build(parts, target, lambda task: Choice(), RULES).image())
        tree["kernels"] = [{k: v for k, v in kernel.items() if k != "code"} for kernel in tree["kernels"]]
        results |= {f"{name} {field}": _hash(value) for field, value in tree.items()}
    return results


def _hash(tree: object) -> str:
    return digest(json.dumps(tree, sort_keys=True))[:HASH_DIGITS]
