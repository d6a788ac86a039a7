"""Calibration: what was measured and fitted here is what the next compilation estimates with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stormdrop.base.environment import cache_dir
from stormdrop.device.calibration import PEAKS, calibrated, identity, load_coefficients, save_coefficients
from stormdrop.device.host import detect, nominal
from stormdrop.device.targets import target_for
from stormdrop.doctor import calibrate as module
from stormdrop.doctor.calibrate import calibrate
from stormdrop.measure.result import Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.sketch import sketches
from stormdrop.store.store import Store
from stormdrop.target.coefficients import CPU_COEFFICIENTS
from stormdrop.target.cpu import Cpu, cross
from stormdrop.target.machine import LEVELS, Bandwidth, Peak, target_from_json
from tests.space.test_fit import OPERATORS
from tests.support.records import make_records
from tests.support.remarks import remarks
from tests.support.tiny_onnx import conv

SLOW = replace(CPU_COEFFICIENTS, tile_cycles=80.0, load_slots=2.5)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.in_memory() as opened:
        yield opened


def peak_of(target: Cpu) -> Peak:
    rows = [
        Bandwidth(level, n, 1024, 123.4 * n, 99.0 * n) for n in dict.fromkeys((1, target.threads)) for level in LEVELS
    ]
    return Peak(identity(target), target.threads, 111.1, 222.2, tuple(rows))


def measured_peak(target: Cpu, fresh: bool) -> Peak:
    return peak_of(target)


def stored_peak(target: Cpu, fresh: bool) -> Peak:
    PEAKS.save(identity(target), peak_of(target))
    return peak_of(target)


def measured(target: Cpu, store: Store, seconds_as: Cpu) -> None:
    """Trials whose seconds are another machine's estimates."""
    rng = np.random.default_rng(0)
    for name, arguments in OPERATORS:
        task = build(name, arguments)
        sketch = sketches(task, target)[0]
        points = sketch.sample_legal(25, rng)
        seconds = sketches(task, seconds_as)[0].prior(points) * np.exp(0.02 * rng.standard_normal(len(points)))
        blank = make_records(1)[0]
        store.add(
            [
                replace(
                    blank, task=task, target=target, schedule=sketch.schedule(p), result=Timing(s, 0.01, 9, 0.1, False)
                )
                for p, s in zip(points, seconds.tolist())
            ]
        )


def test_detection_takes_measured_rates_and_fitted_coefficients_in() -> None:
    plain = nominal(2)
    assert detect(2) == plain
    PEAKS.save(identity(plain), peak_of(plain))
    assert (detect(2).peak_gflops, detect(2).l2_gbs, detect(2).l3_gbs) == (110.0, 120.0, 250.0)
    save_coefficients(plain, SLOW)
    assert detect(2).coefficients == SLOW
    assert detect(2).key() == plain.key()
    assert detect(1).coefficients == CPU_COEFFICIENTS
    save_coefficients(plain, None)
    assert detect(2).coefficients == CPU_COEFFICIENTS


def test_a_target_on_other_threads_has_what_was_measured_for_that_number_else_nominal_rates() -> None:
    for plain, scale in ((nominal(1), 1.0), (nominal(2), 2.0)):
        PEAKS.save(identity(plain), replace(peak_of(plain), gflops=scale * 150.0))
        save_coefficients(plain, replace(SLOW, tile_cycles=40.0 * scale))
    assert detect(2) != replace(nominal(2), coefficients=detect(2).coefficients)
    assert target_for(detect(2), 1) == detect(1)
    assert target_for(detect(1), 2) == detect(2)
    assert target_for(detect(2).with_cold_weights(True), 1) == detect(1).with_cold_weights(True)
    changed = replace(detect(2), l3_gbs=1.0)
    assert target_for(changed, 2) is changed
    foreign = cross("sse")
    assert target_for(replace(foreign, threads=2, peak_gflops=1.0), 1) == foreign.with_threads(1)


def test_a_target_on_other_threads_that_nothing_was_measured_for_is_nominal() -> None:
    PEAKS.save(identity(nominal(2)), peak_of(nominal(2)))
    save_coefficients(nominal(2), SLOW)
    assert target_for(detect(2), 1) == detect(1) == nominal(1)


def test_a_fitted_target_travels_as_json() -> None:
    fitted = replace(nominal(2), coefficients=SLOW)
    assert target_from_json(fitted.to_json()) == fitted
    assert "coefficients" not in nominal(2).to_json()  # that of version 3, as every store has it


def test_a_target_of_other_nominal_coefficients_says_so_and_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    today = nominal(2)
    trees = [today.to_json(), replace(today, coefficients=SLOW).to_json()]
    later = replace(CPU_COEFFICIENTS, version=CPU_COEFFICIENTS.version + 1)
    for place in ("coefficients", "cpu"):
        monkeypatch.setattr(f"stormdrop.target.{place}.CPU_COEFFICIENTS", later)
    tomorrow = replace(today, coefficients=later)
    assert tomorrow.to_json()["coefficients"] == {"version": later.version}
    assert target_from_json(tomorrow.to_json()) == tomorrow
    for tree in trees:
        read = target_from_json(tree)
        assert read != tomorrow
        assert read.to_json() == trees[0]


@pytest.mark.parametrize("text", ["", "[]", '{"key": "another"}', '{"coefficients": {"version": 1}}'])
def test_a_file_of_coefficients_that_cannot_be_read_is_ignored(text: str, recwarn: pytest.WarningsRecorder) -> None:
    plain = nominal(2)
    save_coefficients(plain, SLOW)
    next(cache_dir().glob("coefficients-*.json")).write_text(text)
    assert load_coefficients(plain) is None
    assert "is ignored" in " ".join(remarks(recwarn))


def test_a_limit_is_no_coefficient_that_a_file_may_set(recwarn: pytest.WarningsRecorder) -> None:
    save_coefficients(nominal(2), replace(SLOW, most_instructions=1e9))
    assert detect(2).coefficients == CPU_COEFFICIENTS
    assert "most_instructions" in " ".join(remarks(recwarn))


def test_calibrating_fits_to_the_store_and_is_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = nominal(2)
    monkeypatch.setattr(module, "measure_peak", measured_peak)
    monkeypatch.setattr(module, "RACE_SECONDS", 0.01)
    measured(plain, store, replace(calibrated(plain), coefficients=SLOW))
    found = calibrate(2, store, [conv(tmp_path)])
    assert found.fit is not None
    assert found.fit.is_better
    assert found.models[0].tasks >= found.models[0].changed
    assert min(found.models[0].nominal_seconds, found.models[0].calibrated_seconds) > 0
    assert detect(2).coefficients == found.fit.coefficients == found.calibrated.coefficients
    assert found.calibrated.coefficients.tile_cycles > 1.5 * CPU_COEFFICIENTS.tile_cycles
    assert calibrate(2, store, reset=True).calibrated.coefficients == CPU_COEFFICIENTS
    assert detect(2).coefficients == CPU_COEFFICIENTS


def test_without_trials_the_coefficients_stay_nominal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_peak", measured_peak)
    found = calibrate(2, store)
    assert found.fit is None
    assert "0 tasks" in found.coefficients_reason
    assert found.calibrated.coefficients == CPU_COEFFICIENTS
