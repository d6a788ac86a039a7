"""What is logged, at which level, and where it goes."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stormdrop.base.errors import UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure
from stormdrop.report.logs import LogListener, configure, silence
from stormdrop.tuning.events import Measured, Proving, StageStarted, Warned
from tests.support.searches import HOSTILE, events, tiny, tuned

SEARCH = tuned([4e-6, 2e-6, Failure("build", "no such\nregister"), 1e-6])


@pytest.fixture(autouse=True)
def nothing_configured() -> Iterator[None]:
    yield
    silence()


def test_rounds_and_new_bests_are_info_and_every_trial_is_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "stormdrop")
    listener = LogListener(peak_gflops=100.0)
    for event in events(SEARCH, trials=4):
        listener(event)
    said = [(r.levelno, r.getMessage()) for r in caplog.records]
    info = [text for level, text in said if level == logging.INFO]
    assert sum(text.startswith("new best") for text in info) == 3
    assert "new best at trial 4 (storm): 1.00 µs, 4.9 GFLOP/s, 4.9% of peak; s0.a0.1 2→4" in info
    assert sum(" measured, " in text for text in info) == 2
    assert info[-1].startswith("GMM 1 13 17 11 ended (trials): 1.00 µs")
    debug = [text for level, text in said if level == logging.DEBUG]
    assert len(debug) == 4
    assert debug[2] == "trial 3 (storm): failed: build: no such register"
    assert "s0.unroll=1" in debug[3]
    assert {r.name for r in caplog.records} == {"stormdrop.tune"}


def test_a_warning_has_its_level(caplog: pytest.LogCaptureFixture) -> None:
    listener = LogListener()
    for event in (*events(SEARCH), Proving(1, 2.0), StageStarted("compiling with defaults"), Warned("careful")):
        listener(event)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warnings == ["careful"]


def test_an_unconfigured_library_prints_nothing() -> None:
    script = "import logging, stormdrop; logging.getLogger('stormdrop.tune').error('loud')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


def told(capsys: pytest.CaptureFixture[str], verbosity: int, file: Path | None = None) -> list[str]:
    configure(verbosity, file)
    for name in ("stormdrop.tune", "stormdrop.store"):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger(name).log(level, "%s %s", name, logging.getLevelName(level))
    return [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()]


def test_verbosity_decides_what_is_said_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, 0) == ["stormdrop.store WARNING"]  # the view says what tuning warns of
    assert told(capsys, 1) == [f"stormdrop.{n} {level}" for n in ("tune", "store") for level in ("INFO", "WARNING")]
    assert len(told(capsys, 2)) == len(told(capsys, 5)) == 6


def test_the_log_file_gets_everything_and_is_appended_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "tune.log"
    for expected in (6, 12):
        assert told(capsys, 0, file) == ["stormdrop.store WARNING"]
        silence()
        assert len(file.read_text().splitlines()) == expected


def test_a_record_is_one_line_whatever_it_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tune.log"
    configure(2, file)
    listener = LogListener()
    hostile = tuned(
        [1e-6, Failure("crash", HOSTILE)], HOSTILE, task=Task(tiny().outputs, name=HOSTILE), stopped=HOSTILE
    )
    count = 0
    for event in (*events(hostile), Warned(HOSTILE)):
        listener(event)
        count += 2 if isinstance(event, Measured) and event.is_best else 1
    silence()
    for text in (file.read_text(), capsys.readouterr().err):
        assert len(text.splitlines()) == count
        assert text.replace("\n", "").isprintable()


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written: No such file or directory"):
        configure(0, tmp_path / "nowhere" / "log")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_file_that_takes_no_more_is_given_up_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    configure(0, "/dev/full")
    for number in range(3):
        logging.getLogger("stormdrop.tune").debug("trial %d", number)
    silence()
    assert capsys.readouterr().err == "WARNING: nothing more is logged in /dev/full: No space left on device\n"


def test_silence_leaves_other_handlers_alone() -> None:
    root, mine = logging.getLogger("stormdrop"), logging.NullHandler()
    root.addHandler(mine)
    try:
        before = list(root.handlers)
        configure(1)
        silence()
        assert root.handlers == before
    finally:
        root.removeHandler(mine)
