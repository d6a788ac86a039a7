"""Where threads run: lists of CPUs, orders by cores, caches and nodes, and what a process may not use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stormdrop.base.errors import UserError
from stormdrop.device.cpus import affinity_of, cpu_list, cpu_text, cpus_for, nodes_of


def machine(root: Path, nodes: int, caches: int, cores: int, hyperthreads: int = 2) -> Path:
    """Files as Linux has them: `caches` last-level caches a node, `cores` cores a cache. As usual, all cores are
    counted before any core's second CPU.
    """
    total = nodes * caches * cores
    of_node: dict[int, list[int]] = {}
    for core in range(total):
        siblings = [core + total * k for k in range(hyperthreads)]
        group = core // cores
        shared = [c + total * k for k in range(hyperthreads) for c in range(group * cores, (group + 1) * cores)]
        of_node.setdefault(group // caches, []).extend(siblings)
        for cpu in siblings:
            folder = root / f"sys/devices/system/cpu/cpu{cpu}"
            (folder / "topology").mkdir(parents=True)
            (folder / "cache/index3").mkdir(parents=True)
            (folder / "topology/thread_siblings_list").write_text(cpu_text(siblings))
            (folder / "cache/index3/shared_cpu_list").write_text(cpu_text(shared) + "\n")
    for node, cpus in of_node.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpu_text(cpus) + "\n")
    return root


def allow(monkeypatch: pytest.MonkeyPatch, cpus: set[int]) -> None:
    def affinity(_pid: int) -> set[int]:
        return cpus

    monkeypatch.setattr(os, "sched_getaffinity", affinity)


@pytest.fixture(autouse=True)
def sixteen_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, set(range(16)))


def test_cpu_lists_are_read_and_written_as_linux_writes_them() -> None:
    assert cpu_list("0-2,8,10-11") == [0, 1, 2, 8, 10, 11]
    assert cpu_list("") == cpu_list("junk") == cpu_list("1-x") == []
    assert cpu_text({8, 0, 1, 2, 11, 10}) == "0-2,8,10-11"
    assert len(cpu_list("0-999999999999")) < 10_000  # a slip of the finger takes no memory


@pytest.mark.parametrize(
    ("written", "meant"),
    [("none", "none"), (" Compact ", "compact"), ("spread", "spread"), ("2,0-1", (2, 0, 1)), ([3, 1], (3, 1))],
)
def test_an_affinity_is_a_pattern_or_cpus(written: Any, meant: Any) -> None:
    assert affinity_of(written) == meant


@pytest.mark.parametrize("wrong", ["close", "", "1;2", "-1", 3, [], [1.5], [True], [-1], "0,0", {"a": 1}])
def test_anything_else_says_what_to_write(wrong: Any) -> None:
    with pytest.raises(UserError, match=r"affinity .*(compact|twice)"):
        affinity_of(wrong)


def test_compact_fills_a_cache_and_a_node_before_the_next(tmp_path: Path) -> None:
    root = machine(tmp_path, nodes=2, caches=2, cores=2)
    assert cpus_for("compact", 8, root) == (0, 1, 2, 3, 4, 5, 6, 7)
    assert cpus_for("compact", 10, root)[8:] == (8, 9)  # second CPUs of cores come last


def test_spread_takes_every_node_then_every_cache_before_a_second_core(tmp_path: Path) -> None:
    root = machine(tmp_path, nodes=2, caches=2, cores=2)
    assert cpus_for("spread", 8, root) == (0, 4, 2, 6, 1, 5, 3, 7)
    assert cpus_for("spread", 3, root) == (0, 4, 2)
    assert cpus_for("spread", 16, root)[8:] == (8, 12, 10, 14, 9, 13, 11, 15)  # second CPUs of cores, alike


def test_only_cpus_of_the_mask_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path, nodes=2, caches=2, cores=2)
    allow(monkeypatch, {1, 9, 5, 13, 6})
    assert cpus_for("compact", 5, root) == (1, 5, 6, 9, 13)
    assert cpus_for("spread", 3, root) == (1, 5, 6)
    assert cpus_for((13, 1), 2, root) == (13, 1)


def test_a_machine_that_hides_its_topology_has_cpus_in_order(tmp_path: Path) -> None:
    assert cpus_for("compact", 3, tmp_path) == cpus_for("spread", 3, tmp_path) == (0, 1, 2)
    assert nodes_of(range(16), tmp_path) == ()


def test_none_leaves_the_choice_to_the_system() -> None:
    assert cpus_for("none", 99) == ()


@pytest.mark.parametrize(
    ("affinity", "threads", "told"),
    [
        ("compact", 17, r"16: give threads=16 or affinity='none'"),
        ((0, 1), 3, r"names 2 of 3 CPUs.*threads=2"),
        ((0, 77), 2, r"may not use CPU 77; it may use 0-15"),
    ],
)
def test_what_cannot_be_is_told_with_a_way_out(affinity: Any, threads: int, told: str) -> None:
    with pytest.raises(UserError, match=told):
        cpus_for(affinity, threads)


def test_nodes_are_those_of_the_cpus_and_none_on_a_machine_with_one(tmp_path: Path) -> None:
    root = machine(tmp_path / "two", nodes=2, caches=1, cores=2)
    assert nodes_of([0, 1], root) == (0,)
    assert nodes_of([0, 2], root) == (0, 1)
    assert nodes_of([0, 1], machine(tmp_path / "one", nodes=1, caches=2, cores=2)) == ()
