"""The checks as tests, which run where there is a GPU: pytest -m cuda."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from stormdrop.base.errors import UserError
from stormdrop.device.cuda.driver import open_driver


def _has_gpu() -> bool:
    try:
        open_driver()
    except UserError:
        return False
    return True


SANITIZER = shutil.which("compute-sanitizer")
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not _has_gpu(), reason="no GPU here"), pytest.mark.timeout(0)]


@pytest.mark.parametrize("part", ["operators", "points", "models", "device", "tensor"])
def test_a_gpu_computes_what_the_reference_computes(part: str) -> None:
    """In processes of their own: a kernel that faults leaves a context unusable."""
    run = subprocess.run([sys.executable, "-m", "tests.cuda", "--only", part], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:]


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_nvidias_own_checker_finds_nothing(tool: str) -> None:
    under = f"{SANITIZER} --tool {tool} --error-exitcode 9"
    command = [sys.executable, "-m", "tests.cuda", "--only", "points", "--points", "20", "--under", under]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:]
