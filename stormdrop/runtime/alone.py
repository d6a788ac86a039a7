"""The time of a model's kernels alone, each as warm as it is inside the model.

A kernel that is run again and again finds its weights in the cache; in a model whose weights exceed the caches it does
not. There, every run of a kernel alone reads its weights from another copy, and a whole cache of others lies between
two runs of one copy. Inputs and outputs stay where they are: in a model they have just been written, too.
"""

from __future__ import annotations

import ctypes
from math import ceil

import numpy as np

from stormdrop.runtime.image import Image
from stormdrop.runtime.memory import aligned
from stormdrop.runtime.pool import Pool
from stormdrop.target import whole_lines

MOST_COPIES = 512
"""Weights so small that more copies would be needed arrive in no time."""
BUFFERS = 1
"""The word of a step's record that points to its pointer table."""


def seconds_alone(
    image: Image, n: int, record: np.ndarray[tuple[int], np.dtype[np.int64]], pool: Pool, repeats: int, cache: int
) -> float:
    """The median time of step `n`, whose record is given, with weights as cold as in the model; `cache` is the last
    cache's bytes.
    """
    buffers = image.kernels[image.calls[n].kernel].buffers
    kept = [
        (k, buffers[k].nbytes) for k, a in enumerate(image.calls[n].addresses) if a is not None and a.space == "weights"
    ]
    room = [whole_lines(nbytes) for _, nbytes in kept]
    copies = ceil(2 * cache / sum(room)) if kept and image.weights_bytes > cache else 1
    if copies == 1 or copies > MOST_COPIES:
        return float(np.median(pool.bench_steps(record.ctypes.data, 1, repeats)))
    copies = max(copies, 2)
    block = aligned(copies * sum(room))
    table = np.ctypeslib.as_array((ctypes.c_int64 * len(buffers)).from_address(int(record[BUFFERS])))
    tables = np.tile(table, (copies, 1))
    at = block.ctypes.data
    for copy in tables:
        for (k, nbytes), size in zip(kept, room):
            ctypes.memmove(at, int(table[k]), nbytes)
            copy[k] = at
            at += size
    records = np.tile(record, (copies, 1))
    records[:, BUFFERS] = tables.ctypes.data + np.arange(copies) * tables.strides[0]
    rounds = 1 + ceil(repeats / copies)
    seconds = pool.profile_steps(records.ctypes.data, copies, rounds)
    return float(np.median(seconds[1:]))
