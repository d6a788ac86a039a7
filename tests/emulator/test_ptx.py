"""The PTX of GPU points is what the assembler takes, and what is wanted of it."""

from __future__ import annotations

import re
from functools import cache

import pytest

from stormdrop.builder.building import program_of
from stormdrop.codegen.llvm import assembly
from stormdrop.device.cuda.assembler import Cubin, NoAssembler, assemble_ptx, assembler
from stormdrop.ir.tensor import Task
from stormdrop.operators.catalogue import build
from stormdrop.target.gpu import gpu
from tests.emulator.__main__ import seed_of
from tests.emulator.building import text_artifact
from tests.emulator.trials import GpuTrial


def _missing() -> str:
    try:
        assembler()
    except NoAssembler as error:
        return str(error)
    return ""


needs_assembler = pytest.mark.skipif(bool(_missing()), reason=_missing())
ARCHITECTURES = ("sm_80", "sm_90")
DEFAULTS = {
    "GMM": [1, 512, 512, 512],
    "C1D": [1, 256, 64, 128, 3, 2, 1],
    "C2D": [1, 14, 14, 256, 256, 3, 1, 1],
    "C3D": [1, 8, 14, 14, 32, 64, 3, 1, 1],
    "GRP": [1, 14, 14, 64, 128, 3, 1, 1, 4],
    "DIL": [1, 14, 14, 64, 64, 3, 1, 2, 2],
    "DEP": [1, 56, 56, 64, 3, 1, 1],
    "T2D": [1, 8, 8, 64, 32, 4, 2, 1],
    "CAP": [1, 8, 8, 4, 8, 3, 1, 1],
    "NRM": [1, 256, 256],
    "SFM": [128, 512],
    "CBR": [1, 28, 28, 64, 128, 3, 1, 1],
    "TBG": [1, 64, 4, 64],
    "MXP": [1, 56, 56, 64, 3, 2, 1],
    "ADR": [1, 56, 56, 64],
    "GMV": [512, 1024],
    "DOT": [100_000],
    "TRN": [512, 512],
    "DEN": [1, 128, 128, 128],
}


@cache
def ptx_of_default(name: str, architecture: str) -> str:
    target = gpu(architecture)
    task: Task = build(name, DEFAULTS[name])
    return assembly(text_artifact(program_of(task, None, target), target).code.decode(), target)


@pytest.mark.parametrize("name", ["GMM", "C2D", "CBR", "ADR", "DEP", "MXP"])
def test_defaults_move_four_elements_at_once_where_rows_are_aligned(name: str) -> None:
    code = ptx_of_default(name, "sm_90")
    assert re.search(r"ld\.global\S*\.v4", code) or re.search(r"cp\.async\.cg\.shared\.global \S+, \S+, 16", code)
    assert re.search(r"st\.global\.v4", code)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_need_no_local_memory(name: str) -> None:
    assert ".local" not in ptx_of_default(name, "sm_90")


def assembled(code: str, architecture: str) -> Cubin:
    return assemble_ptx(code, architecture)


@needs_assembler
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_spill_no_registers(name: str, architecture: str) -> None:
    cubin = assembled(ptx_of_default(name, architecture), architecture)
    assert set(cubin.spilled_bytes.values()) == {0}


@needs_assembler
@pytest.mark.parametrize("part", range(10))
def test_random_points_are_assembled(part: int) -> None:
    """A hundred points, each for the oldest architecture and for sm_90."""
    for number in range(part, 50, 10):
        for case in GpuTrial(seed_of(number)).cases():
            text = text_artifact(case.program(), case.target).code.decode()
            for architecture in ARCHITECTURES:
                cubin = assembled(assembly(text, gpu(architecture)), architecture)
                assert set(cubin.registers) == set(re.findall(r"@(phase\d+)\(", text)), str(case)
