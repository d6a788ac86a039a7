"""A compiled model as one file, `.sd`: a container of an image, or of images of several sizes, with their weights."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.arguments import path_of
from stormdrop.base.errors import UserError
from stormdrop.base.files import opened, replacing
from stormdrop.device.cpus import thread_count
from stormdrop.device.host import unfit
from stormdrop.model.container import AGAIN, Kind, read_container, write_container
from stormdrop.model.family import Family, verify_family
from stormdrop.model.image import Image, verify

_log = logging.getLogger(__name__)


def save(path: str | os.PathLike[str], image: Image, weights: NDArray[np.uint8]) -> None:
    """Writes a compiled model to a file, which replaces an existing file.

    Raises UserError if the file cannot be written; the existing file then remains.
    """
    verify(image)
    weights = image.checked_weights(weights)
    with replacing(path) as write:
        write_container(write, Kind.IMAGE, Image, _without_packing(image), [weights])


def save_family(path: str | os.PathLike[str], family: Family, weights: Sequence[NDArray[np.uint8]]) -> None:
    """Writes a model for several sizes as `save` does; all images read the concatenation of `weights`."""
    verify_family(family)
    family = replace(family, images=tuple(map(_without_packing, family.images)))
    with replacing(path) as write:
        write_container(write, Kind.FAMILY, Family, family, weights)


def _without_packing(image: Image) -> Image:
    """Returns an image without the host's code that packs the weights of a GPU: they are packed."""
    return replace(image, kernels=tuple(replace(kernel, prepare_code=b"") for kernel in image.kernels))


def load(path: str | os.PathLike[str], threads: int | None = None) -> tuple[Image, NDArray[np.uint8]]:
    """Reads a file as `load_any`, if `save` wrote the file. Raises UserError for a file of several sizes."""
    model, weights = load_any(path, threads)
    if isinstance(model, Family):
        raise UserError(f"{os.fspath(path)!r} holds a model for several sizes; sd.load reads it")
    return model, weights


def load_any(path: str | os.PathLike[str], threads: int | None = None) -> tuple[Image | Family, NDArray[np.uint8]]:
    """Reads a file that `save` or `save_family` wrote: an image, or several, and the weights, which are read-only.

    A model keeps its number of threads, or has the number of `thread_count` if that is smaller; `threads` requests
    another number. Raises UserError for any file but a complete, undamaged file of code for this CPU, or for a GPU. The
    GPU is compared when it is opened.
    """
    name = repr(str(path_of(path)))
    with opened(path, name) as file:
        try:
            container = read_container(file, name)
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror or error}") from error
        except MemoryError as error:
            raise UserError(f"{name} does not fit into memory: {error}") from error
    if container.kind is Kind.KERNELS:
        raise UserError(f"{name} holds kernels of the cache, no compiled model; give a file that Model.save wrote")
    try:
        family = container.content(Family) if container.kind is Kind.FAMILY else None
        image = family.images[0] if family and family.images else container.content(Image)
        verify_family(family) if family else verify(image)
        if image.weights_bytes != container.weights.nbytes:
            raise UserError(f"it needs {image.weights_bytes} bytes of weights, not {container.weights.nbytes}")
    except (ValueError, UserError) as error:
        raise UserError(f"{name} is no compiled model, though its checksum is right ({error}); {AGAIN}") from error
    if image.is_for_gpu:
        return family or image, container.weights
    reason = unfit(image.triple, image.cpu, image.features)
    if reason is not None:
        raise UserError(f"{name} cannot run here: {reason}; {AGAIN} on this machine")
    count = thread_count(threads) if threads is not None else min(image.threads, thread_count())
    if count != image.threads:
        _log.info("%s was compiled for %d threads and runs with %d", name, image.threads, count)
    if family is not None:
        images = tuple(replace(image, threads=count) for image in family.images)
        return replace(family, images=images), container.weights
    return replace(image, threads=count), container.weights
