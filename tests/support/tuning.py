"""Tuning of models with options as keyword arguments. The models themselves are not timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from stormdrop.device.host import detect
from stormdrop.graph.partition import Partition
from stormdrop.store.store import Store
from stormdrop.target.machine import Target
from stormdrop.tuning.events import Listener, ignore
from stormdrop.tuning.subject import Subject
from stormdrop.tuning.tune import TuneOptions, tune
from stormdrop.tuning.tuned import Tuned


def tune_models(
    models: Sequence[Partition],
    target: Target | None = None,
    *,
    store: Store | None = None,
    listen: Listener = ignore,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> tuple[Tuned, ...]:
    """Tunes models together, without the user's store."""
    subjects = [Subject.of_model(parts, is_timed=False) for parts in models]
    target = target or detect()
    return tune(subjects, target, TuneOptions(**options), store=store, listen=listen, clock=clock)
