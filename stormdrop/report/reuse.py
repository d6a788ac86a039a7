"""What could be reused, for people and for scripts: what `stormdrop store donors`, `transfer` and `portfolio` print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from stormdrop.driver.transfers import ClassTransfer, DonorModel, TaskTransfer
from stormdrop.report.console import heading, print_table, say
from stormdrop.report.text import counted, name_text
from stormdrop.reservoir.donors import Donor
from stormdrop.reservoir.experience import Experience
from stormdrop.search.covering import ClassCover

SHORT = 8


def _temperature(donor: Donor) -> str:
    return "cold" if donor.target.is_cold else "warm"


def transfer_json(line: TaskTransfer) -> dict[str, Any]:
    task = line.use.task
    names = {"id": line.use.id, "label": line.use.calls[0].label, "digest": task.digest, "class": task.class_key}
    donors = [
        {
            "name": donor.task.name,
            "digest": donor.task.digest,
            "model": donor.model,
            "key": donor.kinship.key,
            "distance": donor.kinship.distance,
            "threads": donor.target.threads,
            "temperature": _temperature(donor),
            "equal": donor.is_equal,
        }
        for donor in line.donors
    ]
    best = None
    if line.best is not None:
        predicted = {"donor": line.best.donor, "predicted": line.best.predicted}
        best = {**predicted, "taken": line.is_taken, "schedule": line.best.schedule.to_json()}
    return {
        **names,
        "share": line.share,
        "known": line.known,
        "decided": line.is_decided,
        "donors": donors,
        "best": best,
    }


def donors_json(
    found: Sequence[TaskTransfer], classes: Sequence[ClassTransfer], models: Sequence[DonorModel]
) -> dict[str, Any]:
    return {
        "tasks": [transfer_json(line) for line in found],
        "classes": [asdict(row) for row in classes],
        "models": [asdict(row) for row in models],
    }


def print_transfers(console: Console, found: Sequence[TaskTransfer]) -> None:
    """One line for each task, with its best donor."""
    titles = ("task", "", "share", "known", "donors", "nearest donor", "key", "distance", "measured", "expected", "")
    rows: list[tuple[str, ...]] = []
    for line in found:
        nearest: tuple[str, ...] = ("", "", "", "")
        if line.donors:
            donor = line.donors[0]
            measured = "" if donor.is_equal else f"{donor.target.threads} threads, {_temperature(donor)}"
            nearest = name_text(str(donor)), donor.kinship.key, f"{donor.kinship.distance:.1f}", measured
        expected = f"{line.best.predicted:.2f}x" if line.best is not None else ""
        outcome = "decided" if line.is_decided else "taken unmeasured" if line.is_taken else ""
        counts = f"{line.share:.1%}", str(line.known), str(len(line.donors))
        rows.append((line.use.id, line.use.calls[0].label, *counts, *nearest, expected, outcome))
    print_table(console, titles, rows, words=(0, 1, 5, 6, 8, 10))


def print_donors(
    console: Console, found: Sequence[TaskTransfer], classes: Sequence[ClassTransfer], models: Sequence[DonorModel]
) -> None:
    """Tasks, classes, and the models to take donors from."""
    print_transfers(console, found)
    console.print()
    heading(console, "classes")
    titles = ("class", "such as", "tasks", "share", "donors", "expected")
    rows = [
        (
            c.class_key[:SHORT],
            c.label,
            str(c.tasks),
            f"{c.share:.1%}",
            str(c.donors),
            f"{c.gain:.2f}x" if c.gain else "",
        )
        for c in classes
    ]
    print_table(console, titles, rows, words=(0, 1))
    console.print()
    heading(console, "donor models, the best first")
    if not models:
        say(console, "none")
        return
    cells = [(name_text(m.name), f"{m.score:.2f}", f"{m.share:.1%}", str(m.schedules)) for m in models]
    print_table(console, ("model", "score", "share of the time", "schedules"), cells, words=(0,))


def portfolio_json(portfolio: Experience, covers: Sequence[ClassCover], path: str | None) -> dict[str, Any]:
    return {
        "target": portfolio.key,
        "margin": portfolio.margin,
        "schedules": len(portfolio.donors),
        "classes": [row.to_json() for row in covers],
        "file": path,
    }


def print_portfolio(console: Console, portfolio: Experience, covers: Sequence[ClassCover]) -> None:
    titles = ("class", "such as", "tasks", "by default", "schedules", "not covered", "measured", "predicted")
    rows = [
        (
            c.class_key[:SHORT],
            c.name,
            *map(str, (c.tasks, c.by_default, c.schedules, c.uncovered, c.measured, c.predicted)),
        )
        for c in covers
    ]
    print_table(console, titles, rows, words=(0, 1))
    console.print()
    margin = "none is taken unmeasured"
    if portfolio.margin is not None:
        margin = f"taken unmeasured from a predicted gain of {portfolio.margin - 1:.1%}"
    say(console, f"{counted(len(portfolio.donors), 'schedule')} for {portfolio.key}, beside the defaults; {margin}")
