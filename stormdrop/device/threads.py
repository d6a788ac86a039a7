"""The number of threads: the caller's argument, else STORMDROP_THREADS, else the CPUs that this process may really use.

A container's quota counts as much as the affinity mask. Threads beyond it are throttled together, and a barrier then
waits for a whole scheduling period (100 ms).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from stormdrop.base.environment import variable
from stormdrop.base.errors import UserError, warn
from stormdrop.base.files import text_of

MOST_THREADS = 1024
"""More than any machine has that this runs on. A slip of the finger must not start a million."""


def thread_count(
    requested: int | None = None, *, environ: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> int:
    """Returns the number of threads to run kernels with; `root` is the mount point of `proc` and `sys`.

    Raises UserError if the argument or STORMDROP_THREADS is not a positive whole number.
    """
    if requested is not None:
        return _positive(requested, "threads")
    if text := variable("STORMDROP_THREADS", environ):
        return _positive(text, "STORMDROP_THREADS")
    return available_cpus(root)


def available_cpus(root: Path = Path("/")) -> int:
    """Returns the CPUs of the affinity mask, or the whole CPUs of the cgroup's quota if they are fewer; at
    least one.
    """
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affine, *(int(quota) for quota in _quotas(root))]))


def warn_if_crowded(threads: int) -> None:
    """Warns if threads outnumber the CPUs."""
    cpus = available_cpus()
    if threads > cpus:
        have = "1 CPU" if cpus == 1 else f"{cpus} CPUs"
        warn(f"{threads} threads on {have} take turns, and every kernel waits for them: give {cpus} or fewer")


def _positive(value: int | str, name: str) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if count > MOST_THREADS:
        raise UserError(f"{name} is {count}; give {MOST_THREADS} or fewer, or none for all CPUs")
    if count < 1 or (not isinstance(value, str) and count != value):
        raise UserError(f"{name} is {value!r}; give a whole number of threads, 1 or more, or none for all CPUs")
    return count


def _quotas(root: Path) -> Iterator[float]:
    """Yields every CPU quota above this process, in CPUs.

    A quota binds a group and all groups below it, so each group from ours up to the mount counts. A path that does not
    exist (version 1 containers see their host's path) leaves the mount itself.
    """
    mount = root / "sys/fs/cgroup"
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for group in _upwards(mount, path):
                quota, _, period = text_of(group / "cpu.max").partition(" ")  # "max 100000" or "150000 100000"
                yield from _ratio(quota, period)
        elif "cpu" in controllers.split(","):
            for name in dict.fromkeys((controllers, "cpu")):
                for group in _upwards(mount / name, path):
                    yield from _ratio(text_of(group / "cpu.cfs_quota_us"), text_of(group / "cpu.cfs_period_us"))


def _upwards(mount: Path, path: str) -> list[Path]:
    group = Path(path.strip().lstrip("/"))
    return [mount / part for part in (group, *group.parents)]


def _ratio(quota: str, period: str) -> Iterator[float]:
    """Yields quota / period, or nothing if there is no limit ("max", -1) or nothing to read."""
    try:
        limit, span = int(quota), int(period)
    except ValueError:
        return
    if limit > 0 and span > 0:
        yield limit / span
