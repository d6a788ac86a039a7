"""The checks as tests, which run where there is a GPU: pytest -m cuda."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stormdrop.errors import UserError
from stormdrop.runtime.cuda.driver import open_driver


def _has_gpu() -> bool:
    try:
        open_driver()
    except UserError:
        return False
    return True


pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not _has_gpu(), reason="no GPU here"), pytest.mark.timeout(0)]


@pytest.mark.parametrize("part", ["operators", "points", "models"])
def test_a_gpu_computes_what_the_reference_computes(part: str) -> None:
    """In processes of their own: a kernel that faults leaves a context unusable."""
    run = subprocess.run([sys.executable, "-m", "tests.cuda", "--only", part], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:]
