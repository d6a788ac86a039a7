"""Schedules as text: a whole schedule, or the difference between two."""

from __future__ import annotations

from stormdrop.space.schedule import Schedule


def schedule_lines(schedule: Schedule) -> list[str]:
    """Returns the derivation, one step a line, then the knobs of each stage on one line."""
    knobs: dict[str, list[str]] = {}
    for name, value in schedule.values:
        stage, _, rest = name.partition(".")
        knobs.setdefault(stage, []).append(f"{rest}={value}")
    return [*map(str, schedule.steps), *(f"{stage}: {' '.join(values)}" for stage, values in knobs.items())]


def change_text(before: Schedule | None, after: Schedule) -> str:
    """Returns the difference between a schedule and the best before it, on one line: its knobs, or its derivation."""
    if before is None or before.steps != after.steps or before.variant != after.variant:
        steps = " ".join(map(str, after.steps))
        return f"variant {after.variant}: {steps}" if after.variant else steps
    old = before.by_name
    moved = [(name, old.get(name), value) for name, value in after.values if old.get(name) != value]
    return " ".join(f"{name} {was}→{now}" for name, was, now in moved) or "the same, timed again"
