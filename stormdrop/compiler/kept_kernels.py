"""Built kernels of models with open dimensions, kept in the cache directory between processes.

A file (`model.container`) holds all kernels of a model at one size. Its name is a digest of everything that decides
the kernels: tasks, schedules, strides, packing layouts, the target, this package's source files, and LLVM's version.

The files are native code. A file is read only if this user owns the file and its directory, and no other user may write
to them. The least recently used files are deleted when all files together exceed `MOST_BYTES`. A cache that cannot be
read or written costs time, never a result.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from stormdrop.base.codec import encode
from stormdrop.base.environment import cache_dir, package_root
from stormdrop.base.errors import UserError, warn
from stormdrop.base.files import opened, replacing
from stormdrop.base.version import __version__
from stormdrop.builder.building import BuiltKernel
from stormdrop.codegen.llvm import llvm_version
from stormdrop.compiler.kernel_builds import Job, build_kernels
from stormdrop.model.container import VERSION, Kind, read_container, write_container
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.machine import Target

_log = logging.getLogger("stormdrop.compile")

MOST_BYTES = 1 << 30


def default_folder() -> Path:
    return cache_dir() / "compiled"


class KeptKernels:
    """The kernels in one directory, which is created with the first file."""

    def __init__(self, folder: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._folder = default_folder() if folder is None else folder
        self._most_bytes = most_bytes
        self.hits = 0

    def build(self, jobs: Sequence[Job], target: Target, rules: Sequence[Rule] = RULES) -> list[BuiltKernel]:
        """Returns the kernels of `build_kernels`, from a file if possible. Kernels of user rules are not kept."""
        if tuple(rules) != tuple(RULES) or not jobs:
            return build_kernels(jobs, target, rules=rules)
        path = self._folder / f"{_key(jobs, target)}.kernels"
        kernels = self._read(path, len(jobs))
        if kernels is not None:
            self.hits += 1
            return kernels
        built = build_kernels(jobs, target, rules=rules)
        if all(kernel.deviation != "default" for kernel in built):  # every process warns of a replaced schedule
            self._write(path, built)
        return built

    def _read(self, path: Path, count: int) -> list[BuiltKernel] | None:
        """Returns the kernels of a file; None if it is absent, untrusted or damaged."""
        try:
            if not _is_own(path.parent, os.stat(path.parent, follow_symlinks=False)):
                return None
            with opened(path, str(path), getattr(os, "O_NOFOLLOW", 0)) as file:
                if not _is_own(path, os.fstat(file.fileno())):
                    return None
                kernels = read_container(file, str(path)).content(tuple[BuiltKernel, ...])
            os.utime(path)  # it was used
        except (UserError, OSError, MemoryError, ValueError) as error:
            if path.exists():
                _log.info("kernels are built again: %s", error)
            return None
        return list(kernels) if len(kernels) == count else None

    def _write(self, path: Path, built: Sequence[BuiltKernel]) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_own(self._folder, os.stat(self._folder, follow_symlinks=False)):
                return
            with replacing(path, follow_links=False, mode=0o600, is_synced=False) as write:
                write_container(write, Kind.KERNELS, tuple[BuiltKernel, ...], tuple(built))
            self._evict()
        except (UserError, OSError) as error:
            _log.info("built kernels are not kept: %s", error)

    def _evict(self) -> None:
        """Deletes the least recently used files until the others fit."""
        files: list[tuple[float, int, Path]] = []
        for path in self._folder.iterdir():
            with suppress(OSError):
                status = path.stat(follow_symlinks=False)
                files.append((status.st_mtime, status.st_size, path))
        total = 0
        for _, size, path in sorted(files, reverse=True):
            total += size
            if total > self._most_bytes:
                with suppress(OSError):
                    path.unlink()


def _is_own(path: Path, status: os.stat_result) -> bool:
    """Returns whether only this user can have written a file or directory; warns otherwise."""
    kind = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    if kind and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return True
    warn(f"{path} is not used: it is native code, and others than this user may have written it")
    return False


def _key(jobs: Sequence[Job], target: Target) -> str:
    listed = [
        [
            job.task.digest,
            job.schedule.to_json() if job.schedule is not None else None,
            sorted(job.strides.items()),
            job.code,
            encode(job.packing),
        ]
        for job in jobs
    ]
    tree = [VERSION, __version__, llvm_version(), _source_digest(), target.to_json(), listed]
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


@cache
def _source_digest() -> str:
    """Returns a digest of the package's source files: between two releases the version stays the same."""
    digest = hashlib.sha256()
    root = package_root() / "stormdrop"
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
