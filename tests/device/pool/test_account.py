"""The account of a run adds up, on one thread and on several, and tells sleep from computing."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from stormdrop.codegen.llvm import AnyOf, assemble, host
from stormdrop.device.artifact import Artifact
from stormdrop.device.device import BoundCall
from stormdrop.device.host_device import HostDevice
from stormdrop.device.pool.pool import shared_pool
from stormdrop.device.pool.pool_ir import MACHINES

NANOSLEEP = {"x86_64": 35, "aarch64": 101}[platform.machine()]
NAP_SECONDS = 2e-3
KERNEL = """
define void @kernel(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  BODY
  ret void
}
"""
NAP = f"""%time = alloca [2 x i64], align 8
  %rest.at = getelementptr i64, ptr %time, i64 1
  store i64 0, ptr %time, align 8
  store i64 {round(NAP_SECONDS * 1e9)}, ptr %rest.at, align 8
  %address = ptrtoint ptr %time to i64
  %r = call i64 @system(i64 {NANOSLEEP}, i64 %address, i64 0, i64 0)"""


def kernel(device: HostDevice, body: str, extent: int) -> BoundCall:
    text = MACHINES[platform.machine()] + KERNEL.replace("BODY", body)
    return BoundCall(device.load(Artifact(assemble(text, AnyOf(host()[0])), (), (extent,))), ())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_threads_did_adds_up_to_the_time_of_the_run(threads: int) -> None:
    device = HostDevice(shared_pool(threads))
    calls = [kernel(device, NAP, threads), kernel(device, "", 5), kernel(device, NAP, 1)]
    account = device.record(calls).account(4)
    parts = account.late, account.busy, account.waiting
    assert all(part.shape == (4, 3) and (part >= -1e-9).all() for part in parts)
    assert np.allclose(sum(parts), account.seconds)
    assert (account.off <= account.busy + 1e-9).all()
    assert (account.off >= 0).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thread_that_sleeps_is_off_its_cpu(threads: int) -> None:
    device = HostDevice(shared_pool(threads))
    account = device.record([kernel(device, NAP, threads)]).account(3)
    assert (account.seconds >= NAP_SECONDS).all()
    assert (account.busy >= account.off).all()
    assert (account.off >= 0.5 * NAP_SECONDS).all()
