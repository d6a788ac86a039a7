"""Donors of a model's tasks, for people and for scripts: the output of `stormdrop store donors`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from stormdrop.report.console import heading, print_table, say
from stormdrop.report.text import name_text
from stormdrop.store.donors import Donor
from stormdrop.tuning.donors import ClassDonors, DonorModel, TaskDonors

SHORT = 8


def _temperature(donor: Donor) -> str:
    return "cold" if donor.target.is_cold else "warm"


def donors_json(
    lines: Sequence[TaskDonors], classes: Sequence[ClassDonors], models: Sequence[DonorModel]
) -> dict[str, Any]:
    return {
        "tasks": [_task_json(line) for line in lines],
        "classes": [asdict(row) for row in classes],
        "models": [asdict(row) for row in models],
    }


def _task_json(line: TaskDonors) -> dict[str, Any]:
    task = line.use.task
    return {
        "id": line.use.id,
        "label": line.use.calls[0].label,
        "digest": task.digest,
        "class": task.class_key,
        "share": line.share,
        "known": line.known,
        "decided": line.is_decided,
        "donors": [
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
        ],
    }


def print_donors(
    console: Console, lines: Sequence[TaskDonors], classes: Sequence[ClassDonors], models: Sequence[DonorModel]
) -> None:
    """Prints tasks with their nearest donors, classes, and the models to take donors from."""
    titles = ("task", "", "share", "known", "donors", "nearest donor", "key", "distance", "measured", "")
    rows: list[tuple[str, ...]] = []
    for line in lines:
        nearest: tuple[str, ...] = ("", "", "", "")
        if line.donors:
            donor = line.donors[0]
            measured = "" if donor.is_equal else f"{donor.target.threads} threads, {_temperature(donor)}"
            nearest = name_text(str(donor)), donor.kinship.key, f"{donor.kinship.distance:.1f}", measured
        counts = f"{line.share:.1%}", str(line.known), str(len(line.donors))
        rows.append((line.use.id, line.use.calls[0].label, *counts, *nearest, "decided" if line.is_decided else ""))
    print_table(console, titles, rows, words=(0, 1, 5, 6, 8, 9))
    console.print()
    heading(console, "classes")
    cells = [(c.class_key[:SHORT], c.label, str(c.tasks), f"{c.share:.1%}", str(c.donors)) for c in classes]
    print_table(console, ("class", "such as", "tasks", "share", "donors"), cells, words=(0, 1))
    console.print()
    heading(console, "donor models, the best first")
    if not models:
        say(console, "none")
        return
    cells = [(name_text(m.name), f"{m.score:.2f}", f"{m.share:.1%}", str(m.schedules)) for m in models]
    print_table(console, ("model", "score", "share of the time", "schedules"), cells, words=(0,))
