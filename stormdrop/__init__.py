"""Stormdrop: makes models and tensor programs fast on the machine you have.

    import stormdrop as sd

    model = sd.compile("model.onnx")                  # native code; what tuning decided, else good defaults
    y = model(x)
    sd.tune("model.onnx", seconds=300)                # look for faster ones; the next compile finds them

A kernel of your own, as a formula:

    A, B = sd.tensor("A", (512, 512)), sd.tensor("B", (512, 512), constant=True)
    i, j, k = sd.axis(512), sd.axis(512), sd.reduce_axis(512)
    C = sd.compute("C", (i, j), sd.sum(A[i, k] * B[k, j], k))
    kernel = sd.build(sd.Task([C]), constants={"B": b})
    c = kernel(a)

    best = sd.tune(sd.Task([C]), seconds=30).best     # look for something faster
    kernel = sd.build(sd.Task([C]), constants={"B": b}, schedule=best)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from stormdrop.base.errors import (
    BuildError,
    ModelError,
    RunError,
    ScheduleError,
    StormdropError,
    StormdropWarning,
    Timeout,
    Unsupported,
    UnsupportedOperator,
    UserError,
)
from stormdrop.base.version import __version__
from stormdrop.ir.build import (
    cast,
    equal,
    erf,
    exp,
    log,
    maximum,
    mean,
    minimum,
    prod,
    relu,
    rsqrt,
    sigmoid,
    sqrt,
    sum,
    tanh,
    where,
)
from stormdrop.ir.build import reduce_max as max
from stormdrop.ir.build import reduce_min as min
from stormdrop.ir.tensor import Task, Tensor, Variant, axis, compute, reduce_axis, tensor

if TYPE_CHECKING:
    from stormdrop.compiler.compile import compile, read_graph
    from stormdrop.device.host import detect
    from stormdrop.device.pool.pool import Pool
    from stormdrop.export.c_library import export_library
    from stormdrop.frontend.custom import CustomOperator
    from stormdrop.graph.graph import Graph
    from stormdrop.model.kernel import Kernel, build
    from stormdrop.model.mixed import MixedModel
    from stormdrop.model.model import Model
    from stormdrop.model.open_model import OpenModel, load
    from stormdrop.space.rules import RULES, Rule
    from stormdrop.space.schedule import Schedule
    from stormdrop.space.sketch import Sketch, sketches
    from stormdrop.store.store import Store
    from stormdrop.target.machine import Target
    from stormdrop.tuning.api import tune
    from stormdrop.tuning.tuned import Tuned, TunedModel

logging.getLogger(__name__).addHandler(logging.NullHandler())

# Modules that need the compiler are loaded on first use.
_LAZY = {
    "stormdrop.compiler.compile": ("compile", "read_graph"),
    "stormdrop.model.mixed": ("MixedModel",),
    "stormdrop.tuning.api": ("tune",),
    "stormdrop.export.c_library": ("export_library",),
    "stormdrop.frontend.custom": ("CustomOperator",),
    "stormdrop.graph.graph": ("Graph",),
    "stormdrop.store.store": ("Store",),
    "stormdrop.device.host": ("detect",),
    "stormdrop.model.kernel": ("Kernel", "build"),
    "stormdrop.model.model": ("Model",),
    "stormdrop.model.open_model": ("OpenModel", "load"),
    "stormdrop.device.pool.pool": ("Pool",),
    "stormdrop.tuning.tuned": ("Tuned", "TunedModel"),
    "stormdrop.space.rules": ("RULES", "Rule"),
    "stormdrop.space.schedule": ("Schedule",),
    "stormdrop.space.sketch": ("Sketch", "sketches"),
    "stormdrop.target.machine": ("Target",),
}

_WATCHED = ("compile", "tune")
"""Functions that show their progress."""

__all__ = [
    "RULES",
    "BuildError",
    "CustomOperator",
    "Graph",
    "Kernel",
    "MixedModel",
    "Model",
    "ModelError",
    "OpenModel",
    "Pool",
    "Rule",
    "RunError",
    "Schedule",
    "ScheduleError",
    "Sketch",
    "Store",
    "StormdropError",
    "StormdropWarning",
    "Target",
    "Task",
    "Tensor",
    "Timeout",
    "Tuned",
    "TunedModel",
    "Unsupported",
    "UnsupportedOperator",
    "UserError",
    "Variant",
    "__version__",
    "axis",
    "build",
    "cast",
    "compile",
    "compute",
    "detect",
    "equal",
    "erf",
    "exp",
    "export_library",
    "load",
    "log",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "prod",
    "read_graph",
    "reduce_axis",
    "relu",
    "rsqrt",
    "sigmoid",
    "sketches",
    "sqrt",
    "sum",
    "tanh",
    "tensor",
    "tune",
    "where",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _LAZY.items():
        if name in names:
            attribute = getattr(import_module(module), name)
            if name not in _WATCHED:
                return attribute
            from stormdrop.report.watching import watched

            return watched(attribute)
    raise AttributeError(f"module 'stormdrop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
