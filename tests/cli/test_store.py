"""`stormdrop store` as a user meets it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stormdrop.cli.main import main
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.store.store import Store
from tests.support.records import (
    ELSEWHERE,
    HERE,
    failure,
    legal_records,
    make_records,
    make_verdict,
    small_task,
    timing,
)
from tests.support.tiny_onnx import conv

NAME = small_task().name
LOOKING = ["path", "size", "ls", "best", "donors"]
COMMANDS = [*LOOKING, "export", "import", "prune", "forget"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two tasks, both temperatures, failures, a verified winner and another machine."""
    path = tmp_path / "s.sqlite"
    with Store.open(path) as store:
        store.add(make_records(6) + make_records(2, result=failure()))
        store.add(make_records(3, cold=True) + make_records(1, cold=True, verified=True, result=timing(4e-4)))
        store.add(make_records(4, task=small_task(7)) + make_records(2, target=ELSEWHERE))
    return path


def run(*args: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["store", *map(str, args)], input=stdin)


def good(*args: object, stdin: bytes | None = None) -> str:
    done = run(*args, stdin=stdin)
    assert done.exit_code == 0, done.output
    return done.stdout


def failed(*args: object, code: int = 1) -> str:
    done = run(*args)
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert code == 2 or done.stderr.count("\n") == 1
    return done.stderr


# ---- looking ---------------------------------------------------------------------------------------------------------


def test_help_of_every_command_has_examples() -> None:
    for command in ([], *([c] for c in COMMANDS)):
        assert "Examples:" in good(*command, "--help")
    assert "store" in CliRunner().invoke(main, ["--help"]).stdout


def test_path_is_the_default_or_the_one_given(cache: Path, tmp_path: Path) -> None:
    assert good("path") == f"{cache / 'reservoir.sqlite'}\n"
    assert json.loads(good("path", "--json", "--store", tmp_path / "x")) == {
        "path": str(tmp_path / "x"),
        "exists": False,
    }
    assert not cache.exists()


def test_without_a_store_nothing_is_known_and_nothing_is_made(cache: Path) -> None:
    assert good("ls") == "nothing is known\n"
    assert json.loads(good("ls", "--json")) == {"tasks": []}
    assert json.loads(good("size", "--json"))["trials"] == 0
    assert good("export") == ""
    assert "0 trials" in good("prune", "--max-size", "1MB")
    assert "knows no such trials" in failed("best", NAME)
    assert not cache.exists()


def test_a_given_store_must_be_there(tmp_path: Path) -> None:
    for command in (["size"], ["ls"], ["best", "x"], ["export"], ["prune", "--max-size", "1"]):
        assert "there is no store" in failed(*command, "--store", tmp_path / "none.sqlite")


def test_ls_shows_what_was_decided(path: Path) -> None:
    first, second = make_records(2)
    other = make_records(1, task=small_task(7))[0]
    with Store.open(path) as store:
        store.add_verdicts([make_verdict(second, first), make_verdict(other)])
    lines = good("ls", "--store", path).splitlines()
    assert sum("duel, 2.00x" in line for line in lines) == 1
    assert sum("duel, incumbent stays" in line for line in lines) == 1
    tasks = json.loads(good("ls", "--store", path, "--json"))["tasks"]
    decided = [task["verdict"] for task in tasks if task["verdict"] is not None]
    assert [v["gain"] for v in decided] == [2.0, 1.0]
    good("prune", "--store", path, "--max-size", "1")
    left = json.loads(good("ls", "--store", path, "--json"))["tasks"]  # verdicts stay, and are still to be seen
    assert [(task["trials"], task["verdict"]["method"]) for task in left] == [(0, "duel"), (0, "duel")]


def test_ls_says_which_timings_are_of_an_earlier_version(path: Path) -> None:
    (record,), (other,) = make_records(1), make_records(1, task=small_task(7))
    with Store.open(path) as store:
        store.add_verdicts([replace(make_verdict(record), is_timing_old=True), make_verdict(other)])
    old, fresh = (line for line in good("ls", "--store", path).splitlines() if "incumbent stays" in line)
    assert "duel, incumbent stays, timing of an earlier version" in old
    assert "earlier version" not in fresh
    tasks = json.loads(good("ls", "--store", path, "--json"))["tasks"]
    assert [t["verdict"]["is_timing_old"] for t in tasks if t["verdict"] is not None] == [True, False]


def test_ls_has_one_line_for_each_task_machine_and_temperature(path: Path) -> None:
    lines = good("ls", "--store", path).splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("?: a single trial")
    titles = "task digest class target temperature trials failed best GFLOP/s verdict when"
    assert lines[0].split() == titles.split()
    warm, cold = (line for line in lines if HERE.key() in line and small_task().digest[:8] in line)
    assert warm.startswith(NAME)
    assert small_task().class_key[:8] in warm
    assert warm.split()[warm.split().index("warm") + 1 :][:5] == ["8", "2", "2.00", "ms", "?"]
    assert cold.split()[cold.split().index("cold") + 1 :][:5] == ["4", "0", "400", "µs", "0.3"]
    assert not any(line != line.rstrip() for line in lines)


def test_ls_as_json_and_filtered(path: Path) -> None:
    tasks = json.loads(good("ls", "--store", path, "--json"))["tasks"]
    assert len(tasks) == 4
    assert {t["name"] for t in tasks} == {NAME, small_task(7).name}
    cold = json.loads(good("ls", "--store", path, "--json", "--cold"))["tasks"]
    assert [(t["trials"], t["failed"], t["verified"], t["seconds"], t["temperature"]) for t in cold] == [
        (4, 0, True, 4e-4, "cold")
    ]
    assert len(json.loads(good("ls", "--store", path, "--json", "--warm"))["tasks"]) == 3
    other = json.loads(good("ls", "--store", path, "--json", "--machine", ELSEWHERE.key()))["tasks"]
    assert [t["target"] for t in other] == [ELSEWHERE.key()]


def test_size_counts_trials_and_tasks(path: Path) -> None:
    found = json.loads(good("size", "--store", path, "--json"))
    assert (found["trials"], found["tasks"]) == (18, 2)
    assert found["file_bytes"] == path.stat().st_size
    assert 0 < found["used_bytes"] <= found["file_bytes"]
    text = good("size", "--store", path)
    assert "18 trials of 2 tasks" in text
    assert str(path) in text


def test_best_prints_the_schedule_and_its_figures(path: Path) -> None:
    text = good("best", NAME, "--store", path, "--cold")
    best = make_records(1, cold=True)[0].schedule
    figures = "schedule", str(best.steps[0]), "400 µs", "compared with the reference"
    for part in (NAME, HERE.key(), "cold", "tiny.onnx", *figures):
        assert part in text
    assert good("best", small_task().digest[:6], "--store", path, "--cold") == text
    assert good("best", NAME, "--store", path).count("\nschedule\n") == 3


def test_best_as_json_holds_a_schedule_that_can_be_replayed(path: Path) -> None:
    from stormdrop.space.schedule import Schedule

    (found,) = json.loads(good("best", NAME, "--store", path, "--json", "--cold"))["best"]
    assert (found["seconds"], found["verified"], found["temperature"]) == (4e-4, True, "cold")
    assert Schedule.from_json(found["schedule"]) == make_records(1, cold=True)[0].schedule
    assert found["gflops"] == pytest.approx(small_task().flops / 4e-4 / 1e9)


def decided_store(path: Path) -> Path:
    """A store with a verdict for a task, one of a model for the same task, and one for another task."""
    with Store.open(path) as store:
        records, others = make_records(4), make_records(2, task=small_task(7))
        own = make_verdict(records[1], against=records[0])
        store.add(records + others)
        store.add_verdicts([own, replace(own, model="m" * 8), make_verdict(others[0])])
    return path


def test_best_shows_what_was_decided(tmp_path: Path) -> None:
    path, (record, *_) = decided_store(tmp_path / "s.sqlite"), make_records(4)
    verdict = make_verdict(make_records(4)[1], against=record)
    text = good("best", NAME, "--store", path)
    for part in ("verdict", verdict.method, verdict.proof):
        assert part in text
    (found,) = json.loads(good("best", NAME, "--store", path, "--json"))["best"]
    assert found["verdict"]["schedule"] == verdict.schedule.to_json()
    assert found["verdict"]["rounds"] == verdict.rounds


def test_what_was_decided_for_a_task_is_forgotten_on_request(tmp_path: Path) -> None:
    path = decided_store(tmp_path / "s.sqlite")
    assert "2 verdicts" in good("forget", NAME, "--store", path)
    with Store.open(path) as store:
        assert store.verdict(small_task(), HERE) is None
        assert store.verdict(small_task(), HERE, model="m" * 8) is None
        assert store.verdict(small_task(7), HERE) is not None
        assert store.known(small_task(), HERE) == 4
    assert "none" in good("best", NAME, "--store", path)
    assert json.loads(good("forget", NAME, "--trials", "--store", path, "--json")) == {"verdicts": 0, "trials": 4}
    assert "did you mean" in failed("forget", NAME, "--store", path)


def test_ls_of_a_model_lists_what_was_measured_while_it_was_tuned(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store.open(path) as store:
        store.add(make_records(2) + [replace(r, model="other") for r in make_records(2, task=small_task(7))])
    (task,) = json.loads(good("ls", "--model", "other", "--store", path, "--json"))["tasks"]
    assert task["digest"] == small_task(7).digest
    assert "tiny.onnx" in failed("ls", "--model", "nosuch", "--store", path)


def test_best_of_an_unknown_task_is_one_line_with_a_suggestion(path: Path) -> None:
    assert f"did you mean '{NAME}'" in failed("best", NAME + "0", "--store", path)
    assert "store ls" in failed("best", "something else", "--store", path)


def test_best_of_what_never_ran_says_so(path: Path) -> None:
    with Store.open(path) as store:
        store.add(make_records(3, task=small_task(11), result=failure()))
    assert "could be timed" in failed("best", small_task(11).name, "--store", path)


def test_names_are_printed_as_text(tmp_path: Path) -> None:
    nasty = "[red]x[/]\x1b[2J\r\nfake  line \u202e\x07" + "y" * 100
    path = tmp_path / "s.sqlite"
    with Store.open(path) as store:
        task = Task(variants=small_task().variants, name=nasty)
        store.add([replace(r, strategy="\x1b[31m", model=nasty) for r in make_records(2, task=task)])
    for text in (good("ls", "--store", path), good("best", small_task().digest[:8], "--store", path)):
        assert "[red]x[/]\\x1b[2J\\r\\nfake" in text
        assert not {"\x1b", "\r", "\u202e", "\x07"} & set(text)
    assert len(good("ls", "--store", path).splitlines()) == 3
    assert json.loads(good("ls", "--store", path, "--json"))["tasks"][0]["name"] == nasty


# ---- files that are no stores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["size"], ["ls"], ["best", "x"], ["export"], ["import", "-"], ["prune", "--max-size", "1"]]
)
def test_a_file_that_is_no_store_is_one_line(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious\n" * 100)
    assert "is not a store" in failed(*command, "--store", path)
    assert path.read_text() == "precious\n" * 100


def test_a_place_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("import", "-", "--store", tmp_path / "file" / "s.sqlite", stdin=b"")
    assert done.exit_code == 1
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["frobnicate"],
        ["best"],
        ["import"],
        ["import", "no such file"],
        ["prune"],
        ["prune", "--max-size", "many"],
        ["prune", "--older-than", "30"],
        ["prune", "--max-size", "1", "--winners"],
        ["export", "--json"],
        ["ls", "--loud"],
        ["prune", "--max-size", "-5"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


# ---- moving ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """What this very machine measured, as a file."""
    file = tmp_path / "trials.jsonl"
    with Store.in_memory() as store, file.open("w") as out:
        store.add(legal_records(9, target=detect()))
        store.export(out)
    return file


def test_what_is_imported_is_exported_again(lines: Path, tmp_path: Path, cache: Path) -> None:
    assert good("import", lines) == "9 kept, 0 known already, 0 refused\n"
    assert (cache / "reservoir.sqlite").exists()
    assert good("import", lines) == "0 kept, 9 known already, 0 refused\n"
    assert good("export") == lines.read_text()
    done = run("export", tmp_path / "again.jsonl")
    assert (done.stdout, done.stderr) == ("", "9 trials exported\n")
    assert (tmp_path / "again.jsonl").read_text() == lines.read_text()
    report = json.loads(good("export", tmp_path / "again.jsonl", "--json", "--verified"))
    assert report == {"exported": 0, "verdicts": 0}
    assert (tmp_path / "again.jsonl").read_text() == ""


def test_verdicts_travel_with_the_trials_and_are_counted(tmp_path: Path) -> None:
    here, file, first = detect(), tmp_path / "all.jsonl", tmp_path / "first.sqlite"
    winner, default = legal_records(2, target=here)
    with Store.open(first) as store:
        store.add([winner, default])
        store.add_verdicts([make_verdict(winner, default)])
    done = run("export", file, "--store", first)
    assert (done.stdout, done.stderr) == ("", "2 trials and 1 verdict exported\n")
    assert json.loads(good("export", file, "--store", first, "--json")) == {"exported": 3, "verdicts": 1}
    assert good("import", file) == "3 kept (1 verdict), 0 known already, 0 refused\n"
    assert good("import", file) == "0 kept, 3 known already, 0 refused\n"
    assert good("export") == file.read_text()
    assert [task["verdict"] for task in json.loads(good("ls", "--json"))["tasks"]] == [None]  # nothing is decided here


def test_a_forged_verdict_is_refused_with_its_line(tmp_path: Path) -> None:
    (record,) = legal_records(1, target=detect())
    with Store.in_memory() as store, (tmp_path / "forged.jsonl").open("w") as out:
        store.add_verdicts([replace(make_verdict(record), seconds=1e-9)])
        store.export(out)
    done = run("import", tmp_path / "forged.jsonl")
    assert (done.exit_code, done.stdout) == (1, "0 kept, 0 known already, 1 refused\n")
    assert done.stderr.startswith("line 1: 1e-09 seconds are fewer than the")


def test_refused_lines_are_named_and_the_others_kept(lines: Path) -> None:
    content = lines.read_bytes().splitlines(keepends=True)
    content[3] = b'{"format": 1, "\\u001b[31m": \n'
    content[5] = content[5].replace(b'"tile",1', b'"no rule",1')
    done = run("import", "-", stdin=b"".join(content))
    assert done.exit_code == 1
    assert done.stdout == "7 kept, 0 known already, 2 refused\n"
    first, second = done.stderr.splitlines()
    assert first.startswith("line 4: not JSON")
    assert second.startswith("line 6: schedule: 'no rule'")
    found = run("import", "-", "--json", stdin=b"".join(content))
    assert found.exit_code == 1
    report = json.loads(found.stdout)
    assert (report["kept"], report["duplicates"], report["refusals"]) == (0, 7, 2)
    assert [r["line"] for r in report["refused"]] == [4, 6]


def test_lines_of_an_unknown_rule_are_kept_and_the_rule_is_named(lines: Path) -> None:
    done = run("import", "-", stdin=lines.read_bytes().replace(b'"tile",1', b'"tile",9'))
    assert (done.exit_code, done.stdout) == (0, "9 kept, 0 known already, 0 refused\n")
    assert "not known here are skipped: tile 9" in done.stderr


def test_another_cpus_lines_need_to_be_asked_for() -> None:
    file = io.StringIO()
    with Store.in_memory() as store:
        store.add(legal_records(30, target=replace(ELSEWHERE, cpu="z80")))
        store.export(file)
    content = file.getvalue().encode()
    done = run("import", "-", stdin=content)
    assert done.exit_code == 1
    assert "measured on another CPU, z80" in done.stderr
    assert done.stderr.splitlines()[-1] == "and 10 more"
    assert good("import", "-", "--foreign", stdin=content).startswith("30 kept")


def test_an_export_that_cannot_be_written_is_one_line(path: Path, tmp_path: Path) -> None:
    assert "cannot be written" in failed("export", tmp_path / "no" / "folder" / "x.jsonl", "--store", path)


# ---- tidying ---------------------------------------------------------------------------------------------------------


def test_prune_by_size_and_by_age(path: Path) -> None:
    report = json.loads(good("prune", "--older-than", "1d", "--store", path, "--json"))
    assert report["removed"] == 17
    assert "1 trial forgotten" in good("prune", "--older-than", "1w", "--winners", "--store", path)
    with Store.open(path) as store:
        store.add(make_records(500))
    used = json.loads(good("size", "--store", path, "--json"))["used_bytes"]
    report = json.loads(good("prune", "--max-size", f"{used // 2048}KiB", "--store", path, "--json"))
    assert 0 < report["removed"] < 500
    assert report["after_bytes"] <= used // 2
    assert path.stat().st_size <= 0.6 * used


def test_the_command_works_as_a_process_with_a_closed_pipe(path: Path) -> None:
    command = f"{sys.executable} -m stormdrop store export --store {path} | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=os.environ, timeout=60)
    assert done.stdout == '{"format":'
    assert "Traceback" not in done.stderr


# ---- donors ----------------------------------------------------------------------------------------------------------


def wider(tmp_path: Path, path: Path) -> tuple[Path, Task]:
    """A model, and the convolution of another one that the store has tuned, which has more channels."""
    (tmp_path / "other").mkdir()
    other = next(u.task for u in tasks_of(read_graph(conv(tmp_path / "other", 12))).tasks if "Conv" in u.task.name)
    with Store.open(path) as store:
        winner, loser = legal_records(2, other, detect(1))
        store.add([replace(winner, verified=True, model="wider"), replace(loser, model="wider")])
        store.add_verdicts([make_verdict(winner, loser)])
    return conv(tmp_path, 8), other


def test_donors_shows_whose_schedules_would_help_a_model(tmp_path: Path, path: Path) -> None:
    """The convolution of another model, which has more channels, helps this one's."""
    model, other = wider(tmp_path, path)
    asked = ("donors", model, "--store", path, "--threads", 1)
    assert "of wider" in good(*asked)
    helped = [task for task in json.loads(good(*asked, "--json"))["tasks"] if task["donors"]]
    assert [task["label"] for task in helped] == [other.name]
    (donor,) = helped[0]["donors"]
    assert (donor["key"], donor["model"], donor["equal"]) == ("class", "wider", True)
    assert donor["distance"] > 0.5
    assert "models are: tiny.onnx, wider" in failed(*asked, "--donor", "nobody")
    assert "nothing of a model or machine 'nobody'" in run(*asked, "--donor", "wider", "--donor", "nobody").stderr


def test_donors_lists_classes_and_the_models_that_would_help(tmp_path: Path, path: Path) -> None:
    model, other = wider(tmp_path, path)
    report = json.loads(good("donors", model, "--store", path, "--threads", 1, "--json"))
    (helped,) = [row for row in report["classes"] if row["donors"]]
    assert helped["label"] == other.name
    (chosen,) = report["models"]
    assert (chosen["name"], chosen["schedules"]) == ("wider", 1)
    assert chosen["score"] == pytest.approx(helped["share"])
    shown = good("donors", model, "--store", path, "--threads", 1)
    assert "donor models" in shown
    assert f"{other.name} of wider" in shown
