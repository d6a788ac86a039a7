"""Measurements of this machine, kept in files beside the store: its rates, and the coefficients of its estimate.

    peak-….json           rates: `stormdrop peak` measures them (`device.peak`)
    coefficients-….json   fitted to the trials in the store by `stormdrop calibrate`

`calibrated` puts both into a target. `host.detect` returns calibrated targets, so compiling and tuning estimate with
the same numbers. So do measuring processes, since a target is sent to them. An unreadable file counts as absent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

from stormdrop.base.codec import decode, encode, text_of, tree_of
from stormdrop.base.environment import cache_dir
from stormdrop.base.errors import UserError, warn
from stormdrop.base.files import replacing
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


@dataclass(frozen=True, slots=True)
class MachineFile(Generic[_T]):
    """A measurement of machines: a JSON file for each machine, `name-….json`, in the cache directory."""

    name: str
    kind: type[_T]

    def path(self, machine: str) -> Path:
        return cache_dir() / f"{self.name}-{sha256(machine.encode()).hexdigest()[:16]}.json"

    def load(self, machine: str) -> _T | None:
        """Returns the measurement of a machine, given by its identity; None, with a warning, if it is unreadable."""
        path = self.path(machine)
        try:
            measurement = decode(self.kind, tree_of(_content(path, path.stat().st_mtime_ns)))
            key = getattr(measurement, "key", machine)  # files of GPUs have none
            if key != machine:
                raise ValueError(f"it describes {key!r}")
            return measurement
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            warn(f"what was measured of this machine, {path}, is ignored: {error}")
            return None

    def save(self, machine: str, measurement: _T) -> None:
        """Saves the measurement of a machine; a failure is a warning."""
        path = self.path(machine)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, follow_links=False) as write:
                write(text_of(encode(measurement))[0])
        except (OSError, UserError) as error:
            warn(f"what was measured of this machine cannot be kept in {path}: {error}")


@lru_cache(maxsize=16)
def _content(path: Path, changed: int) -> bytes:
    """Returns the content of a file as of its last change."""
    return path.read_bytes()


@dataclass(frozen=True, slots=True)
class FittedCoefficients:
    """Coefficients that were fitted to the trials of a machine."""

    key: str
    coefficients: CpuCoefficients

    def __post_init__(self) -> None:
        version = self.coefficients.version
        if version != CPU_COEFFICIENTS.version:
            raise ValueError(f"they are of version {version}, not {CPU_COEFFICIENTS.version}")


PEAKS = MachineFile("peak", Peak)
COEFFICIENTS = MachineFile("coefficients", FittedCoefficients)


def load_peak(target: Cpu) -> Peak | None:
    return PEAKS.load(identity(target))


def load_coefficients(target: Cpu) -> CpuCoefficients | None:
    fitted = COEFFICIENTS.load(identity(target))
    return fitted and fitted.coefficients


def save_coefficients(target: Cpu, coefficients: CpuCoefficients | None) -> None:
    """Saves coefficients; None deletes them."""
    machine = identity(target)
    if coefficients is None:
        COEFFICIENTS.path(machine).unlink(missing_ok=True)
    else:
        COEFFICIENTS.save(machine, FittedCoefficients(machine, coefficients))
