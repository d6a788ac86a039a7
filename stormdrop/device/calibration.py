"""Measurements of this machine, kept in files beside the store: its rates, and the coefficients of its estimate.

    peak-….json           rates: `stormdrop peak` measures them (`device.peak`)
    coefficients-….json   fitted to the trials in the store by `stormdrop calibrate`

`calibrated` puts both into a target. `host.detect` returns calibrated targets, so compiling and tuning estimate with
the same numbers. So do measuring processes, since a target is sent to them. An unreadable file counts as absent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from stormdrop.base.errors import UserError, warn
from stormdrop.base.files import replacing
from stormdrop.base.paths import cache_dir
from stormdrop.target.coefficients import CPU_COEFFICIENTS, CpuCoefficients
from stormdrop.target.cpu import Cpu
from stormdrop.target.machine import Peak

_T = TypeVar("_T")


def calibrated(target: Cpu) -> Cpu:
    """Returns the target with the measurements of this machine; the same target if there are none."""
    if (peak := load_peak(target)) is not None:
        l2, l3, dram = (peak.bandwidth(level, peak.threads).read_gbs for level in ("L2", "L3", "DRAM"))
        of_core = {"peak_gflops": peak.gflops / peak.threads, "l2_gbs": l2 / peak.threads}  # while all are busy
        rates = {**of_core, "l3_gbs": l3, "dram_gbs": dram}
        target = replace(target, **{name: _rounded(rate) for name, rate in rates.items()})
    coefficients = load_coefficients(target)
    return target if coefficients is None else replace(target, coefficients=coefficients)


def _rounded(rate: float) -> float:
    """Returns a rate with two digits, so that repeated measurements of a machine give equal targets."""
    return float(f"{rate:.2g}")


def identity(target: Cpu) -> str:
    """Returns an identity of this machine among the machines of a shared home directory; no host name."""
    caches = f"{target.l1_bytes}, {target.l2_bytes}, {target.l3_bytes}"
    return f"{target.key()}; {target.name}; caches {caches}; {os.cpu_count()} cpus"


def load_peak(target: Cpu) -> Peak | None:
    def read(text: str) -> Peak:
        peak = Peak.from_json(text)
        if (peak.key, peak.threads) != (identity(target), target.threads):
            raise ValueError(f"it describes {peak.key!r}")
        return peak

    return _load(_path("peak", target), read)


def save_peak(target: Cpu, peak: Peak) -> None:
    _save(_path("peak", target), peak.to_json())


def load_coefficients(target: Cpu) -> CpuCoefficients | None:
    def read(text: str) -> CpuCoefficients:
        tree = json.loads(text)
        if not isinstance(tree, dict) or tree.get("key") != identity(target):  # pyright: ignore
            raise ValueError("it describes another machine")
        found = CpuCoefficients.from_json(tree.get("coefficients"))  # pyright: ignore
        if found.version != CPU_COEFFICIENTS.version:
            raise ValueError(f"they are of version {found.version}, not {CPU_COEFFICIENTS.version}")
        return found

    return _load(_path("coefficients", target), read)


def save_coefficients(target: Cpu, coefficients: CpuCoefficients | None) -> None:
    """Saves coefficients; None deletes them."""
    path = _path("coefficients", target)
    if coefficients is None:
        path.unlink(missing_ok=True)
    else:
        _save(path, json.dumps({"key": identity(target), "coefficients": coefficients.to_json()}, indent=1))


def _path(what: str, target: Cpu) -> Path:
    return cache_dir() / f"{what}-{sha256(identity(target).encode()).hexdigest()[:16]}.json"


def _load(path: Path, read: Callable[[str], _T]) -> _T | None:
    try:
        text = _text(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn(f"what was measured of this machine, {path}, is ignored: {error}")
        return None
    try:
        return read(text)
    except (UserError, ValueError) as error:
        warn(f"what was measured of this machine, {path}, is ignored: {error}")
    return None


@lru_cache(maxsize=16)
def _text(path: Path, changed: int) -> str:
    """Returns the text of a file as of its last change."""
    return path.read_text()


def _save(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, follow_links=False) as write:
            write(text.encode())
    except (OSError, UserError) as error:
        warn(f"what was measured of this machine cannot be kept in {path}: {error}")
