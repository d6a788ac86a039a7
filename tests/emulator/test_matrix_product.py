"""Matrix products by matrix instructions, in the emulator: within the bounds of their precision, without a race."""

from __future__ import annotations

import re

import numpy as np
import pytest

from stormdrop.codegen.llvm import assembly
from stormdrop.errors import BuildError
from stormdrop.ir.tensor import Task
from stormdrop.lower.executed import executed_flops
from stormdrop.lower.lower import lower
from stormdrop.lower.verify import verify
from stormdrop.ops.catalogue import build
from stormdrop.runtime.building import program_of, text_of
from stormdrop.space.default import default_schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.accuracy import error_bound
from stormdrop.target.gpu import gpu
from stormdrop.target.microkernels import MATRIX_KERNELS, Precision
from tests.emulator.building import text_artifact
from tests.emulator.mutate import HARMFUL, mutations
from tests.emulator.test_ptx import assembled, needs_assembler
from tests.emulator.trials import MatrixTrial, emulated
from tests.support.tasks import DRAWN

PRODUCTS = ("GMM", "C1D", "C2D", "C3D", "DIL", "T2D", "CBR", "TBG", "DEN", "CAP")
PARTS = 4


def trials(precision: Precision, count: int) -> list[MatrixTrial]:
    """The first trials of operators that multiply matrices and of which some sketch uses matrix instructions."""
    seeds = [s for s in range(40 * len(DRAWN)) if DRAWN[s % len(DRAWN)] in PRODUCTS]
    found: list[MatrixTrial] = []
    for seed in seeds:
        trial = MatrixTrial(seed, precision=precision)
        if next(trial.cases(), None) is not None:
            found.append(trial)
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("precision", MATRIX_KERNELS)
def test_every_point_is_within_the_bounds_of_its_precision(precision: Precision) -> None:
    chosen = trials(precision, 10)
    assert len({trial.name for trial in chosen}) >= 4
    for trial in chosen:
        for case in trial.cases():
            problem = emulated(case)
            assert not problem, f"{problem}\n{case}"
