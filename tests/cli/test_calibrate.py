"""`stormdrop calibrate` as a user meets it, from an empty cache directory on; `stormdrop doctor` says what is used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stormdrop.cli.main import main
from stormdrop.device import peak
from stormdrop.device.calibration import PEAKS, identity, load_peak
from stormdrop.device.host import detect, nominal
from stormdrop.doctor import calibrate as driver
from stormdrop.store.store import Store, default_path
from stormdrop.target.coefficients import CPU_COEFFICIENTS, FITTED
from stormdrop.target.cpu import Cpu
from stormdrop.target.machine import LEVELS, Bandwidth, Peak
from tests.doctor.test_calibrate import SLOW, measured, measured_peak
from tests.support.command import refusal
from tests.support.tiny_onnx import conv, reshaped

KEYS = ["target", "rates", "coefficients", "fit", "told", "models"]
RATES = ["peak_gflops", "l2_gbs", "l3_gbs", "dram_gbs"]
FIT_KEYS = ["programs", "tasks", "error_before", "error_after", "regret_before", "regret_after"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(folder))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    monkeypatch.delenv("COLUMNS", raising=False)  # tests in several processes have it
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are measured, but too briefly to be right."""
    monkeypatch.setattr(peak, "_STREAM_SECONDS", 0.0)
    monkeypatch.setattr(peak, "_BYTES_PER_TIMING", 1 << 20)
    monkeypatch.setattr(peak, "_SHORT_SECONDS", 1e-5)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rate is measured or kept."""
    monkeypatch.setattr(driver, "measure_peak", measured_peak)


def made_up(target: Cpu) -> Peak:
    rows = [Bandwidth(level, n, 1024, 123.4, 99.0) for n in dict.fromkeys((1, target.threads)) for level in LEVELS]
    return Peak(identity(target), target.threads, 111.1, 111.1, tuple(rows))


def ran(*args: object) -> Result:
    return CliRunner().invoke(main, ["calibrate", *map(str, args)])


def told(*args: object) -> Any:
    done = ran(*args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def text(*args: object) -> str:
    done = ran(*args)
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    return done.stdout


def row(table: str, name: str) -> list[str]:
    """The cells of the one line that begins with a name."""
    (found,) = [line for line in table.splitlines() if line.startswith(f"{name}  ")]
    return found.removeprefix(name).split()


def estimate(*args: str) -> tuple[str, str]:
    """What doctor says of the estimate, and its advice."""
    done = CliRunner().invoke(main, ["doctor", "--json", *args])
    (check,) = [c for c in json.loads(done.stdout)["checks"] if c["name"] == "estimate"]
    assert check["ok"]
    return check["detail"], check["advice"]


@pytest.mark.usefixtures("quick")
def test_an_empty_cache_gets_measured_rates_which_doctor_finds(cache: Path) -> None:
    detail, advice = estimate()
    assert detail == "nominal rates, nominal coefficients"
    assert "`stormdrop calibrate`" in advice
    done = ran("--json")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == ["measuring the peak", "fitting to 0 trials"]
    report = json.loads(done.stdout)
    assert list(report) == KEYS
    plain, now = nominal(1), detect(1)
    assert report["target"] == plain.key()
    assert report["rates"] == {name: [getattr(plain, name), getattr(now, name)] for name in RATES}
    assert all(rate > 0 for both in report["rates"].values() for rate in both)
    assert list(report["coefficients"]) == list(FITTED)
    assert all(before == after for before, after in report["coefficients"].values())
    assert (report["fit"], report["models"]) == (None, [])
    assert report["told"] == "nominal: 0 tasks with measured programs; a fit needs 4"
    assert len(list(cache.glob("peak-*.json"))) == 1
    assert list(cache.glob("coefficients-*.json")) == []
    assert estimate() == ("measured rates, nominal coefficients", "")


@pytest.mark.usefixtures("quick")
def test_known_rates_are_measured_again_only_when_asked_for() -> None:
    plain = nominal(1)
    PEAKS.save(identity(plain), made_up(plain))
    assert told()["rates"]["peak_gflops"] == [plain.peak_gflops, 110.0]
    assert load_peak(plain) == made_up(plain)
    told("--fresh")
    again = load_peak(plain)
    assert again is not None
    assert again != made_up(plain)


def test_the_text_has_a_line_for_each_rate_and_each_coefficient() -> None:
    plain = nominal(1)
    PEAKS.save(identity(plain), made_up(plain))
    shown = text()
    assert row(shown, "rate") == ["nominal", "measured"]
    assert row(shown, "GFLOP/s of a core") == [f"{plain.peak_gflops:.4g}", "110"]
    assert row(shown, "memory, GB/s") == [f"{plain.dram_gbs:.4g}", "120"]
    assert row(shown, "coefficient") == ["nominal", "now"]
    for name in FITTED:
        assert row(shown, name.replace("_", " ")) == [f"{getattr(CPU_COEFFICIENTS, name):.3g}"] * 2
    assert shown.splitlines()[-1] == "coefficients are nominal: 0 tasks with measured programs; a fit needs 4"


@pytest.mark.usefixtures("unmeasured")
def test_coefficients_fitted_to_the_store_are_used_until_they_are_reset(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "RACE_SECONDS", 0.01)
    plain, threads, model = nominal(2), ("--threads", "2"), conv(tmp_path)
    with Store.open(default_path()) as store:
        measured(plain, store, replace(plain, coefficients=SLOW))
    report = told(model, *threads)
    assert list(report["fit"]) == FIT_KEYS
    assert report["fit"]["error_after"] < report["fit"]["error_before"]
    assert report["told"] == f"fitted to {report['fit']['programs']} programs of {report['fit']['tasks']} tasks"
    before, after = report["coefficients"]["tile_cycles"]
    assert before == CPU_COEFFICIENTS.tile_cycles
    assert after == detect(2).coefficients.tile_cycles != before
    (timed,) = report["models"]
    assert list(timed) == ["model", "tasks", "changed", "nominal_seconds", "calibrated_seconds"]
    assert timed["model"] == "tiny"
    assert 0 <= timed["changed"] <= timed["tasks"] > 0
    assert min(timed["nominal_seconds"], timed["calibrated_seconds"]) > 0
    assert estimate(*threads)[0] == "nominal rates, fitted coefficients"

    shown = text(model, *threads)
    assert f"coefficients are {report['told']}" in shown
    assert "tasks left out of the fit: error " in shown
    assert row(shown, "tiny")[:3] == f"{timed['changed']} of {timed['tasks']}".split()

    assert "coefficients are nominal, as asked for" in text("--reset", *threads)
    assert list(cache.glob("coefficients-*.json")) == []
    assert estimate(*threads)[0] == "nominal rates, nominal coefficients"


@pytest.mark.usefixtures("unmeasured")
def test_trials_of_another_store_are_fitted_to_when_it_is_named(tmp_path: Path) -> None:
    plain = nominal(2)
    with Store.open(tmp_path / "other.sqlite") as store:
        measured(plain, store, replace(plain, coefficients=SLOW))
    assert told("--threads", "2", "--store", tmp_path / "other.sqlite")["fit"] is not None
    assert told("--threads", "2", "--store", "none")["fit"] is None
    assert not default_path().exists()


@pytest.mark.usefixtures("unmeasured")
def test_what_is_wrong_with_a_model_is_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    wrong = {tmp_path / "none.onnx": "none.onnx", tmp_path / "text.onnx": "text.onnx", reshaped(tmp_path): "'to'"}
    for model, reason in {**wrong, "zoo:resnet5000": "no network 'resnet5000'"}.items():
        done = ran(model)
        assert (done.exit_code, done.stdout) == (1, "")
        assert isinstance(done.exception, SystemExit)
        last = done.stderr.splitlines()[-1]
        assert last.startswith("Error: ")
        assert reason in last


def test_what_cannot_be_done_is_refused_before_anything_is_measured(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "text.sqlite").write_text("no store")
    assert "is not a store" in refusal(ran("--store", tmp_path / "text.sqlite"), 1)
    refusal(ran("--threads", "0"), 2)
    assert list(cache.iterdir()) == []


def test_help_has_examples() -> None:
    assert "Examples:" in ran("--help").stdout
