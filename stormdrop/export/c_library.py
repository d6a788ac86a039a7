"""A compiled model as a C library: `libNAME.so` and a header, for programs without Python.

    library = export_library(model, "libresnet.so")      # and libresnet.h

    resnet_model *model = resnet_open(0);
    resnet_call(model, pixels, scores);
    resnet_close(model);

The library holds kernels, weights and the thread pool, and needs nothing but libc. Kernels keep the bytes they have in
the image, under names of their own; weights go from memory to the linker's input file without a copy.

Invariant: a library is there whole or not at all.
"""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.arguments import path_of
from stormdrop.base.errors import UserError
from stormdrop.base.files import cannot_write, destination, move, replacing
from stormdrop.codegen.emit import ENTRY, PREPARE
from stormdrop.codegen.llvm import AnyOf, assemble
from stormdrop.device.artifact import SLACK_BYTES
from stormdrop.device.pool.pool_ir import MACHINES
from stormdrop.export.elf import data_object, renamed
from stormdrop.export.entry_ir import entry_ir
from stormdrop.export.header import c_header, identifier
from stormdrop.export.linker import Linker, link
from stormdrop.model.image import Image, verify
from stormdrop.model.model import Model
from stormdrop.model.open_model import OpenModel

MOST_WEIGHTS_BYTES = (1 << 31) - (1 << 26)
"""The most bytes of weights in a library. Code reaches 2 GiB from its own address, and part of these 2 GiB is code."""


@dataclass(frozen=True, slots=True)
class Library:
    """The files of a library. `prefix` begins the name of every function."""

    path: Path
    header: Path
    prefix: str


def export_library(
    model: Model, path: str | os.PathLike[str], header: str | os.PathLike[str] | None = None, name: str | None = None
) -> Library:
    """Writes a compiled model as a C library, and its header beside it: `sd.export_library(model, "libresnet.so")`.

    A model with open dimensions is written at all sizes that are compiled. `name` begins the names of its functions, by
    default the file's: `resnet_open` in `libresnet.so`. Raises UserError as `write_library`.
    """
    output, beside = path_of(path), None if header is None else path_of(header)
    name = (output.stem.removeprefix("lib") or output.stem) if name is None else name
    model.check_can_be_saved()
    if not isinstance(model, OpenModel):
        return write_library(model.image, model.weights, output, beside, name)
    family, chunks = model.family()
    images = [family.images[k] for k in {served.image for served in family.served if not served.is_padded}]
    if not images:
        raise UserError(f"{model.name} is compiled for rounded sizes only; give shapes= to sd.compile")
    images.sort(key=lambda image: [port.shape for port in image.inputs])
    weights = [chunk.memory.read(0, chunk.nbytes) for chunk in chunks]
    return write_sizes(images, weights, output, beside, name)


def write_library(
    image: Image,
    weights: NDArray[np.uint8],
    output: Path,
    header: Path | None,
    name: str,
    linkers: Sequence[Linker] | None = None,
) -> Library:
    """Writes the library to `output`, and its header to `header` or beside it. `name` becomes the prefix of its
    functions.

    `linkers` are tried in turn, by default the linkers of the system. Raises UserError if there is no linker, if it
    fails, if a file cannot be written, and for a model that was compiled for another architecture.
    """
    return write_sizes([image], [image.checked_weights(weights)], output, header, name, linkers)


def write_sizes(
    images: Sequence[Image],
    weights: Sequence[NDArray[np.uint8]],
    output: Path,
    header: Path | None,
    name: str,
    linkers: Sequence[Linker] | None = None,
) -> Library:
    """Writes a model at one or more sizes as `write_library` does.

    `weights` are the consecutive parts of its weights.
    """
    for image in images:
        verify(image)
    image = images[0]
    machine = _machine_of(image)
    if image.weights_bytes > MOST_WEIGHTS_BYTES:
        sizes = f"{image.weights_bytes >> 20} MiB of weights, and a C library holds {MOST_WEIGHTS_BYTES >> 20}"
        raise UserError(f"{image.name} has {sizes}; save it as an .sd file")
    beside = header if header is not None else Path(output).with_suffix(".h")
    library = Library(destination(output), destination(beside), identifier(name))
    if library.path == library.header:
        raise UserError(f"{str(output)!r} cannot be both the library and its header; give header= another name")
    # Beside the library, so that it can be moved to its place in one step; nobody else can see into it.
    with cannot_write(output), tempfile.TemporaryDirectory(prefix=".stormdrop-", dir=library.path.parent) as folder:
        objects = _write_objects(Path(folder), images, weights, library.prefix, machine)
        link(Path(folder), objects, "library", _soname(library), linkers)
        move(Path(folder) / "library", library.path)
    with replacing(library.header) as write:
        write(c_header(images, library.prefix).encode("ascii"))
    return library


def _machine_of(image: Image) -> str:
    theirs, ours = image.triple.partition("-")[0], platform.machine()
    if theirs != ours or ours not in MACHINES:
        raise UserError(
            f"a C library is linked on a machine of its own kind: the model is compiled for {theirs}, and this is "
            f"{ours}"
        )
    return ours


def _write_objects(
    folder: Path, images: Sequence[Image], weights: Sequence[NDArray[np.uint8]], prefix: str, machine: str
) -> list[str]:
    """Writes the linker's input files and returns their names."""
    (folder / "entry.o").write_bytes(assemble(entry_ir(images, prefix, machine), AnyOf(images[0].triple)))
    nbytes = sum(part.nbytes for part in weights)
    head, tail = data_object(machine, f"{prefix}_weights", nbytes, nbytes + SLACK_BYTES)
    with open(folder / "weights.o", "wb") as file:
        file.writelines((head, *(part.data for part in weights), tail))
    objects = ["entry.o"]
    for k, kernel in enumerate(kernel for image in images for kernel in image.kernels):
        names = {ENTRY: f"{prefix}_kernel_{k}", PREPARE: f"{prefix}_prepare_{k}"}
        (folder / f"k{k}.o").write_bytes(renamed(kernel.code, names))
        objects.append(f"k{k}.o")
    return [*objects, "weights.o"]


def _soname(library: Library) -> str:
    """Returns the name that programs look up at start: the file's name if it is plain, else a name with the prefix."""
    name = library.path.name
    return name if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name) else f"lib{library.prefix}.so"
