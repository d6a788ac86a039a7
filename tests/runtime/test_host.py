"""What the operating system says of this machine is read as it is written, and defaults stand where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormdrop.runtime import host
from stormdrop.target.cpu import Caches


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
