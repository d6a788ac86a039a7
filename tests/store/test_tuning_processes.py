"""Processes that tune into one store: several at the same time, and some that are killed."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.compiler.stored import stored_schedules
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.operators.catalogue import build
from stormdrop.store.record import Record
from stormdrop.store.store import Store, default_path
from stormdrop.tuning.session import PROVED
from tests.support.tiny_onnx import conv, dense

TRIALS, BATCH, ENDLESS = 12, 4, 100_000
MATRICES, DEPTHWISE = "GMM 1 32 32 32", "DEP 1 14 14 16 3 1 1"

TUNER = """
import sys, time
from pathlib import Path
from stormdrop.tuning.api import tune
from stormdrop.measure.measurer import Measurer
from stormdrop.operators.catalogue import build
from stormdrop.store.store import Store
from stormdrop.tuning.events import Moved, Proving, Started
from stormdrop.tuning.resources import Keeper
from stormdrop.tuning.search_settings import TuneSettings

path, operator, trials, batch, seed, waits_at = sys.argv[1:]

def wait(*_):
    print("waiting", flush=True)
    time.sleep(600)

def listen(event):
    match event:
        case Started():
            print("known", event.known, flush=True)
        case Moved() if event.row.phase not in ("final", "proved", "confirmed"):
            print("stored", event.row.trials, flush=True)
        case Proving() if waits_at == "duel":
            wait()
        case _:
            pass

if waits_at == "proof":
    Measurer.prove = wait
if waits_at == "verdict":
    Keeper.add_verdicts = wait
name, *sizes = operator.split()
task, settings = build(name, tuple(map(int, sizes))), TuneSettings(batch=int(batch))
print("ready", flush=True)
sys.stdin.read()
with Store.open(Path(path)) as store:
    tuned = tune(
        task, threads=1, search="random", trials=int(trials), seed=int(seed), store=store, settings=settings,
        listen=listen,
    )
print("tuned", tuned.trials, tuned.not_kept, flush=True)
"""
"""Tells how many trials the store knew, how many of its own are in the store, and how many it had in the end. It can
be made to wait before the final duel, before the proof, and between the proof and the verdict.
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sqlite"


@contextmanager
def tuning(
    path: Path, operator: str, trials: int = TRIALS, seed: int = 0, waits_at: str = ""
) -> Generator[subprocess.Popen[str]]:
    """A process that is ready to tune an operator, and begins with `begin`."""
    arguments = [str(path), operator, str(trials), str(BATCH), str(seed), waits_at]
    command = [sys.executable, "-c", TUNER, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert lines_of(process).readline() == "ready\n"
            yield process
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def ended(process: subprocess.Popen[str]) -> list[str]:
    """What a process says until it has done its work."""
    told = lines_of(process).read().splitlines()
    assert process.wait() == 0
    return told


def killed(process: subprocess.Popen[str]) -> list[str]:
    """What a process has said, and nobody heard yet, when it is killed."""
    process.send_signal(signal.SIGKILL)
    told = lines_of(process).read().splitlines()
    assert process.wait() == -signal.SIGKILL
    return told


def task_of(operator: str) -> Task:
    name, *sizes = operator.split()
    return build(name, tuple(map(int, sizes)))


def rows(path: Path, table: str) -> int:
    """Counted through a connection that may only read."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def keys(records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [(r.seed, r.number, r.verified, r.schedule) for r in records]


def check_verdict(store: Store, task: Task) -> None:
    """Tuning has decided for something that it has proved."""
    verdict = store.verdict(task, detect(1))
    assert verdict is not None
    assert (verdict.proof, verdict.provenance) == (PROVED, "measured")
    assert verdict.schedule in [r.schedule for r in store.trials(task, detect(1)) if r.verified]


# ---- several ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operators", [(MATRICES, DEPTHWISE), (MATRICES, MATRICES)], ids=["different", "the same"])
def test_processes_that_tune_at_the_same_time_lose_no_trial_and_no_verdict(
    path: Path, operators: tuple[str, str]
) -> None:
    """They also make the file at the same time, or find one that another of them is making."""
    with tuning(path, operators[0], seed=0) as first, tuning(path, operators[1], seed=1) as second:
        for process in (first, second):
            begin(process)
        for process in (first, second):
            assert ended(process)[-1].split() == ["tuned", str(TRIALS)]
    with Store.open(path) as store:
        assert store.integrity() == []
        for seed, operator in enumerate(operators):
            mine = [r for r in store.trials(task_of(operator), detect(1)) if r.seed == seed]
            assert [r.number for r in mine if not r.verified] == list(range(1, TRIALS + 1))
            assert [r.verified for r in mine].count(True) == 1
            check_verdict(store, task_of(operator))
    assert rows(path, "trial") == 2 * (TRIALS + 1)


def test_commands_that_tune_two_models_at_the_same_time_keep_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    models = [dense(tmp_path), conv(tmp_path)]
    options = ["--trials", "8", "--search", "random", "--quiet", "--json"]
    commands = [[sys.executable, "-m", "stormdrop", "tune", str(model), *options] for model in models]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    told = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    chosen = stored_schedules(detect(1))
    with Store.open(default_path()) as store:
        assert store.integrity() == []
        for model, text in zip(models, told):
            report: dict[str, Any] = json.loads(text)
            assert (report["trials"], report["known"], report["not_kept"]) == (8, 0, "")
            for use, tuned in zip(tasks_of(read_graph(str(model))).tasks, report["tasks"], strict=True):
                found = store.trials(use.task, detect(1))
                assert [r.verified for r in found].count(False) == tuned["trials"]
                assert chosen(use.task) is not None


# ---- killed ----------------------------------------------------------------------------------------------------------


def check_continued(path: Path, before: Sequence[Record]) -> None:
    """Tuning again begins with what is in the store, adds to it, and ends with a verdict."""
    with tuning(path, MATRICES, seed=1) as process:
        begin(process)
        told = ended(process)
    assert told[0] == f"known {len({r.schedule for r in before})}"
    assert told[-1].split() == ["tuned", str(TRIALS)]
    with Store.open(path) as store:
        assert store.integrity() == []
        after = store.trials(task_of(MATRICES), detect(1))
        assert keys(after[: len(before)]) == keys(before)
        assert len(after) == len(before) + TRIALS + 1
        check_verdict(store, task_of(MATRICES))


@pytest.mark.parametrize(("rounds", "seconds"), [(1, 0.0), (3, 0.03), (6, 0.1)])
def test_a_killed_search_loses_at_most_the_round_in_flight_and_can_be_continued(
    path: Path, rounds: int, seconds: float
) -> None:
    """It is killed so many seconds after so many rounds."""
    with tuning(path, MATRICES, ENDLESS) as process:
        begin(process)
        acknowledged = 0
        while acknowledged < rounds * BATCH:
            word, number = lines_of(process).readline().split()
            if word == "stored":
                acknowledged = int(number)
                assert rows(path, "trial") >= acknowledged
        time.sleep(seconds)
        acknowledged = [acknowledged, *(int(line.split()[1]) for line in killed(process))][-1]
    with Store.open(path) as store:
        assert store.integrity() == []
        before = store.trials(task_of(MATRICES), detect(1))
        assert (rows(path, "trial"), rows(path, "verdict")) == (len(before), 0)
    assert [(r.seed, r.number, r.verified) for r in before] == [(0, k + 1, False) for k in range(len(before))]
    assert len(before) in (acknowledged, acknowledged + BATCH)  # killed between the commit and the word of it
    check_continued(path, before)


@pytest.mark.parametrize("moment", ["duel", "proof", "verdict"])
def test_a_search_killed_before_its_verdict_leaves_its_trials_and_no_verdict(path: Path, moment: str) -> None:
    with tuning(path, MATRICES, waits_at=moment) as process:
        begin(process)
        assert "waiting\n" in lines_of(process)
        killed(process)
    with Store.open(path) as store:
        assert store.integrity() == []
        before = store.trials(task_of(MATRICES), detect(1))
        assert rows(path, "verdict") == 0
    assert [r.number for r in before if not r.verified] == list(range(1, TRIALS + 1))
    assert [r.verified for r in before].count(True) == (moment == "verdict")
    check_continued(path, before)
