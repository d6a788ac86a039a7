"""Shipped stores: winners that come with the package, for a few kinds of CPU.

A shipped store is the file `stormdrop/store/winners/KIND.sqlite`, where KIND is the CPU and the instruction set of a
target. The file has a few winners of each class, on some numbers of threads and at both temperatures. Searches begin
from these winners if the user's store has no donor of a task's class. `python -m benchmarks.shipped` makes the files.
Invariant: reading never changes the file or its folder. The content is copied into memory once.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from stormdrop.base.environment import stores_dir
from stormdrop.ir.tensor import Task
from stormdrop.space.rules import RULES, Rule
from stormdrop.store.donors import Donor
from stormdrop.store.sqlite import copy_of
from stormdrop.store.store import Store
from stormdrop.target.machine import Target


def shipped_file(target: Target) -> Path:
    """Returns the path of the shipped store for a target's kind of CPU, which need not exist."""
    kind, _, _ = target.with_threads(1).key().rpartition("/")
    return stores_dir() / f"{kind.replace('/', '-')}.sqlite"


def shipped_donors(
    task: Task, target: Target, limit: int | None = None, rules: tuple[Rule, ...] = RULES
) -> list[Donor]:
    """Returns shipped winners of a task's class, the best first, at most `limit`; none for an unknown kind of CPU."""
    path = shipped_file(target)
    if not path.exists():
        return []
    donors = _store(path).donors(task, target, None, None, rules)
    return [donor for donor in donors if donor.kinship.key == "class"][:limit]


@lru_cache(maxsize=2)
def _store(path: Path) -> Store:
    return Store(copy_of(path))
