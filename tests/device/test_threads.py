"""How many threads: argument, environment, affinity, cgroup quotas of both versions."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from stormdrop.base.errors import UserError
from stormdrop.device.cpus import available_cpus, thread_count
from stormdrop.device.targets import target_for
from stormdrop.model.open_model import load
from stormdrop.model.package import save
from tests.support.two_steps import two_steps


@pytest.fixture(autouse=True)
def sixteen_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def affinity(_pid: int) -> set[int]:
        return set(range(16))

    monkeypatch.setattr(os, "sched_getaffinity", affinity)


def fake_root(root: Path, groups: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_argument_wins_over_the_environment(tmp_path: Path) -> None:
    assert thread_count(3, environ={"STORMDROP_THREADS": "5"}, root=tmp_path) == 3
    assert thread_count(None, environ={"STORMDROP_THREADS": " 5 "}, root=tmp_path) == 5
    assert thread_count(None, environ={"STORMDROP_THREADS": ""}, root=tmp_path) == 16


@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5"])
def test_an_invalid_environment_says_what_to_do(value: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"STORMDROP_THREADS.*whole number"):
        thread_count(environ={"STORMDROP_THREADS": value}, root=tmp_path)


@pytest.mark.parametrize("value", [0, -1])
def test_an_invalid_argument_says_what_to_do(value: int) -> None:
    with pytest.raises(UserError, match="1 or more"):
        thread_count(value)


def test_without_cgroups_the_affinity_mask_counts(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == 16


@pytest.mark.parametrize(
    ("limit", "cpus"),
    [("max 100000", 16), ("400000 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("3200000 100000", 16)],
)
def test_version_2_quotas_are_whole_cpus_and_at_least_one(limit: str, cpus: int, tmp_path: Path) -> None:
    root = fake_root(tmp_path, "0::/a/b\n", {"a/b/cpu.max": limit + "\n"})
    assert available_cpus(root) == cpus


def test_a_parent_groups_quota_binds_too(tmp_path: Path) -> None:
    root = fake_root(tmp_path, "0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"})
    assert available_cpus(root) == 3


def test_a_version_2_container_sees_its_own_group_as_the_mount(tmp_path: Path) -> None:
    assert available_cpus(fake_root(tmp_path, "0::/\n", {"cpu.max": "200000 100000\n"})) == 2


@pytest.mark.parametrize(("quota", "cpus"), [("-1", 16), ("600000", 6)])
@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_version_1_quotas(mount: str, quota: str, cpus: int, tmp_path: Path) -> None:
    files = {f"{mount}/g/cpu.cfs_quota_us": quota + "\n", f"{mount}/g/cpu.cfs_period_us": "100000\n"}
    assert available_cpus(fake_root(tmp_path, "5:memory:/g\n4:cpu,cpuacct:/g\n", files)) == cpus


def test_a_version_1_container_whose_path_is_the_hosts_uses_the_mount(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert available_cpus(fake_root(tmp_path, "4:cpu,cpuacct:/docker/0123\n", files)) == 1


def test_nonsense_in_the_files_is_no_limit(tmp_path: Path) -> None:
    assert available_cpus(fake_root(tmp_path, "garbage\n0::/\n", {"cpu.max": "what\n"})) == 16


@pytest.fixture
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.device.cpus.available_cpus", lambda: 2)


@pytest.mark.usefixtures("two_cpus")
def test_more_threads_than_cpus_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="999 threads on 2 CPUs take turns.*give 2 or fewer"):
        assert target_for(None, 999).threads == 999
    monkeypatch.setenv("STORMDROP_THREADS", "3")
    with pytest.warns(UserWarning, match="3 threads on 2 CPUs"):
        target_for("host")


@pytest.mark.usefixtures("two_cpus")
def test_a_file_run_with_more_threads_than_cpus_is_warned_of(tmp_path: Path) -> None:
    image, weights = two_steps(threads=2)
    save(tmp_path / "m.sd", image, weights)
    with pytest.warns(UserWarning, match="3 threads on 2 CPUs"):
        load(tmp_path / "m.sd", threads=3)


@pytest.mark.usefixtures("two_cpus")
def test_as_many_threads_as_cpus_and_other_machines_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert target_for(None, 2).threads == 2
        assert target_for("cuda:sm_80", 999).cpu == "sm_80"
