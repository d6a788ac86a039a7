"""The command line as a user meets it: what is printed where, and with which exit code."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import stormdrop
from stormdrop.base.errors import RunError, UserError
from stormdrop.cli.main import main
from stormdrop.cli.options import SEARCHES, seconds_of
from stormdrop.device.cpus import available_cpus
from stormdrop.store.store import Store
from tests.support.records import make_records

TINY = ["GMM", "1", "13", "17", "11"]


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def environment(cache: Path | str, **more: str) -> dict[str, str]:
    return {**os.environ, "STORMDROP_CACHE_DIR": str(cache), **more}


def stormdrop_cli(*args: str, cache: Path | str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stormdrop", *args]
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment(cache, **more), timeout=120
    )


def test_help_of_every_command_has_examples() -> None:
    for command in ([], ["op"], ["peak"], ["doctor"]):
        done = CliRunner().invoke(main, [*command, "--help"])
        assert done.exit_code == 0
        assert "Examples:" in done.stdout
        assert done.stderr == ""


def test_help_lists_every_command_models_first_in_eighty_columns() -> None:
    text = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and not line.startswith("    ")]
    assert set(main.commands) <= set(listed)
    assert text.index("Models:") < text.index("Operators:")
    for command in ([], ["info"], ["compile"], ["run"], ["check"], ["bench"], ["show"], ["tune"]):
        text = CliRunner().invoke(main, [*command, "--help"], terminal_width=80).stdout
        assert max(map(len, text.splitlines())) <= 80


def test_help_of_op_lists_every_operator() -> None:
    from stormdrop.operators.catalogue import OPERATORS

    done = CliRunner().invoke(main, ["op", "--help"])
    for operator in OPERATORS.values():
        assert operator.usage in next(
            line for line in done.stdout.splitlines() if line.split()[:2] == [operator.alias, operator.name]
        )


def test_help_imports_neither_llvm_nor_the_space(cache: Path) -> None:
    script = (
        "import sys; from stormdrop.cli.main import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(cache))
    loaded = done.stdout.split()
    assert "stormdrop.cli.main" in loaded
    late = {
        "llvmlite",
        "rich",
        "stormdrop.space.sketch",
        "stormdrop.codegen.llvm",
        "stormdrop.cli.store",
        "stormdrop.cli.zoo",
    }
    assert not late & set(loaded)


def test_version(cache: Path) -> None:
    done = stormdrop_cli("--version", cache=cache)
    assert done.returncode == 0
    assert stormdrop.__version__ in done.stdout


SEARCH_KEYS = [
    "strategy",
    "seed",
    "stopped",
    "verified",
    "store",
    "not_kept",
    "trials",
    "failed",
    "failures",
    "tuning_seconds",
    "median_build_seconds",
    "candidates_per_second",
    "progress",
    "best",
]


def check_search(search: dict[str, Any], peak_gflops: float) -> None:
    assert list(search["best"]) == ["seconds", "gflops", "executed_gflops", "share_of_peak", "schedule"]
    best, flops = search["best"], 2 * 13 * 17 * 11
    assert best["gflops"] == pytest.approx(flops / best["seconds"] / 1e9)
    assert best["share_of_peak"] == pytest.approx(best["gflops"] / peak_gflops)
    assert best["executed_gflops"] >= best["gflops"]
    assert sum(search["failures"].values()) == search["failed"]
    assert search["candidates_per_second"] > 0
    numbers, elapsed, seconds = zip(*search["progress"], strict=True)
    assert list(numbers) == sorted(set(numbers))
    assert numbers[-1] <= search["trials"]
    assert list(elapsed) == sorted(elapsed)
    assert list(seconds) == sorted(seconds, reverse=True)
    stormdrop.Schedule.from_json(best["schedule"])


def check_schema(report: dict[str, Any]) -> None:
    assert list(report) == ["op", "args", "dtype", "threads", "peak_gflops", *SEARCH_KEYS]
    check_search(report, report["peak_gflops"])


@pytest.mark.parametrize(("dtype", "product"), [("f32", TINY), ("bf16", ["matmul", "13", "17", "11"])])
def test_json_of_the_default_schedule_has_the_short_name(cache: Path, dtype: str, product: list[str]) -> None:
    done = stormdrop_cli("op", *product, "--dtype", dtype, "--untuned", "--json", "--threads", "1", cache=cache)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    check_schema(report)
    assert (report["op"], report["args"], report["dtype"], report["threads"]) == ("GMM", [1, 13, 17, 11], dtype, 1)
    assert (report["trials"], report["failed"], report["strategy"], report["store"]) == (1, 0, "default", None)
    assert report["verified"]


def test_a_search_is_kept_and_the_next_begins_from_it(cache: Path) -> None:
    command = ["op", *TINY, "--search", "random", "--trials", "20", "--seed", "3", "--json", "--threads", "1"]
    done = stormdrop_cli(*command, cache=cache)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    check_schema(report)
    assert (report["trials"], report["strategy"], report["seed"], report["stopped"]) == (20, "random", 3, "trials")
    assert report["verified"]
    assert Path(report["store"]).is_relative_to(cache)
    assert "is in the store" not in done.stderr
    assert "20/20 measured" in done.stderr
    assert "\x1b" not in done.stderr
    again = stormdrop_cli(*command, cache=cache)
    assert again.stderr.startswith("GMM 1 13 17 11 is in the store, at ")
    assert "; the search begins from it" in again.stderr


def test_a_search_without_a_store_leaves_a_plot_and_a_log_only(cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot, log = tmp_path / "progress.png", tmp_path / "tune.log"
    done = stormdrop_cli(
        "op", *TINY, "--trials", "8", "--plot", str(plot), "--log-file", str(log), "--store", "none", cache=cache
    )
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert str(plot) in done.stderr
    assert "stormdrop.tune: trial 8 " in log.read_text()
    assert not list(cache.glob("*.sqlite*"))
    assert "stored" not in done.stdout
    for part in ("storm+droplet, seed 0: 8 trials", "of the final speed, 90% at trial", "builders"):
        assert part in done.stdout


def test_text_report_names_threads_schedule_loops_and_share_of_peak(cache: Path) -> None:
    done = stormdrop_cli("op", *TINY, "--untuned", "--threads", "1", cache=cache)
    assert done.returncode == 0, done.stderr
    for part in ("GMM 1 13 17 11", "1 thread", "schedule", "loop program", "nominal", "executed", "of peak"):
        assert part in done.stdout
    assert "\x1b" not in done.stdout
    assert not any(line != line.rstrip() for line in done.stdout.splitlines())


def test_show_prints_what_is_asked(cache: Path) -> None:
    shown = [part for name in ("sketches", "llvm", "asm") for part in ("--show", name)]
    done = stormdrop_cli("op", *TINY, "--untuned", *shown, cache=cache)
    assert done.returncode == 0, done.stderr
    for part in ("derivation", "define void @kernel", "kernel:"):
        assert part in done.stdout
    assert "loop program" not in done.stdout


def wrong_usage(*args: str) -> str:
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert isinstance(done.exception, SystemExit)
    return done.stderr


def test_an_unknown_operator_is_wrong_usage_and_gets_a_suggestion() -> None:
    assert "did you mean C2D?" in wrong_usage("op", "C2E", "1")
    assert "did you mean softmax?" in wrong_usage("op", "soft-max", "1")


def test_a_wrong_number_of_arguments_is_wrong_usage_and_says_which_are_needed() -> None:
    assert "batch h w in out kernel stride pad" in wrong_usage("op", "C2D", "1", "14")


def test_an_unknown_search_is_wrong_usage_and_names_those_there_are() -> None:
    told = wrong_usage("op", *TINY, "--search", "luck")
    assert all(name in told for name in ("luck", "random", "storm", "droplet", "storm+droplet"))


def test_a_time_says_how_it_may_be_written() -> None:
    assert "write 10, 30s, 5m or 1h" in wrong_usage("op", *TINY, "--time", "soon")


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("250ms", 0.25), (" 5 M ", 300)]
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "args",
    [
        ["op"],
        ["op", "GMM", "1", "2", "x", "4"],
        ["op", "GMM", "1", "0", "4", "4"],
        ["op", *TINY, "--show", "bytes"],
        ["op", *TINY, "--trials", "0"],
        ["op", *TINY, "--threads", "0"],
        ["op", *TINY, "--search", "luck"],
        ["op", *TINY, "--json", "--show", "asm"],
        ["frobnicate"],
        ["peak", "--loud"],
        ["op", *TINY, "--trials", "-1"],
        ["op", *TINY, "--time", "-5"],
        ["op", *TINY, "--time", "0"],
        ["op", *TINY, "--time", "soon"],
        ["op", *TINY, "--time", "5 years"],
        ["op", *TINY, "--search", "storm", "--search", "storm"],
        ["op", *TINY, "--untuned", "--trials", "8"],
        ["op", *TINY, "--untuned", "--search", "storm"],
        ["op", *TINY, "--untuned", "--plot", "x.png"],
        ["op", *TINY, "--dtype", "f16"],
        ["op", "SFM", "4", "4", "--dtype", "bf16"],
        ["op", *TINY, "--seed", "-1"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    wrong_usage(*args)


def test_markup_in_a_name_is_printed_as_it_is_and_control_characters_are_not() -> None:
    told = wrong_usage("op", "[red]x[/]\x1b[31m", "1")
    assert "[red]x[/]" in told
    assert "\x1b" not in told


@pytest.mark.parametrize("option", ["--plot", "--log-file"])
def test_a_file_that_cannot_be_written_ends_it_beforehand(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stormdrop.device.host.detect", None)  # whoever gets as far as this fails
    done = CliRunner().invoke(main, ["op", *TINY, option, str(tmp_path / "nowhere" / "x.png")])
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_a_plot_of_an_unknown_kind_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stormdrop.device.host.detect", None)
    done = CliRunner().invoke(main, ["op", *TINY, "--plot", str(tmp_path / "x.bmp")])
    assert done.exit_code == 1
    assert ".png, .svg, .pdf" in done.stderr


@pytest.mark.parametrize(
    ("before", "behind", "level"),
    [
        ([], [], logging.WARNING),
        (["-v"], [], logging.INFO),
        ([], ["-v"], logging.INFO),
        (["-v"], ["-v"], logging.DEBUG),
        ([], ["-vv"], logging.DEBUG),
    ],
)
def test_log_options_may_stand_before_and_behind_the_command(
    before: list[str], behind: list[str], level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []

    def measured(plan: object, console: object, quiet: bool) -> None:
        seen.append((logging.getLogger("stormdrop").level, quiet))
        raise UserError("enough")

    monkeypatch.setattr("stormdrop.cli.op.measured", measured)
    done = CliRunner().invoke(main, [*before, "op", *TINY, *behind, "--store", "none"])
    assert (done.exit_code, done.stderr) == (1, "Error: enough\n")
    assert seen == [(level, level < logging.WARNING)]
    assert logging.getLogger("stormdrop").level == logging.NOTSET  # nothing is left behind


def test_ctrl_c_where_nobody_waits_for_it_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stormdrop.doctor.doctor.diagnose", interrupted)
    done = CliRunner().invoke(main, ["doctor"])
    assert (done.exit_code, done.stderr) == (130, "aborted\n")


def test_an_error_message_is_one_harmless_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> None:
        raise RunError("first \x1b[31m\n  second [red]")

    monkeypatch.setattr("stormdrop.doctor.doctor.diagnose", failed)
    done = CliRunner().invoke(main, ["doctor"])
    assert (done.exit_code, done.stderr) == (1, "Error: first \\x1b[31m second [red]\n")


def test_searches_are_those_that_exist() -> None:
    from stormdrop.tuning.strategies import STRATEGIES

    assert tuple(STRATEGIES) == SEARCHES


def test_a_bad_environment_is_one_clear_line(cache: Path) -> None:
    done = stormdrop_cli("op", *TINY, "--untuned", cache=cache, STORMDROP_THREADS="many")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "STORMDROP_THREADS" in done.stderr


def running(cache: Path, *args: str) -> subprocess.Popen[str]:
    """A search without end, which has measured something."""
    command = [
        sys.executable,
        "-m",
        "stormdrop",
        "op",
        *TINY,
        "--search",
        "random",
        "--trials",
        "100000",
        "--threads",
        "1",
        *args,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(cache)
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "/100000 measured" in line:
            break
    return process


def test_an_interrupted_search_reports_the_best_so_far(cache: Path) -> None:
    process = running(cache, "--json")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    report = json.loads(out)
    check_schema(report)
    assert report["stopped"] == "interrupted"
    assert "stopping: the best few" in err
    assert "interrupted after" in err


def test_a_second_interrupt_aborts(cache: Path) -> None:
    process = running(cache)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if "stopping: the best few" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, "Traceback" in err) == ("", False)
    assert "aborted" in err


def test_doctor_is_content_and_says_how_many_threads(cache: Path) -> None:
    done = stormdrop_cli("doctor", "--threads", "1", cache=cache)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything works, with 1 thread" in done.stdout
    report = json.loads(stormdrop_cli("doctor", "--json", cache=cache).stdout)
    assert report["ok"]
    names = [check["name"] for check in report["checks"]]
    assert {
        "python",
        "numpy",
        "llvmlite",
        "threads",
        "cpu",
        "cache",
        "store",
        "kernel in a worker",
        "kernel in this process",
    } <= set(names)


def test_doctor_names_an_unwritable_cache_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = stormdrop_cli("doctor", cache=tmp_path / "file" / "cache")
    assert done.returncode == 1
    assert "is not writable" in done.stdout
    assert "STORMDROP_CACHE_DIR" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("more", [(), ("--untuned",)])
def test_an_operator_larger_than_memory_is_refused_at_once(cache: Path, more: tuple[str, ...]) -> None:
    done = stormdrop_cli("op", "GMM", "1", "999999999", "999999999", "999999999", *more, cache=cache)
    assert (done.returncode, done.stdout) == (1, "")
    assert "of memory" in done.stderr.splitlines()[-1]
    assert "measured" not in done.stderr


@pytest.mark.parametrize("kept", [100, 40_000])
def test_doctor_names_a_damaged_store(kept: int, cache: Path) -> None:
    """Damaged at its beginning, and where only a look at every page finds it."""
    path = cache / "reservoir.sqlite"
    with Store.open(path) as store:
        store.add(make_records(20))
    content = path.read_bytes()
    path.write_bytes(content[:kept] + b"\xff" * (len(content) - kept))
    done = stormdrop_cli("doctor", "--json", cache=cache)
    assert done.returncode == 1
    (failed,) = [check for check in json.loads(done.stdout)["checks"] if not check["ok"]]
    assert failed["name"] == "store"
    assert "is damaged" in failed["detail"]
    assert "a new store begins" in failed["advice"]


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


def test_more_threads_than_cpus_are_warned_of_on_stderr(cache: Path) -> None:
    threads = available_cpus() + 1
    done = stormdrop_cli("op", *TINY, "--untuned", "--threads", str(threads), "--json", cache=cache)
    assert f"{threads} threads on " in done.stderr
    assert f"{threads} threads on " not in done.stdout
