"""Files: opened for reading without blocking, and written completely or not at all."""

from __future__ import annotations

import io
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from stormdrop.base.arguments import path_of
from stormdrop.base.errors import UserError


def opened(path: str | os.PathLike[str], what: str, more_flags: int = 0) -> io.BufferedReader:
    """Opens a regular file; a pipe cannot block the call. Raises UserError that names the file as `what`."""
    flags = os.O_RDONLY | more_flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character in it
        raise UserError(f"{what} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise UserError(f"{what} is {'a directory' if stat.S_ISDIR(kind) else 'no regular file'}")
    return os.fdopen(descriptor, "rb")


def text_of(path: Path) -> str:
    """Returns the content of a small system file, without surrounding white space; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def destination(path: str | os.PathLike[str]) -> Path:
    """Returns the target of a path after following links.

    Raises UserError if the target exists and is not a regular file.
    """
    with cannot_write(path):
        place = Path(os.path.realpath(path_of(path)))
        if place.exists() and not place.is_file():
            kind = "a directory" if place.is_dir() else "no regular file"
            raise UserError(f"{os.fspath(path)!r} is {kind}; give the name of a file")
        return place


@contextmanager
def cannot_write(path: str | os.PathLike[str]) -> Generator[None]:
    """Converts errors of the operating system, and of null characters in names, to a UserError that names the file."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{os.fspath(path)!r} cannot be written: {reason}") from error


@contextmanager
def replacing(
    path: str | os.PathLike[str], follow_links: bool = True, mode: int = 0o666, is_synced: bool = True
) -> Generator[Callable[[bytes | memoryview], None]]:
    """Writes a file beside `path` that replaces it, complete and on the disk, when the block ends without an error.

    With `is_synced=False` the file may be incomplete after a crash of the system: its reader must verify a checksum.

    With `follow_links=False` a symbolic link is itself replaced: in a directory that other users may write to, a link
    must not redirect the file.

    Raises UserError; the previous file then remains.
    """
    place = destination(path) if follow_links else Path(path).absolute()
    temporary = place.parent / f".stormdrop-{secrets.token_hex(8)}.tmp"
    with cannot_write(path):
        # Not `tempfile`: the file is to have the permissions that the user's umask gives to new files.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with io.FileIO(descriptor, "wb") as file:

                def write(data: bytes | memoryview) -> None:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[file.write(rest) or 0 :]

                yield write
            if is_synced:
                move(temporary, place)
            else:
                os.replace(temporary, place)
        finally:
            with suppress(OSError):
                temporary.unlink()


def move(file: Path, place: Path) -> None:
    """Puts a complete file in its place and flushes both file and folder to the disk."""
    _sync(file)
    os.replace(file, place)
    with suppress(OSError):  # file systems that cannot promise it of a new name are let be
        _sync(place.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
