"""Groups of phases: every iteration of every step runs once, one thread runs an iteration of all steps in order, and
the account of a job adds up to its time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from stormdrop.codegen.llvm import AnyOf, Code, assemble, host
from stormdrop.device.artifact import Group, problem_of, single_groups, step_rows
from stormdrop.device.pool.pool import Pool
from tests.device.pool.test_pool_parts import dawdling, pool_of
from tests.support.pool_kernels import records

# Phase p writes row p + 1 of a matrix of n columns, times[p + 1][i] = times[p][i] + 1, of its own iterations; where it
# finds anything but p, an iteration of the phase before has not run.
CHAIN = """
define void @chain(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  %x = load ptr, ptr %buffers, align 8
  %n.at = getelementptr i64, ptr %buffers, i64 1
  %n = load i64, ptr %n.at, align 8
  %from = mul i64 %phase, %n
  %to = add i64 %from, %n
  br label %loop
loop:
  %i = phi i64 [ %begin, %0 ], [ %next, %loop ]
  %from.i = add i64 %from, %i
  %to.i = add i64 %to, %i
  %from.at = getelementptr i64, ptr %x, i64 %from.i
  %to.at = getelementptr i64, ptr %x, i64 %to.i
  %v = load i64, ptr %from.at, align 8
  %w = add i64 %v, 1
  %old = load i64, ptr %to.at, align 8
  %sum = add i64 %old, %w
  store i64 %sum, ptr %to.at, align 8
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
CODE = Code(assemble(CHAIN, AnyOf(host()[0])))


def chain_of(extent: int, phases: int, call: int = 0) -> Group:
    return Group(extent, tuple((call, p) for p in range(phases)))


def counted(pool: Pool, groups: list[Group], extents: list[list[int]]) -> list[npt.NDArray[np.int64]]:
    """The matrices of all calls after a run; column i of row p + 1 is p + 1 if its phases ran once and in order."""
    found: list[npt.NDArray[np.int64]] = []
    places: list[tuple[int, int, int, int]] = []
    held: list[npt.NDArray[np.int64]] = []
    for phases in extents:
        found.append(np.zeros((len(phases) + 1, max(phases)), np.int64))
        held.append(np.array([found[-1].ctypes.data, max(phases)], np.int64))
        places.append((CODE.address("chain"), held[-1].ctypes.data, 0, 0))
    steps = records(places, extents, groups)
    pool.run(steps.ctypes.data, len(steps))
    return found


def is_right(matrix: npt.NDArray[np.int64]) -> bool:
    return bool((matrix == np.arange(len(matrix))[:, None]).all())


@pytest.fixture(params=[1, 2, 3, 5])
def pool(request: pytest.FixtureRequest) -> Pool:
    return Pool(request.param)


@pytest.mark.parametrize("n", [1, 2, 7, 64, 1000])
def test_a_serial_group_runs_all_of_its_phases_in_order(pool: Pool, n: int) -> None:
    assert is_right(counted(pool, [chain_of(1, 9)], [[n] * 9])[0])


def test_a_caller_alone_runs_and_times_groups_without_the_workers() -> None:
    pool, x = Pool(3), np.zeros((4, 50), np.int64)
    table = np.array([x.ctypes.data, 50], np.int64)
    steps = records([(CODE.address("chain"), table.ctypes.data, 0, 0)], [[50] * 3], [chain_of(1, 3)])
    pool.run_alone(steps.ctypes.data, len(steps))
    assert is_right(x)
    assert pool._crew is None  # nobody was started
    assert (pool.bench(steps.ctypes.data, len(steps), 5, alone=True) > 0).all()


@pytest.mark.parametrize(("n", "extent"), [(1000, 1000), (1000, 250), (1000, 7), (8, 8), (64, 3)])
def test_an_iteration_runs_the_same_fraction_of_every_phase(pool: Pool, n: int, extent: int) -> None:
    for _ in range(20):
        assert is_right(counted(pool, [chain_of(extent, 5)], [[n] * 5])[0])


def test_phases_of_other_extents_run_once_in_a_common_group(pool: Pool) -> None:
    for _ in range(20):
        group = Group(61, tuple((call, 0) for call in range(4)))
        assert all(map(is_right, counted(pool, [group], [[61], [1], [1000], [2]])))


def test_groups_follow_each_other_with_a_barrier_between_them(pool: Pool) -> None:
    groups = [Group(1, ((0, 0), (0, 1))), Group(100, ((0, 2),)), chain_of(25, 2, call=1)]
    for _ in range(50):
        assert all(map(is_right, counted(pool, groups, [[100, 100, 100], [50, 50]])))


@pytest.mark.parametrize("threads", [2, 5])
def test_random_pauses_change_nothing_in_groups(threads: int) -> None:
    pool = pool_of(dawdling(), threads)
    groups = [chain_of(16, 3), chain_of(1, 3, call=1), chain_of(50, 2, call=2)]
    for _ in range(100):
        assert all(map(is_right, counted(pool, groups, [[64] * 3, [9] * 3, [100] * 2])))


def test_a_phase_in_the_group_of_the_one_that_it_needs_is_caught() -> None:
    """A phase of 30 iterations reads other iterations of the phase before than those of its thread: the tests above can
    fail.
    """
    pool = pool_of(dawdling(), 3)
    assert not all(is_right(counted(pool, [chain_of(60, 2)], [[60, 30]])[0][:, :30]) for _ in range(300))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_account_of_groups_adds_up_to_the_time_of_the_run(threads: int) -> None:
    pool, extents = Pool(threads), [[4000] * 4, [4000] * 2]
    groups = [Group(1, ((0, 0), (0, 1))), Group(8, ((0, 2), (0, 3))), chain_of(8, 2, call=1)]
    matrices = [np.zeros((len(phases) + 1, 4000), np.int64) for phases in extents]
    held = [np.array([matrix.ctypes.data, 4000], np.int64) for matrix in matrices]
    steps = records([(CODE.address("chain"), table.ctypes.data, 0, 0) for table in held], extents, groups)
    account = pool.account(steps.ctypes.data, [2, 2, 2], 40)
    assert account.seconds.shape == (40, 6)
    assert (account.busy > 0).all()
    assert (account.late >= 0).all()
    assert (account.waiting > -1e-9).all()
    assert np.allclose(account.late + account.busy + account.waiting, account.seconds)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ([Group(3, ((0, 0),))], "not all of its phases"),
        ([Group(1, ((0, 1), (0, 0)))], "not all of its phases"),
        ([chain_of(1, 2), Group(1, ((0, 1),))], "not all of its phases"),
        ([chain_of(1, 2), Group(1, ())], "not all of its phases"),
        ([chain_of(1 << 45, 2)], "too many"),
    ],
)
def test_groups_that_leave_out_or_repeat_iterations_are_refused(groups: list[Group], told: str) -> None:
    assert told in problem_of([[3, 5]], groups)


def test_empty_phases_are_in_no_group() -> None:
    extents = [[0, 4], [], [2, 0]]
    groups = single_groups(extents)
    assert [group.phases for group in groups] == [((0, 1),), ((2, 0),)]
    assert problem_of(extents, groups) == ""
    assert [row.words for row in step_rows(extents, groups)] == [(1, 4, 4, 1), (0, 2, 2, 1)]
