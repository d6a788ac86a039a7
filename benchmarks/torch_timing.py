"""Timing of what PyTorch does on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

TORCH_CALLS = 10


def torch_seconds(call: Callable[[], object], calls: int = TORCH_CALLS) -> float:
    """The median seconds of one call, `calls` of them in a CUDA graph."""
    import torch  # pyright: ignore[reportMissingImports]

    for _ in range(5):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    found: list[float] = []
    for k in range(40):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found += [begin.elapsed_time(end) * 1e-3 / calls] if k >= 20 else []
    return float(np.median(found))
