"""A compiled model as one file, `.sd`: an image, or those of several sizes, and their weights.

     0  magic           8 bytes
     8  format version  u32
    12  kind            u32: 0, an image; 1, images of several sizes (`model.family`)
    16  header bytes    u64
    24  code bytes      u64
    32  weights bytes   u64
    40  header (JSON), code (the kernels' objects one after the other), zeros up to a multiple of 64, weights
     …  SHA-256 of all that precedes, and the end of the file

All numbers are little-endian. Nothing is interpreted, and no code loaded, before the checksum has been found right. It
finds accidents, not intent: a file holds machine code, and whoever wrote it can do whatever the process that loads it
may do.

Invariants: a file is there whole or not at all; at no time is there a second copy of the weights in memory.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.arguments import path_of
from stormdrop.base.errors import UserError
from stormdrop.base.files import opened, replacing
from stormdrop.base.version import __version__
from stormdrop.device.artifact import SLACK_BYTES
from stormdrop.device.compatible import unfit
from stormdrop.device.memory import aligned
from stormdrop.device.threads import thread_count
from stormdrop.model.family import Family, read_family, write_family
from stormdrop.model.header import read_header, write_header
from stormdrop.model.image import Image
from stormdrop.target import ALIGN_BYTES

MAGIC = b"\x89SDMDL\r\n"  # not text, and a transfer that takes it for text does not leave it alone
FORMAT_VERSION = 3  # 1: without groups of phases; 2: without the id, shapes and node of a call
_IMAGE, _FAMILY = 0, 1
_PREAMBLE = struct.Struct("<8sIIQQQ")
_DIGEST_BYTES = hashlib.sha256().digest_size
_CHUNK_BYTES = 1 << 20  # is hashed while it is in the cache
_AGAIN = "compile the model again"
_log = logging.getLogger(__name__)


def save(path: str | os.PathLike[str], image: Image, weights: NDArray[np.uint8]) -> None:
    """Write a compiled model to a file, replacing one that is there.

    Raises UserError if the file cannot be written; what was there before is then still there.
    """
    weights = image.checked_weights(weights)
    code = b"".join(k.code for k in image.kernels)
    header = write_header(image, _versions())
    read_header(header, memoryview(code), image.weights_bytes)  # what is written can be read
    _write(path, _IMAGE, header, code, [weights])


def save_family(path: str | os.PathLike[str], family: Family, weights: Sequence[NDArray[np.uint8]]) -> None:
    """As `save`, of a model for several sizes; the concatenation of `weights` is that of all its images."""
    code = b"".join(k.code for image in family.images for k in image.kernels)
    header = write_family(family, _versions())
    read_family(header, memoryview(code), sum(part.nbytes for part in weights))
    _write(path, _FAMILY, header, code, weights)


def _versions() -> dict[str, str]:
    from stormdrop.codegen.llvm import llvm_version

    return {"stormdrop": __version__, "llvm": llvm_version()}


def _write(
    path: str | os.PathLike[str], kind: int, header: bytes, code: bytes, weights: Sequence[NDArray[np.uint8]]
) -> None:
    total = sum(part.nbytes for part in weights)
    preamble = _PREAMBLE.pack(MAGIC, FORMAT_VERSION, kind, len(header), len(code), total)
    with replacing(path) as write:
        digest = hashlib.sha256()
        padding = bytes(_padding(len(header), len(code)))
        for view in (*map(memoryview, (preamble, header, code, padding)), *(part.data for part in weights)):
            for at in range(0, len(view), _CHUNK_BYTES):
                chunk = view[at : at + _CHUNK_BYTES]
                digest.update(chunk)
                write(chunk)
        write(digest.digest())


def load(path: str | os.PathLike[str], threads: int | None = None) -> tuple[Image, NDArray[np.uint8]]:
    """As `load_any`, of a file that `save` wrote. Raises UserError for one that holds several sizes."""
    found, weights = load_any(path, threads)
    if isinstance(found, Family):
        raise UserError(f"{os.fspath(path)!r} holds a model for several sizes; sd.load_compiled reads it")
    return found, weights


def load_any(path: str | os.PathLike[str], threads: int | None = None) -> tuple[Image | Family, NDArray[np.uint8]]:
    """Read what `save` or `save_family` wrote: an image, or several, and the weights, which are read-only.

    A model keeps the number of threads it was compiled for, or has as many as `thread_count` says if that is fewer;
    `threads` asks for another. Raises UserError for anything but a whole, undamaged file that was compiled for a CPU
    like this one, or for a GPU: whether it fits is seen when its GPU is known.
    """
    name = repr(str(path_of(path)))
    with opened(path, name) as file:
        try:
            kind, header, code, weights = _read(file, name)
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror or error}") from error
        except MemoryError as error:
            raise UserError(f"{name} does not fit into memory: {error}") from error
    family: Family | None = None
    try:
        if kind == _FAMILY:
            family = read_family(header, memoryview(code), weights.nbytes)
        image = family.images[0] if family else read_header(header, memoryview(code), weights.nbytes)
    except (ValueError, UserError) as error:
        raise UserError(f"{name} is no compiled model, though its checksum is right ({error}); {_AGAIN}") from error
    if image.is_for_gpu:
        return family or image, weights
    reason = unfit(image.triple, image.cpu, image.features)
    if reason is not None:
        raise UserError(f"{name} cannot run here: {reason}; {_AGAIN} on this machine")
    count = thread_count(threads) if threads is not None else min(image.threads, thread_count())
    if count != image.threads:
        _log.info("%s was compiled for %d threads and runs with %d", name, image.threads, count)
    if family is not None:
        return replace(family, images=tuple(replace(image, threads=count) for image in family.images)), weights
    return replace(image, threads=count), weights


def _padding(header_bytes: int, code_bytes: int) -> int:
    return -(_PREAMBLE.size + header_bytes + code_bytes) % ALIGN_BYTES


def _read(file: io.BufferedReader, name: str) -> tuple[int, bytes, bytes, NDArray[np.uint8]]:
    """Kind, header, code and weights of a file whose checksum is right."""
    size = os.fstat(file.fileno()).st_size
    digest = hashlib.sha256()

    def fill(view: memoryview) -> None:
        at = 0
        while at < len(view):
            n = file.readinto(view[at : at + _CHUNK_BYTES])
            if not n:
                raise UserError(f"{name} is cut short; {_AGAIN}")
            digest.update(view[at : at + n])
            at += n

    def read(nbytes: int) -> bytes:
        data = bytearray(nbytes)
        fill(memoryview(data))
        return bytes(data)

    if size < _PREAMBLE.size:
        raise UserError(f"{name} is no compiled model: it has only {size} bytes")
    magic, version, kind, header_bytes, code_bytes, weights_bytes = _PREAMBLE.unpack(read(_PREAMBLE.size))
    if magic != MAGIC:
        raise UserError(f"{name} is no compiled model (Model.save writes them, sd.compile makes one from an ONNX file)")
    if not 1 <= version <= FORMAT_VERSION:
        whose = (
            f"{'a newer' if version > FORMAT_VERSION else 'another'} Stormdrop (format {version}, "
            f"this one reads 1 to {FORMAT_VERSION})"
        )
        raise UserError(f"{name} was written by {whose}; {_AGAIN} with this one")
    padding = _padding(header_bytes, code_bytes)
    expected = _PREAMBLE.size + header_bytes + code_bytes + padding + weights_bytes + _DIGEST_BYTES
    if kind not in (_IMAGE, _FAMILY) or size < expected:
        raise UserError(f"{name} is cut short or damaged: it has {size} bytes of {expected}; {_AGAIN}")
    if size > expected:
        raise UserError(f"{name} is damaged: {size - expected} bytes follow its end; {_AGAIN}")
    header, code, _ = read(header_bytes), read(code_bytes), read(padding)
    weights = aligned(weights_bytes + SLACK_BYTES)[:weights_bytes]
    fill(weights.data)
    right = digest.digest()
    found = file.read(_DIGEST_BYTES)
    if found != right:
        raise UserError(f"{name} is damaged: its checksum is wrong; {_AGAIN}")
    weights.flags.writeable = False
    return kind, header, code, weights
