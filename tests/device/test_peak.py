"""Peaks are positive, survive the disk, and never come from a file that cannot be trusted. No time is asserted."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from stormdrop.codegen.llvm import assemble, assembly
from stormdrop.device import peak as module
from stormdrop.device.calibration import PEAKS, calibrated, identity, load_peak
from stormdrop.device.device import BufferPlace
from stormdrop.device.host import detect, hyperthreads
from stormdrop.device.host_device import HostMemory
from stormdrop.device.peak import (
    FmaForm,
    PeakMeter,
    Stream,
    StreamMeter,
    fma_forms,
    fma_text,
    measure_peak,
    stream_text,
)
from stormdrop.target.cpu import ISAS, Cpu, cross
from stormdrop.target.machine import LEVELS, Bandwidth, Peak
from tests.support.remarks import remarks

Floats = npt.NDArray[np.float32]
STREAMS: tuple[Stream, ...] = ("read", "triad")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def target() -> Cpu:
    """This machine, with caches so small that a measurement touches little memory."""
    return replace(detect(2), l1_bytes=8 << 10, l2_bytes=64 << 10, l3_bytes=256 << 10)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STREAM_SECONDS", 0.0)
    monkeypatch.setattr(module, "_BYTES_PER_TIMING", 1 << 20)
    monkeypatch.setattr(module, "_SHORT_SECONDS", 1e-5)
    monkeypatch.setattr(module, "_LEAST_SHARE", 0.0)


def made_up(target: Cpu) -> Peak:
    rows = [Bandwidth(level, n, 1024, 10.0 * n, 7.5 * n) for n, level in product((1, target.threads), LEVELS)]
    return Peak(identity(target), target.threads, 100.0, 190.0, tuple(rows))


# ---- the kernels


@pytest.mark.parametrize("isa", ISAS)
def test_every_kernel_assembles_for_every_instruction_set(isa: str) -> None:
    there = cross(isa)
    texts = [fma_text(there, form) for form in fma_forms(there)] + [stream_text(there, stream) for stream in STREAMS]
    for text in texts:
        assert assemble(text, there).startswith(b"\x7fELF")


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize("broadcast", [False, True])
def test_the_fma_loop_holds_its_fmas_and_spills_nothing(isa: str, broadcast: bool) -> None:
    text = assembly(fma_text(cross(isa), FmaForm(12, 2 - broadcast, broadcast)), cross(isa))
    assert text.count("vfmadd") == 12 * (2 - broadcast)
    assert "Spill" not in text
    assert "(%rsp)" not in text


def aligned(values: Floats) -> Floats:
    room = np.empty(values.size + 16, np.float32)
    first = -room.ctypes.data % 64 // 4
    room[first : first + values.size] = values
    return room[first : first + values.size]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_triad_computes_a_triad_and_writes_nothing_else(threads: int) -> None:
    target, rng = detect(threads), np.random.default_rng(0)
    trip = module._VECTORS_PER_TRIP["triad"] * target.vector_bytes
    size, guard = 3 * trip // 4 * threads, 16
    a = aligned(np.full(size + guard, np.nan, np.float32))
    b, c = (aligned(rng.standard_normal(size + guard).astype(np.float32)) for _ in range(2))
    places = [BufferPlace(HostMemory(array.view(np.uint8))) for array in (a, b, c)]
    module._Region(stream_text(target, "triad"), target, places, threads).best_seconds(1, 2 * 3, 3 * trip)
    np.testing.assert_allclose(a[:size], b[:size] + np.float32(0.5) * c[:size], rtol=1e-6, atol=1e-6)
    assert np.isnan(a[size:]).all()


# ---- the meters


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("threads", [1, 2])
def test_meters_give_positive_rates(threads: int) -> None:
    target = detect(threads)
    assert PeakMeter(target).gflops() > 0
    for stream in STREAMS:
        assert StreamMeter(target, stream, 100_000, sweeps=3).gbs() > 0


def test_a_meters_footprint_is_at_most_the_one_asked_for_unless_that_is_tiny() -> None:
    target = detect(2)
    for stream in STREAMS:
        assert 90_000 < StreamMeter(target, stream, 100_000).footprint_bytes <= 100_000
        assert StreamMeter(target, stream, 1).footprint_bytes > 1


# ---- measuring, and the cache file


@pytest.mark.usefixtures("quick")
def test_a_measurement_is_complete_positive_and_read_back_from_the_file(target: Cpu, cache: Path) -> None:
    peak = measure_peak(target)
    assert peak.thread_gflops > 0
    assert peak.gflops > 0
    for threads, level in product((1, 2), LEVELS):
        row = peak.bandwidth(level, threads)
        assert min(row.read_gbs, row.triad_gbs, row.footprint_bytes) > 0
    assert [path.suffix for path in cache.iterdir()] == [".json"]
    assert measure_peak(target) == peak


@pytest.mark.usefixtures("quick")
def test_one_thread_makes_one_row_a_level(target: Cpu) -> None:
    peak = measure_peak(target.with_threads(1))
    assert [row.level for row in peak.bandwidths] == list(LEVELS)
    assert peak.gflops == peak.thread_gflops


@pytest.mark.usefixtures("quick")
def test_what_a_busy_machine_measures_is_not_kept(
    target: Cpu, cache: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def always(peak: Peak) -> bool:
        return True

    monkeypatch.setattr(module, "_is_too_slow", always)
    measure_peak(target)
    assert "busy" in " ".join(remarks(recwarn))
    assert not cache.exists()


def test_two_threads_as_fast_as_one_are_too_slow(target: Cpu) -> None:
    peak = replace(made_up(target), gflops=200.0 / hyperthreads())
    assert not module._is_too_slow(peak)
    assert module._is_too_slow(replace(peak, gflops=100.0 / hyperthreads()))


def test_a_target_is_calibrated_only_by_its_own_measurement(target: Cpu) -> None:
    assert calibrated(target) is target
    PEAKS.save(identity(target), made_up(target))
    better = calibrated(target)
    assert (better.peak_gflops, better.l2_gbs, better.l3_gbs, better.dram_gbs) == (95.0, 10.0, 20.0, 20.0)
    assert better.key() == target.key()
    for other in (target.with_threads(3), replace(target, name="another"), replace(target, l3_bytes=1 << 20)):
        assert calibrated(other) is other


DAMAGES: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "cut off": lambda text: text[: len(text) // 2],
    "a list": lambda text: "[]",
    "an empty object": lambda text: "{}",
    "not a number": lambda text: text.replace("190.0", "NaN"),
    "a word": lambda text: text.replace("190.0", '"fast"'),
    "no speed": lambda text: text.replace("190.0", "0"),
    "a missing level": lambda text: text.replace("DRAM", "tape"),
    "an unknown field": lambda text: text.replace('"gflops"', '"speed"'),
    "another machine": lambda text: json.dumps(json.loads(text) | {"key": "another machine"}),
    "not text": lambda text: "\udcff",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_corrupt_file_is_ignored_with_a_warning(
    target: Cpu, recwarn: pytest.WarningsRecorder, damage: Callable[[str], str]
) -> None:
    PEAKS.save(identity(target), made_up(target))
    path = PEAKS.path(identity(target))
    path.write_bytes(damage(path.read_text()).encode(errors="surrogateescape"))
    assert calibrated(target) is target
    assert "is ignored" in " ".join(remarks(recwarn))


def test_an_unwritable_cache_is_a_warning(
    target: Cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "file"))
    PEAKS.save(identity(target), made_up(target))
    assert "cannot be kept" in " ".join(remarks(recwarn))
    assert calibrated(target) is target


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(target: Cpu, cache: Path) -> None:
    """In a directory that others may write to, they would choose where we make a file."""
    cache.mkdir()
    elsewhere = cache.parent / "elsewhere"
    PEAKS.path(identity(target)).symlink_to(elsewhere)
    PEAKS.save(identity(target), made_up(target))
    assert load_peak(target) == made_up(target)
    assert not elsewhere.exists()
