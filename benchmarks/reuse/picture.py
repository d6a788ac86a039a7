"""Speeds by donor model, and by the size of a pool of donor models, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.reuse.figures import Matrix, PoolPoint
from stormdrop.base.files import cannot_write
from stormdrop.report.plot import COLOURS, check_plot


def save_matrix(path: Path, found: Matrix, curve: Sequence[PoolPoint], title: str) -> None:
    """Raises UserError if the file cannot be written, or matplotlib is not there."""
    check_plot(path)
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = ["chosen by gain", "chosen by classes", "nearest of all", "all donors", "best known"]
    last = [
        [
            found.by_donor[m].get(found.chosen[m], 1.0),
            found.by_donor[m].get(found.chosen_by_classes[m], 1.0),
            found.nearest[m],
            found.all_donors[m],
            found.best[m],
        ]
        for m in found.models
    ]
    values = np.array([[found.by_donor[m][d] for d in found.models] + more for m, more in zip(found.models, last)])
    figure = Figure(figsize=(5 + 0.62 * len(found.models) + 3.5, 2.5 + 0.42 * len(found.models)), layout="constrained")
    figure.suptitle(title, size=11)
    left, right = figure.subplots(1, 2, width_ratios=(len(found.models) + 6, 6))
    most = max(1.05, float(values.max()))
    left.imshow(values, cmap="YlGn", vmin=2 - most, vmax=1 + 2 * (most - 1), aspect="auto")  # text is dark everywhere
    for (row, column), value in np.ndenumerate(values):
        left.text(column, row, f"{value:.2f}", ha="center", va="center", size=8)
    left.axvline(len(found.models) - 0.5, color="white", linewidth=4)
    left.set_xticks(range(values.shape[1]), [*found.models, *columns], rotation=45, ha="right", size=8)
    left.set_yticks(range(len(found.models)), found.models, size=8)
    left.set_xlabel("donor")
    left.set_ylabel("model")
    sizes = [point.size for point in curve]
    right.plot(sizes, [point.speed for point in curve], marker="o", color=COLOURS[0], label="every candidate measured")
    right.plot(sizes, [point.nearest for point in curve], marker="s", color=COLOURS[1], label="of the nearest donors")
    right.set_xlabel("models in the pool")
    right.set_ylabel("speed over the default")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.grid(True, linewidth=0.5, alpha=0.3)
    right.spines[["top", "right"]].set_visible(False)
    right.legend(frameon=False, fontsize=8)
    with cannot_write(path):
        figure.savefig(path, dpi=150)
