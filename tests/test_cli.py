"""The command line as a user meets it: what is printed where, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stormdrop

TINY = ["GMM", "1", "13", "17", "11"]


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def environment(cache: Path | str, **more: str) -> dict[str, str]:
    return {**os.environ, "STORMDROP_CACHE_DIR": str(cache), **more}


def stormdrop_cli(*args: str, cache: Path | str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stormdrop.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment(cache, **more), timeout=120)


def test_help_of_every_command_has_examples(cache: Path) -> None:
    for command in ([], ["op"], ["peak"], ["doctor"]):
        done = stormdrop_cli(*command, "--help", cache=cache)
        assert done.returncode == 0
        assert "Examples:" in done.stdout
        assert done.stderr == ""


def test_help_of_op_lists_every_operator(cache: Path) -> None:
    from stormdrop.ops.catalogue import OPERATORS

    done = stormdrop_cli("op", "--help", cache=cache)
    for operator in OPERATORS.values():
        assert operator.name in done.stdout
        assert " ".join(operator.arguments) in done.stdout


def test_help_imports_neither_llvm_nor_the_space(cache: Path) -> None:
    script = "import sys; from stormdrop.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(cache))
    loaded = done.stdout.split()
    assert "stormdrop.cli" in loaded
    assert not {"llvmlite", "rich", "stormdrop.space.sketch", "stormdrop.codegen.llvm"} & set(loaded)


def test_version(cache: Path) -> None:
    done = stormdrop_cli("--version", cache=cache)
    assert done.returncode == 0
    assert stormdrop.__version__ in done.stdout


def check_schema(report: dict[str, Any]) -> None:
    top = ["op", "args", "threads", "peak_gflops", "trials", "failed", "tuning_seconds", "median_build_seconds", "best"]
    assert list(report) == top
    assert list(report["best"]) == ["seconds", "gflops", "executed_gflops", "share_of_peak", "schedule"]
    best, flops = report["best"], 2 * 13 * 17 * 11
    assert best["gflops"] == pytest.approx(flops / best["seconds"] / 1e9)
    assert best["share_of_peak"] == pytest.approx(best["gflops"] / report["peak_gflops"])
    assert best["executed_gflops"] >= best["gflops"]
    stormdrop.Schedule.from_json(best["schedule"])


def test_json_of_the_default_schedule(cache: Path) -> None:
    done = stormdrop_cli("op", *TINY, "--default", "--json", "--threads", "1", cache=cache)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    check_schema(report)
    assert (report["op"], report["args"], report["threads"]) == ("GMM", [1, 13, 17, 11], 1)
    assert (report["trials"], report["failed"]) == (1, 0)


def test_json_of_a_search_with_progress_on_stderr(cache: Path) -> None:
    done = stormdrop_cli("op", *TINY, "--search", "random", "--trials", "20", "--seed", "3", "--json", cache=cache)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    check_schema(report)
    assert (report["trials"], report["failed"]) == (20, 0)
    assert "16/20 measured" in done.stderr
    assert "\x1b" not in done.stderr


def test_text_report_names_threads_schedule_loops_and_share_of_peak(cache: Path) -> None:
    done = stormdrop_cli("op", *TINY, "--default", "--threads", "1", cache=cache)
    assert done.returncode == 0, done.stderr
    for part in ("GMM 1 13 17 11", "1 thread", "schedule", "loop program", "nominal", "executed", "of peak"):
        assert part in done.stdout
    assert "\x1b" not in done.stdout
    assert not any(line != line.rstrip() for line in done.stdout.splitlines())


def test_show_prints_what_is_asked(cache: Path) -> None:
    shown = [part for name in ("sketches", "llvm", "asm") for part in ("--show", name)]
    done = stormdrop_cli("op", *TINY, "--default", *shown, cache=cache)
    assert done.returncode == 0, done.stderr
    for part in ("derivation", "define void @kernel", "kernel:"):
        assert part in done.stdout
    assert "loop program" not in done.stdout


def wrong_usage(*args: str, cache: Path) -> str:
    done = stormdrop_cli(*args, cache=cache)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_an_unknown_operator_is_wrong_usage_and_gets_a_suggestion(cache: Path) -> None:
    assert "did you mean C2D?" in wrong_usage("op", "C2E", "1", cache=cache)


def test_a_wrong_number_of_arguments_is_wrong_usage_and_says_which_are_needed(cache: Path) -> None:
    assert "batch h w in out kernel stride pad" in wrong_usage("op", "C2D", "1", "14", cache=cache)


@pytest.mark.parametrize(
    "args",
    [
        ["op"], ["op", "GMM", "1", "2", "x", "4"], ["op", "GMM", "1", "0", "4", "4"], ["op", *TINY, "--show", "bytes"],
        ["op", *TINY, "--trials", "0"], ["op", *TINY, "--threads", "0"], ["op", *TINY, "--search", "luck"],
        ["op", *TINY, "--json", "--show", "asm"], ["frobnicate"], ["peak", "--loud"],
    ],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(args: list[str], cache: Path) -> None:
    wrong_usage(*args, cache=cache)


def test_markup_in_a_name_is_printed_as_it_is(cache: Path) -> None:
    assert "[red]x[/]" in wrong_usage("op", "[red]x[/]", "1", cache=cache)


def test_a_bad_environment_is_one_clear_line(cache: Path) -> None:
    done = stormdrop_cli("op", *TINY, "--default", cache=cache, STORMDROP_THREADS="many")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "STORMDROP_THREADS" in done.stderr


def test_an_interrupted_search_reports_the_best_so_far(cache: Path) -> None:
    command = [sys.executable, "-m", "stormdrop.cli", "op", *TINY, "--trials", "100000", "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(cache))
    assert running.stderr is not None
    for line in running.stderr:
        if "48/" in line:
            break
    time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    report = json.loads(out)
    check_schema(report)
    assert report["trials"] >= 48
    assert "interrupted" in err


def test_doctor_is_content_and_says_how_many_threads(cache: Path) -> None:
    done = stormdrop_cli("doctor", "--threads", "1", cache=cache)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything works, with 1 thread" in done.stdout
    report = json.loads(stormdrop_cli("doctor", "--json", cache=cache).stdout)
    assert report["ok"]
    names = [check["name"] for check in report["checks"]]
    assert {"python", "numpy", "llvmlite", "threads", "cpu", "cache", "kernel in a worker", "kernel in this process"} <= set(names)


def test_doctor_names_an_unwritable_cache_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = stormdrop_cli("doctor", cache=tmp_path / "file" / "cache")
    assert done.returncode == 1
    assert "is not writable" in done.stdout
    assert "STORMDROP_CACHE_DIR" in done.stdout
    assert "Traceback" not in done.stderr


def test_doctor_names_a_bad_thread_count(cache: Path) -> None:
    done = stormdrop_cli("doctor", "--json", cache=cache, STORMDROP_THREADS="0")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert [check["name"] for check in report["checks"] if not check["ok"]] == ["threads"]


def test_peak_is_measured_once_and_kept(cache: Path) -> None:
    first = stormdrop_cli("peak", "--json", "--threads", "1", cache=cache)
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    assert report["threads"] == 1
    assert report["gflops"] > 0
    assert {row["level"] for row in report["bandwidths"]} == {"L1", "L2", "L3", "DRAM"}
    assert stormdrop_cli("peak", "--json", "--threads", "1", cache=cache).stdout == first.stdout
    assert "1 thread" in stormdrop_cli("peak", "--threads", "1", cache=cache).stdout
