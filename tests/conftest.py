"""Options of the test suite."""

from __future__ import annotations

from shutil import rmtree
from tempfile import mkdtemp

import pytest

DEFAULT_POINTS = 1800
DEFAULT_PAIRS = 30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--points", type=int, default=DEFAULT_POINTS, help="how many points the property test builds and runs"
    )
    parser.addoption(
        "--case", default="", metavar="SEED[:NUMBER]", help="replay one trial, or one case, of the property test"
    )
    parser.addoption(
        "--pairs", type=int, default=DEFAULT_PAIRS, help="between how many pairs of tasks schedules are carried"
    )
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing with them"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tests begin with an empty cache directory: they neither see nor change this user's store and calibration.

    It is set before modules are collected, for fixtures of every scope, and in the environment, which subprocesses
    inherit. Each process of a parallel run has its own.
    """
    folder, patch = mkdtemp(prefix="stormdrop-tests-"), pytest.MonkeyPatch()
    patch.setenv("STORMDROP_CACHE_DIR", folder)
    config.add_cleanup(patch.undo)
    config.add_cleanup(lambda: rmtree(folder, ignore_errors=True))


@pytest.fixture
def points(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--points") or 0)


@pytest.fixture
def pairs(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--pairs") or 0)


@pytest.fixture
def chosen_case(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--case"))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def no_shipped_stores(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests begin without the stores that come with the package: results must not depend on the machine."""
    folder = tmp_path_factory.getbasetemp() / "no-stores"
    monkeypatch.setattr("stormdrop.store.shipped.stores_dir", lambda: folder)
