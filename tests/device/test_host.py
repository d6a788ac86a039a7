"""What the operating system says of this machine is read as it is written, and defaults stand where it says nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stormdrop.device import host
from stormdrop.operators.catalogue import build
from stormdrop.space.cpu_judge import CpuJudge
from stormdrop.space.default import default_point
from stormdrop.target.cpu import Caches, cross


def write_cache(cpu: Path, index: int, level: int, kind: str, size: str, shared: str) -> None:
    folder = cpu / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    entries = {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared}
    entries |= {"coherency_line_size": "64", "ways_of_associativity": "12"}
    for name, text in entries.items():
        (folder / name).write_text(text + "\n")


def test_hyperthreads_do_not_divide_their_cores_l2(tmp_path: Path) -> None:
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "thread_siblings_list").write_text("0,8\n")
    write_cache(tmp_path, 0, 1, "Data", "48K", "0,8")
    write_cache(tmp_path, 1, 1, "Instruction", "64K", "0,8")
    write_cache(tmp_path, 2, 2, "Unified", "2048K", "0,8")
    write_cache(tmp_path, 3, 3, "Unified", "36M", "0-15")
    assert host._read_caches(tmp_path) == Caches(64, 48 << 10, 12, 2 << 20, 36 << 20)


def test_a_clusters_l2_is_divided_and_stands_in_for_a_missing_l3(tmp_path: Path) -> None:
    write_cache(tmp_path, 0, 1, "Data", "64K", "0")
    write_cache(tmp_path, 1, 2, "Unified", "4096K", "0-3")
    caches = host._read_caches(tmp_path)
    assert (caches.l2_bytes, caches.l3_bytes) == (1 << 20, 4 << 20)


@pytest.mark.parametrize("size", ["", "0K", "unknown", "-1"])
def test_a_machine_that_hides_its_caches_gets_defaults(tmp_path: Path, size: str) -> None:
    assert host._read_caches(tmp_path / "nowhere") == Caches()
    write_cache(tmp_path, 0, 1, "Data", size, "")
    assert host._read_caches(tmp_path) == Caches()


@pytest.mark.parametrize(
    ("cpu", "siblings", "flags", "cores"),
    [
        ("emeraldrapids", "{even}-{odd}", "sse hypervisor", 8),  # it says which CPUs share a core
        ("emeraldrapids", "{k}", "sse hypervisor avx", 8),  # it does not
        ("emeraldrapids", "", "sse hypervisor", 8),  # it says nothing at all
        ("emeraldrapids", "{k}", "sse avx", 16),  # hyperthreads are off
        ("znver4", "{k}", "sse hypervisor", 16),
    ],
)
def test_hidden_hyperthreads_of_virtual_servers_are_two_to_a_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpu: str, siblings: str, flags: str, cores: int
) -> None:
    for k in range(16):
        folder = tmp_path / f"cpu{k}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings.format(k=k, even=k // 2 * 2, odd=k // 2 * 2 + 1) + "\n")
    monkeypatch.setattr(host, "_cpuinfo", lambda: ["model name : any", f"flags\t\t: {flags}"])
    assert host.cores_of(cpu, range(16), tmp_path) == cores


def test_only_the_cores_of_the_affinity_mask_count(tmp_path: Path) -> None:
    for k in range(8):
        (tmp_path / f"cpu{k}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{k}" / "topology" / "thread_siblings_list").write_text(f"{k % 4},{k % 4 + 4}\n")
    assert host.cores_of("znver4", range(8), tmp_path) == 4
    assert host.cores_of("znver4", [0, 4], tmp_path) == 1
    assert host.cores_of("znver4", [0, 1], tmp_path) == 2


def test_threads_beyond_the_cores_share_their_near_caches() -> None:
    target = replace(cross("avx512"), cores=8)
    sketch, point = default_point(build("GMM", (1, 64, 64, 64)), target)
    structure, values = sketch.at(sketch.values(point)), sketch.values(point)
    alone, shared = (CpuJudge(target.with_threads(n)).assess(structure, values).capacities for n in (8, 9))
    assert shared == (alone[0] / 2, alone[1] / 2, alone[2])
