"""What users should notice: Python warnings at their own line, and notes of one line in the commands."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

import stormdrop as sd
from stormdrop.base.errors import warn
from stormdrop.cli.main import main
from stormdrop.report.logs import warnings_as_notes
from stormdrop.space.schedule import Schedule
from tests.support.remarks import every_remark, remarks
from tests.support.tiny_onnx import dense


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STORMDROP_THREADS", "1")


def elsewhere(task: sd.Task) -> Schedule:
    """A schedule of another class of tasks."""
    return Schedule("another", 0, (), ())


def test_a_warning_of_a_function_names_the_line_that_called_it(tmp_path: Path) -> None:
    path = dense(tmp_path)
    with every_remark() as recorded:
        sd.compile(path, schedules=elsewhere)
    assert "is computed by default" in remarks(recorded)[0]
    assert {(w.filename, w.category) for w in recorded} == {(__file__, sd.StormdropWarning)}
    line = Path(__file__).read_text().splitlines()[recorded[0].lineno - 1]
    assert line.strip() == "sd.compile(path, schedules=elsewhere)"


def test_tuning_warns_where_nobody_listens(tmp_path: Path) -> None:
    path = dense(tmp_path)
    with every_remark() as recorded:
        sd.tune(path, trials=1, search="random")
    assert ["the search ended before" in text for text in remarks(recorded)] == [True]
    assert recorded[0].filename == __file__


def test_warnings_of_this_package_can_be_turned_off_and_into_errors(tmp_path: Path) -> None:
    path = dense(tmp_path)
    with every_remark() as recorded:
        warnings.simplefilter("ignore", sd.StormdropWarning)
        sd.compile(path, schedules=elsewhere)
        assert remarks(recorded) == []
        warnings.simplefilter("error", sd.StormdropWarning)
        with pytest.raises(sd.StormdropWarning, match="is computed by default"):
            sd.compile(path, schedules=elsewhere)


def test_a_script_shows_a_warning_once_for_each_line(tmp_path: Path) -> None:
    call = f"sd.compile({str(dense(tmp_path))!r}, schedules=lambda task: Schedule('another', 0, (), ()))"
    script = (
        f"import stormdrop as sd\nfrom stormdrop.space.schedule import Schedule\nfor _ in 'ab':\n    {call}\n{call}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert {line.partition(": ")[0] for line in lines} == {"<string>:4", "<string>:5"}
    assert len(lines) == len(set(lines))


def test_a_text_of_a_file_cannot_break_the_line() -> None:
    with every_remark() as recorded:
        warn("input a\x1b[2K\nb")
    assert remarks(recorded) == ["input a\\x1b[2K\\nb"]


def test_a_command_shows_each_warning_once_as_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dense(tmp_path)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "file"))
    before = warnings.showwarning
    arguments = ["tune", str(path), "--trials", "3", "--search", "random", "--log-file", str(tmp_path / "log")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.stderr.splitlines() if "the store cannot be written" in line]
    assert line.startswith("WARNING: what is measured is not kept")
    assert "StormdropWarning" not in done.stderr
    assert "the store cannot be written" in (tmp_path / "log").read_text()
    assert warnings.showwarning is before


def test_warnings_of_other_packages_stay_python_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(record=True) as recorded, warnings_as_notes():
        for _ in range(2):
            warn("slow disk")
        warnings.warn("theirs", stacklevel=1)
    assert [str(w.message) for w in recorded] == ["theirs"]
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(logging.WARNING, "slow disk")]
