"""Mistakes made in kernels one by one are noticed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stormdrop.codegen.llvm import assembly
from stormdrop.target.gpu import gpu
from tests.emulator.faults import Fault
from tests.emulator.mutate import HARMFUL, mutations
from tests.emulator.test_kernels import KERNELS, ORDERS, Kernel, outcome


@pytest.mark.parametrize("make", KERNELS, ids=lambda f: f.__name__)
def test_kernels_written_by_hand_are_valid_llvm(make: Callable[[], Kernel]) -> None:
    assert ".visible .entry phase0(" in assembly(make().text, gpu("sm_80"))


@pytest.mark.parametrize("make", KERNELS, ids=lambda f: f.__name__)
def test_every_harmful_mistake_is_noticed(make: Callable[[], Kernel]) -> None:
    kernel = make()
    found = list(mutations(kernel.text, HARMFUL))
    assert len(found) >= 4
    for mutation in found:
        got = outcome(kernel, mutation.text, ORDERS[0])
        assert isinstance(got, Fault) or not np.allclose(got, kernel.wanted, rtol=1e-4, atol=1e-5), str(mutation)
