"""The threads of a pool: their number, their CPUs, and the NUMA nodes of these CPUs, numbered as in Linux.

The number is the caller's argument, else STORMDROP_THREADS, else the CPUs that this process may really use. A
container's quota counts as much as the affinity mask. Threads beyond it are throttled together, and a barrier then
waits for a whole scheduling period (100 ms). The CPUs:

    compact   one NUMA node and one last-level cache after the other: threads share what they read
    spread    all NUMA nodes and last-level caches in turn: most bandwidth
    0-3,8     these CPUs, one for each thread, the caller's first
    none      the system decides

A *CPU* is a logical CPU: a hyperthread if cores have several. `compact` and `spread` give every core one thread before
they give any core a second thread. A second hyperthread adds nothing to kernels that keep the execution units busy.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

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


PATTERNS = ("none", "compact", "spread")
USAGE = "'none', 'compact', 'spread', or a CPU for each thread such as [0, 1] or '0-3,8'"
MOST_CPUS = 8192

Affinity = str | tuple[int, ...]
"""A pattern of `PATTERNS`, or the CPU of each thread."""


def affinity_of(value: object, name: str = "affinity") -> Affinity:
    """Returns the affinity that a user gave as argument or variable `name`: a pattern, '0-3,8', or a sequence of
    integers.

    Raises UserError for any other value, and for a CPU that is named twice.
    """
    given: Any = value
    if isinstance(given, str):
        text = given.strip().lower()
        cpus: Sequence[Any] = cpu_list(text)
        if text in PATTERNS:
            return text
    else:
        cpus = tuple(given) if isinstance(given, Iterable) else ()
    if not cpus or not all(map(_is_natural, cpus)):
        raise UserError(f"{name} is {value!r:.60}; give {USAGE}")
    twice = [cpu for cpu, count in Counter(cpus).items() if count > 1]
    if twice:
        raise UserError(f"{name} names CPU {twice[0]} twice; two threads on one CPU wait for each other")
    return tuple(map(int, cpus))


def _is_natural(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 0


def cpus_for(affinity: Affinity, threads: int, root: Path = Path("/")) -> tuple[int, ...]:
    """Returns the CPU of each thread, thread 0 being the caller; empty for 'none', which leaves the choice to the
    system.

    Raises UserError if the affinity names CPUs that this process may not use, or if there are fewer CPUs than threads.
    """
    if affinity == "none":
        return ()
    allowed = allowed_cpus()
    text = ",".join(map(str, affinity)) if isinstance(affinity, tuple) else affinity
    if isinstance(affinity, tuple):
        if len(affinity) < threads:
            raise UserError(
                f"affinity={text} names {len(affinity)} of {threads} CPUs: name one for each thread, the caller's "
                f"first, or give threads={len(affinity)}"
            )
        missing = [cpu for cpu in affinity[:threads] if cpu not in allowed]
        if missing:
            raise UserError(
                f"affinity={text}: this process may not use CPU {missing[0]}; it may use {cpu_text(allowed)}"
            )
        return affinity[:threads]
    if len(allowed) < threads:
        raise UserError(
            f"affinity={text} needs a CPU for each of {threads} threads, and this process may use {len(allowed)}: give "
            f"threads={len(allowed)} or affinity='none'"
        )
    return _ordered(affinity, tuple(sorted(allowed)), root)[:threads]


def allowed_cpus() -> set[int]:
    """Returns the CPUs of this process's affinity mask; all CPUs on systems without such masks."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _ordered(pattern: str, cpus: tuple[int, ...], root: Path) -> tuple[int, ...]:
    """Returns all of `cpus`, in the order of the threads. The sort key of a CPU:

        compact   hyperthread of its core, node, last-level cache, core
        spread    hyperthread of its core, such ones seen before in its cache, rank of the cache in its node, node

    A core, or a cache, is named by its lowest CPU.
    """
    node_of = _node_by_cpu(root)
    core_cpus: Counter[int] = Counter()  # CPUs seen so far, by core
    cache_cpus: Counter[tuple[int, ...]] = Counter()  # CPUs seen so far, by node, last-level cache and hyperthread
    node_caches: dict[int, list[int]] = {}  # last-level caches seen so far, by node
    sort_keys: dict[int, tuple[int, ...]] = {}
    for cpu in cpus:
        folder = root / "sys/devices/system/cpu" / f"cpu{cpu}"
        core = min(cpu_list(text_of(folder / "topology/thread_siblings_list")), default=cpu)
        last_cache = min(cpu_list(text_of(folder / "cache/index3/shared_cpu_list")), default=0)
        node = node_of.get(cpu, 0)
        sibling = core_cpus[core]
        core_cpus[core] += 1
        caches = node_caches.setdefault(node, [])
        if last_cache not in caches:
            caches.append(last_cache)
        if pattern == "compact":
            sort_keys[cpu] = sibling, node, last_cache, core
        else:
            sort_keys[cpu] = sibling, cache_cpus[node, last_cache, sibling], caches.index(last_cache), node
            cache_cpus[node, last_cache, sibling] += 1
    return tuple(sorted(cpus, key=lambda cpu: (*sort_keys[cpu], cpu)))


# ---- NUMA nodes ------------------------------------------------------------------------------------------------------


def nodes_of(cpus: Iterable[int], root: Path = Path("/")) -> tuple[int, ...]:
    """Returns the NUMA nodes of these CPUs; empty on a machine that has only one node."""
    node_of = _node_by_cpu(root)
    if len(set(node_of.values())) < 2:
        return ()
    return tuple(sorted({node_of[cpu] for cpu in cpus if cpu in node_of}))


@cache
def _node_by_cpu(root: Path) -> dict[int, int]:
    folders = sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
    return {cpu: int(folder.name[4:]) for folder in folders for cpu in cpu_list(text_of(folder / "cpulist"))}


# ---- lists of CPUs ---------------------------------------------------------------------------------------------------


def cpu_list(text: str) -> list[int]:
    """Returns the CPUs of a text: '0-2,8' -> [0, 1, 2, 8]; empty for text that is no such list."""
    spans = [part.partition("-") for part in text.split(",") if part]
    try:
        ends = [(int(first), int(last or first)) for first, _, last in spans]
    except ValueError:
        return []
    return [cpu for first, last in ends for cpu in range(first, min(last, MOST_CPUS) + 1)]


def cpu_text(cpus: Iterable[int]) -> str:
    """Returns CPUs as text: {0, 1, 2, 8} -> '0-2,8'."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][-1] == cpu - 1:
            spans[-1][1:] = [cpu]
        else:
            spans.append([cpu])
    return ",".join("-".join(map(str, span)) for span in spans)
