"""Which CPUs the threads of a pool run on, and the NUMA nodes that these belong to, as Linux lists them.

    compact   a core for each thread, of one cache and one node as long as there are any: threads share what they read
    spread    a core for each thread, of as many nodes and last-level caches as there are: most bandwidth
    0-3,8     these CPUs, thread by thread; the caller's first
    none      wherever the system puts them

The second hyperthread of a core comes after the first ones of all cores: it adds nothing to kernels that keep the
execution units busy.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

from stormdrop.errors import UserError
from stormdrop.files import text_of

PATTERNS = ("none", "compact", "spread")
USAGE = "'none', 'compact', 'spread', or a CPU for each thread such as [0, 1] or '0-3,8'"
MOST_CPUS = 8192

Affinity = str | tuple[int, ...]
"""One of `PATTERNS`, or the CPU of each thread."""


def affinity_of(value: object, name: str = "affinity") -> Affinity:
    """What a user wrote. Raises UserError for anything else."""
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
    """The CPU of each thread, thread 0 being the caller; none at all where they are the system's choice.

    Raises UserError where this process may not use them, or has fewer than threads.
    """
    if affinity == "none":
        return ()
    allowed = allowed_cpus()
    told = ",".join(map(str, affinity)) if isinstance(affinity, tuple) else affinity
    if isinstance(affinity, tuple):
        if len(affinity) < threads:
            raise UserError(
                f"affinity={told} names {len(affinity)} of {threads} CPUs: name one for each thread, the caller's "
                f"first, or give threads={len(affinity)}"
            )
        missing = [cpu for cpu in affinity[:threads] if cpu not in allowed]
        if missing:
            raise UserError(
                f"affinity={told}: this process may not use CPU {missing[0]}; it may use {cpu_text(allowed)}"
            )
        return affinity[:threads]
    if len(allowed) < threads:
        raise UserError(
            f"affinity={told} needs a CPU for each of {threads} threads, and this process may use {len(allowed)}: give "
            f"threads={len(allowed)} or affinity='none'"
        )
    return _ordered(affinity, tuple(sorted(allowed)), root)[:threads]


def allowed_cpus() -> set[int]:
    """Those of the affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _ordered(pattern: str, cpus: tuple[int, ...], root: Path) -> tuple[int, ...]:
    """All CPUs, in the order in which threads take them."""
    node_of = _node_by_cpu(root)
    core_cpus: Counter[int] = Counter()
    cache_cores: Counter[tuple[int, int]] = Counter()  # by node and last-level cache
    node_caches: dict[int, list[int]] = {}
    places: dict[int, tuple[int, ...]] = {}
    for cpu in cpus:
        folder = root / "sys/devices/system/cpu" / f"cpu{cpu}"
        core = min(cpu_list(text_of(folder / "topology/thread_siblings_list")), default=cpu)
        shared = min(cpu_list(text_of(folder / "cache/index3/shared_cpu_list")), default=0)
        node = node_of.get(cpu, 0)
        sibling = core_cpus[core]
        core_cpus[core] += 1
        numbers = node_caches.setdefault(node, [])
        if shared not in numbers:
            numbers.append(shared)
        if pattern == "compact":
            places[cpu] = sibling, node, shared, core
        else:
            places[cpu] = sibling, cache_cores[node, shared], numbers.index(shared), node
            cache_cores[node, shared] += sibling == 0
    return tuple(sorted(cpus, key=lambda cpu: (*places[cpu], cpu)))


# ---- NUMA nodes ------------------------------------------------------------------------------------------------------


def nodes_of(cpus: Iterable[int], root: Path = Path("/")) -> tuple[int, ...]:
    """The NUMA nodes of some CPUs; none at all on a machine that has one node."""
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
    """'0-2,8' -> [0, 1, 2, 8]; empty for anything else."""
    spans = [part.partition("-") for part in text.split(",") if part]
    try:
        ends = [(int(first), int(last or first)) for first, _, last in spans]
    except ValueError:
        return []
    return [cpu for first, last in ends for cpu in range(first, min(last, MOST_CPUS) + 1)]


def cpu_text(cpus: Iterable[int]) -> str:
    """{0, 1, 2, 8} -> '0-2,8'."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][-1] == cpu - 1:
            spans[-1][1:] = [cpu]
        else:
            spans.append([cpu])
    return ",".join("-".join(map(str, span)) for span in spans)
