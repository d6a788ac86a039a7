"""Figures of reuse as Markdown: what `--table` prints and docs/figures.md holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.core import geometric_mean
from benchmarks.reuse.figures import (
    BEHIND,
    LEAST_GAINING,
    Gain,
    Matrix,
    gain,
    gain_tasks,
    matrix,
    model_values,
    pool_curve,
    task_values,
)
from benchmarks.reuse.table import SearchKind, Table

MOST_TASKS = 12
CHOSEN = ("donor chosen by gain", "by classes", "nearest of all", "all donors", "best known")
ORIGINS = {"default": "default", "only": "donors and a descent", "seed": "donors and a search"}
KINDS: dict[SearchKind, str] = {"only": "donors and a short descent", "seed": "donors, then a search"}


def value_text(table: Table, most: int | None = MOST_TASKS) -> str:
    lines = ["| model | tasks | of them 5 % to gain | best known, tasks | in the model | changed tasks |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    models = model_values(table)
    for v in models:
        worth = v.worth
        in_model = f"{worth.default_seconds / worth.seconds:.3f}" if worth is not None else ""
        changed = f"{worth.changed} of {worth.offered}" if worth is not None else ""
        lines.append(f"| {v.model} | {v.tasks} | {v.gaining} | {v.speed:.3f} | {in_model} | {changed} |")
    inside = [v.worth.default_seconds / v.worth.seconds for v in models if v.worth is not None]
    mean = f"{geometric_mean(inside):.3f}" if inside else ""
    tasks, gaining = len(task_values(table)), len(gain_tasks(table))
    if models:
        alone = geometric_mean(v.speed for v in models)
        lines.append(f"| geometric mean; all tasks ({len(models)}) | {tasks} | {gaining} | {alone:.3f} | {mean} | |")
    lines += ["", "| task | default µs | best known | found by |", "|---|---:|---:|---|"]
    for v in task_values(table)[:most]:
        first, *more = v.recipient.calls
        where = f"{first} and {len(more)} more" if more else first
        found = "a donor" if v.origin.startswith("donor") else ORIGINS.get(v.origin, "search")
        lines.append(f"| {v.recipient.name} ({where}) | {v.default_seconds * 1e6:.1f} | {v.speed:.3f} | {found} |")
    return "\n".join(lines)


def matrix_text(table: Table) -> str:
    """Three tables of speeds: by donor model, with columns numbered like the rows; with a chosen donor model and with
    all; by the size of the pool.
    """
    found = matrix(table)
    numbers = [str(k) for k in range(1, 1 + len(found.models))]
    lines = [_row("model, from", *numbers), "|---|" + "---:|" * len(numbers)]
    for number, m in zip(numbers, found.models):
        lines.append(_row(f"{number} {m}", *(f"{found.by_donor[m][d]:.2f}" for d in found.models)))
    lines += ["", _row("model", *CHOSEN), "|---|" + "---:|" * len(CHOSEN)]
    lines += [_row(m, *(f"{v:.3f}" for v in _chosen(found, m))) for m in found.models]
    if found.models:
        means = [geometric_mean(_chosen(found, m)[k] for m in found.models) for k in range(len(CHOSEN))]
        lines.append(_row(f"geometric mean ({len(found.models)})", *(f"{v:.3f}" for v in means)))
    lines += [
        "",
        "| models in the pool | speed, every candidate measured | of the nearest donors |",
        "|---:|---:|---:|",
    ]
    lines += [f"| {p.size} | {p.speed:.4f} | {p.nearest:.4f} |" for p in pool_curve(table)]
    return "\n".join(lines)


def _chosen(found: Matrix, model: str) -> list[float]:
    by = found.by_donor[model]
    chosen = [by.get(found.chosen[model], 1.0), by.get(found.chosen_by_classes[model], 1.0)]
    return [*chosen, found.nearest[model], found.all_donors[model], found.best[model]]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def gain_text(table: Table) -> str:
    found = gain(table)
    lines = [_gain_line(found)]
    if found.is_claim:
        lines += ["", "| search | s to within 2 % of the best known | of the time from nothing | saved early |"]
        lines += ["|---|---:|---:|---:|"]
        lines.append(f"| from nothing | {geometric_mean(found.reached['again']):.2f} | 1.000 | |")
        for kind, name in KINDS.items():
            saved = f"{found.saved[kind]:.1%}" if kind in found.saved else ""
            mean = geometric_mean(found.reached[kind])
            lines.append(f"| {name} | {mean:.2f} | {found.time_ratio(kind):.3f} | {saved} |")
    if found.others:
        worst = max((ratio for _, ratio in found.behind), default=1.0)
        least = f"; the slowest takes {worst:.3f} times as long" if found.behind else ""
        told = f"{len(found.behind)} are behind the default by more than {BEHIND:.0%}{least}"
        lines += ["", f"Of {found.others} other tasks, after donors and a short descent, {told}."]
    return "\n".join(lines)


def _gain_line(found: Gain) -> str:
    told = f"{found.tasks} tasks have 5 % or more to gain; on {found.searched} of them searches with reuse and from "
    told += "nothing were compared in the same turns"
    if not found.is_claim:
        return f"{told}: fewer than {LEAST_GAINING}, so nothing is claimed."
    long = f", on {found.long_tasks} also with a long storm" if found.long_tasks else ""
    return f"{told}{long}. Geometric means over them; what never gets there counts as the whole budget."


PARTS: dict[str, Callable[[Table], str]] = {"value": value_text, "matrix": matrix_text, "gain": gain_text}


def report(table: Table, parts: Sequence[str] = tuple(PARTS)) -> str:
    """The parts for which a table has rows; empty without a duel."""
    if not table.best:
        return ""
    texts = [PARTS[part](table) for part in parts]
    return "\n\n".join([table.machine, *(text for text in texts if text)])
