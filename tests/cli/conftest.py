"""A cache of its own and one thread for each test of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(folder))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    monkeypatch.delenv("COLUMNS", raising=False)  # tests in several processes have it
    return folder
