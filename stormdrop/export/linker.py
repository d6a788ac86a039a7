"""The system's linker: objects into a shared library.

It runs without a shell, in a folder of ours, on file names of ours: no string of a user is part of its command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stormdrop.base.errors import UserError

DRIVERS = ("cc", "gcc", "clang")
LINKERS = ("ld.lld", "ld", "ld.bfd")
TIMEOUT_SECONDS = 600
_OPTIONS = ("-z", "noexecstack", "-z", "relro", "-z", "now", "--build-id=none")


@dataclass(frozen=True, slots=True)
class Linker:
    """A program that links: a compiler driver, which finds libc itself, or a plain linker."""

    path: str
    is_driver: bool

    def command(self, objects: Sequence[str], output: str, soname: str) -> list[str]:
        options = [*_OPTIONS, "-soname", soname]
        if self.is_driver:
            passed = [word for option in (*options, "-z", "defs") for word in ("-Xlinker", option)]
            return [self.path, "-shared", "-pthread", *passed, "-o", output, *objects]
        return [self.path, "-shared", *options, "-o", output, *objects]


def linkers() -> list[Linker]:
    """Returns the linkers of this machine, the best first."""
    path = _path()
    programs = [(shutil.which(name, path=path), name in DRIVERS) for name in (*DRIVERS, *LINKERS)]
    return [Linker(os.path.abspath(where), is_driver) for where, is_driver in programs if where]


def link(
    folder: Path, objects: Sequence[str], output: str, soname: str, candidates: Sequence[Linker] | None = None
) -> None:
    """Links files of `folder` into another file there, with the first linker that succeeds.

    Raises UserError if there is no linker, or, with the first linker's message, if all linkers fail.
    """
    candidates = linkers() if candidates is None else candidates
    if not candidates:
        raise UserError(
            f"a C library needs a linker, and none of {', '.join((*DRIVERS, *LINKERS))} is on the PATH; install gcc "
            "or clang"
        )
    problems: list[str] = []
    for linker in candidates:
        problem = _attempt(linker.command(objects, output, soname), folder)
        if problem is None and (folder / output).is_file():
            return
        problems.append(f"{linker.path} failed: {problem or 'it wrote nothing'}")
    raise UserError(f"the library could not be linked; {problems[0]}")


def _attempt(command: Sequence[str], folder: Path) -> str | None:
    environment = {"PATH": _path(), "LC_ALL": "C", "TMPDIR": str(folder)}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return str(error)
    text = done.stderr.decode(errors="replace").strip()
    return None if done.returncode == 0 else text[-1000:] or f"it exited with {done.returncode}"


def _path() -> str:
    """Returns the PATH without relative folders: programs in the current folder must not run."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(f for f in folders if os.path.isabs(f))
