"""Numbers at the edges, models of independent nodes run everywhere, and how far results are from what is right."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop.compare.interpreter import interpret
from stormdrop.compiler.choose import Choice
from stormdrop.compiler.compile import tasks_of
from stormdrop.compiler.model_build import build_model
from tests.support.abused_onnx import NUMPY, F, I, L, model, port
from tests.support.trials import targets

Array = NDArray[Any]
Wide = np.longdouble
MACHINES = (*(t.isa for t in targets()), "interpreter")
OPSET = {"Gelu": 20, "Swish": 24}


def specials(kind: int) -> Array:
    """Both signs of everything that has one."""
    info = np.finfo(NUMPY[kind])
    edge = 2.0 ** (int(info.nmant) - 1)  # up to here floats have halves
    sizes = [
        0.0,
        info.smallest_subnormal,
        info.smallest_normal,
        info.smallest_normal * 1.5,
        1e-30,
        1e-10,
        1e-4,
        0.1,
        0.25,
        0.5,
        0.75,
        1 - info.epsneg,
        1.0,
        1 + info.eps,
        1.5,
        2.0,
        2.5,
        3.0,
        3.5,
        10.0,
        16.5,
        33.3,
        88.0,
        100.0,
        1e3,
        65536.5,
        edge - 0.5,
        edge + 0.5,
        edge * 2,
        edge * 8,
        1e10,
        1e16,
        1e18,
        1e20,
        1e30,
        info.max / 2,
        info.max,
        np.inf,
    ]
    return np.array([np.nan, *sizes, *(-np.array(sizes))], NUMPY[kind])


@cache
def points(kind: int) -> Array:
    """The special ones, random bits, and random numbers around the places where functions bend."""
    rng, bits = np.random.default_rng(17), NUMPY[I if kind == F else L]
    anything = rng.integers(np.iinfo(bits).min, np.iinfo(bits).max, 2000, bits, endpoint=True).view(NUMPY[kind])
    near = rng.uniform(-1, 1, 2000) * 2.0 ** rng.uniform(-50, 0, 2000)
    ranges = [rng.uniform(-size, size, 1000) for size in (0.5, 1, 5, 20, 90, 720)]
    plain = np.concatenate([near, 1 + near, near - 1, *ranges, np.pi / 2 * rng.integers(-500, 500, 1000)])
    return np.concatenate([specials(kind), anything, plain.astype(NUMPY[kind])])


def ulps(found: Array, wanted: Array) -> Array:
    """Distances in units of the last place of `wanted`; infinite where NaN, infinity or the sign of zero differ."""
    info = np.finfo(found.dtype)
    rounded = wanted.astype(found.dtype)
    unit = np.spacing(np.minimum(np.abs(wanted), info.max).astype(found.dtype)).astype(Wide)
    near = np.abs(found.astype(Wide) - wanted) / unit
    beyond = np.isinf(found) & (np.abs(wanted) >= info.max)  # rounded to infinity by less than an ulp
    far = np.where(np.isinf(rounded) | np.isinf(found), np.where((found == rounded) | beyond, 0, np.inf), near)
    zeros = (found == 0) & (rounded == 0) & (np.signbit(found) != np.signbit(rounded))
    strays = zeros | (np.isnan(found) != np.isnan(rounded))
    return np.where(strays, np.inf, np.where(np.isnan(rounded), 0, far))


def pairs_of(values: Array) -> tuple[Array, Array]:
    return np.repeat(values, len(values)), np.tile(values, len(values))


def same(found: Array, wanted: Array) -> Array:
    """Where two arrays agree, NaN and the sign of zero included."""
    return ((found == wanted) & (np.signbit(found) == np.signbit(wanted))) | (np.isnan(found) & np.isnan(wanted))


Given = Mapping[str, tuple[int, Array]]


def all_at_once(nodes: list[Any], given: Given, kinds: Mapping[str, int], machine: str) -> dict[str, Array]:
    """The outputs of a model of independent nodes on one machine; `kinds` are the outputs' types."""
    opset = max((OPSET.get(n.op_type, 18) for n in nodes), default=18)
    ports = [port(name, a.shape, kind) for name, (kind, a) in given.items()]
    graph = sd.read_graph(model(nodes, ports, [port(name, None, kind) for name, kind in kinds.items()], opset=opset))
    arrays = {name: a for name, (_, a) in given.items()}
    if machine == "interpreter":
        return dict(zip(graph.output_names, interpret(graph, arrays)))
    target = next(t for t in targets() if t.isa == machine).with_threads(1)
    return dict(build_model(tasks_of(graph), target, lambda task: Choice()).run(arrays))
