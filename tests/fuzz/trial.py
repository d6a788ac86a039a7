"""One model compiled in one setting, run twice, and compared with what it should compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.compiler import kernel_builds as build
from stormdrop.compiler.choose import Schedules
from stormdrop.compiler.compile import compile as compile_model
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.machine import Target
from tests.fuzz.held import Held
from tests.fuzz.recipe import Recipe

Array = NDArray[Any]
ISAS = ("avx512", "avx2", "sse")


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is compiled. `schedules` is the seed of random schedules; None: default ones."""

    isa: str
    threads: int
    schedules: int | None

    def __str__(self) -> str:
        how = "default schedules" if self.schedules is None else f"random schedules {self.schedules}"
        return f"{self.isa}, {self.threads} thread{'s' if self.threads > 1 else ''}, {how}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@cache
def targets() -> dict[str, Target]:
    """This machine, and this machine held to narrower instruction sets, by name."""
    here = detect()
    found: dict[str, Target] = {}
    for isa in ISAS:
        try:
            found[isa] = here.with_isa(isa)
        except UserError:
            continue
    return found or {here.isa: here}


def random_setting(rng: np.random.Generator) -> Setting:
    known = list(targets())
    isa = known[0] if rng.random() < 0.5 else known[int(rng.integers(len(known)))]
    return Setting(isa, int(rng.choice([1, 2])), int(rng.integers(1 << 30)) if rng.random() < 0.5 else None)


def problem(recipe: Recipe, held: Mapping[str, Held], setting: Setting, special: bool) -> str | None:
    """What is wrong with the compiled model, or None. Whatever the compiler raises is wrong too."""
    try:
        return _problem(recipe, held, setting, special)
    except Exception as error:  # whatever it is, it is what is looked for
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"


def _problem(recipe: Recipe, held: Mapping[str, Held], setting: Setting, special: bool) -> str | None:
    # A narrower machine than the recorded one checks the model all the same.
    target = targets().get(setting.isa, next(iter(targets().values()))).with_threads(setting.threads)
    proto = recipe.proto({name: held[name].plain for name in recipe.outputs})
    schedules = random_schedules(setting.schedules, target)
    with patch.object(build, "WORTH_A_WORKER", 1 << 30):  # the fuzzer has as many processes as CPUs already
        model = compile_model(
            proto,
            schedules=schedules,
            threads=setting.threads,
            target=target,
            winograd=not special,
            fallback="none",
        )
    inputs = {k: a.copy() for k, a in recipe.inputs.items()}
    first = model.run(inputs)
    again = model.run(inputs)
    if list(first) != list(recipe.outputs):
        return f"outputs {list(first)}, not {list(recipe.outputs)}"
    for name, a in recipe.inputs.items():
        if inputs[name].tobytes() != a.tobytes():
            return f"input {name} was overwritten"
    for name in recipe.outputs:
        if (wrong := difference(first[name], held[name], special)) is not None:
            return f"{name} {wrong}"
        if first[name].tobytes() != again[name].tobytes():
            return f"{name} differs between two calls"
    return None


def difference(got: Array, held: Held, special: bool = False) -> str | None:
    """How an output differs from the expected value by more than rounding can explain, or None."""
    want = held.plain
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    if want.dtype.kind != "f":
        wrong = got != want
    else:
        with np.errstate(all="ignore"):
            apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
        equal = (got == want) | (np.isnan(got) & np.isnan(want))
        wrong = ~equal & ~(np.isfinite(got) & np.isfinite(want) & (apart <= held.tolerance()))
        if special and held.signed and not held.shaken:
            wrong |= (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want))
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    allowed = f" ± {held.tolerance()[at]:.2g}" if held.shaken else ""
    return (
        f"[{', '.join(map(str, at))}] is {got[at]!r}, not {want[at]!r}{allowed}; "
        f"{int(wrong.sum())} of {wrong.size} are wrong"
    )


def random_schedules(seed: int | None, target: Target) -> Schedules:
    """A random legal point of a random sketch for every task; without a seed, None: the default."""

    def choose(task: Task) -> Schedule | None:
        if seed is None:
            return None
        rng = np.random.default_rng([seed, int(task.digest[:8], 16)])
        offered = sketches(task, target)
        sketch = offered[int(rng.integers(len(offered)))]
        return sketch.schedule(sketch.sample_legal(1, rng)[0])

    return choose
