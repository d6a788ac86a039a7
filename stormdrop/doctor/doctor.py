"""The checks of `stormdrop doctor`: whether this installation can build, run and measure kernels."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stormdrop.base.environment import VARIABLES, cache_dir, unknown_variables, variable
from stormdrop.base.errors import UserError
from stormdrop.device.cpus import _quotas, cpu_text, thread_count
from stormdrop.device.pool.pool import PoolSettings
from stormdrop.doctor.checks import Check, guarded, kernel_checks
from stormdrop.doctor.gpu_doctor import gpu_checks


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks; `threads` is 0 if the number of threads is unknown."""

    threads: int
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, object]:
        return {"ok": self.ok, "threads": self.threads, "checks": [asdict(check) for check in self.checks]}


def diagnose(threads: int | None = None, target_name: str | None = None) -> Diagnosis:
    """Runs every check; a failed check never hides the others. A GPU is checked if the target names one, and if this
    machine has a driver.
    """
    checks = [_python(), *_packages(), _platform(), _threads(threads)]
    count = thread_count(threads) if checks[-1].ok else 0
    checks.append(_environment(count or 1))
    advice = "this CPU could not be described; please report it"
    checks.append(guarded("cpu", lambda: _cpu(count or 1), advice))
    checks.append(guarded("estimate", lambda: _estimate(count or 1), advice))
    is_described = checks[-1].ok
    checks.append(_cache())
    advice = "models are compiled and tuned without it; move it away, and a new store begins"
    checks.append(guarded("store", _store, advice))
    if is_described:
        from stormdrop.device.host import detect

        checks += kernel_checks(("kernel in a worker", "kernel in this process"), lambda: detect(count or 1))
    if target_name not in (None, "host") or Path("/dev/nvidiactl").exists():
        checks += gpu_checks("cuda" if target_name in (None, "host") else target_name)
    return Diagnosis(count, tuple(checks))


def _python() -> Check:
    ok = sys.version_info >= (3, 11) and sys.implementation.name == "cpython"
    version_text = f"{platform.python_implementation()} {platform.python_version()}"
    return Check("python", ok, version_text, "" if ok else "use CPython 3.11 or newer")


def _packages() -> Iterator[Check]:
    for package, module in (("numpy", "numpy"), ("llvmlite", "stormdrop.codegen.llvm")):
        try:
            import_module(module)
            yield Check(package, True, version(package))
        except (ImportError, OSError, PackageNotFoundError) as error:
            advice = f"python -m pip install --force-reinstall {package}"
            yield Check(package, False, f"cannot be imported: {error}", advice)


def _platform() -> Check:
    machine = platform.machine()
    ok = sys.platform == "linux" and machine.lower() in ("x86_64", "amd64", "aarch64", "arm64")
    advice = "kernels are built and run on 64-bit Linux only, on x86-64 and AArch64; tasks can be written anywhere"
    return Check("platform", ok, f"{platform.system()} {platform.release()} {machine}", "" if ok else advice)


def _cpu(threads: int) -> Check:
    from stormdrop.device.host import detect

    target = detect(threads)
    wanted = "sse4.2 avx avx2 fma avx512f avx512vl avx512_bf16 avx512bf16 avx512vnni amx-tile neon sve"
    flags = {f[1:] for f in target.features.split(",") if f.startswith("+")}
    features = " ".join(f for f in wanted.split() if f in flags)
    return Check("cpu", True, f"{target}; uses {target.isa}; has {features or 'no vector feature that is used'}")


def _estimate(threads: int) -> Check:
    """Checks whether default schedules are chosen by rates that were measured on this machine."""
    from stormdrop.device.host import detect, nominal

    now, plain = detect(threads), nominal(threads)
    rates = "nominal" if replace(now, coefficients=plain.coefficients) == plain else "measured"
    coefficients = "nominal" if now.coefficients == plain.coefficients else "fitted"
    advice = "" if rates == "measured" else "`stormdrop calibrate` measures them: three seconds, once"
    return Check("estimate", True, f"{rates} rates, {coefficients} coefficients", advice)


def _threads(requested: int | None) -> Check:
    """Checks the number of threads, and names its reason."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = list(_quotas(Path("/")))
    text = variable("STORMDROP_THREADS")
    try:
        count = thread_count(requested)
    except UserError as error:
        return Check("threads", False, str(error), "unset STORMDROP_THREADS or set it to a whole number")
    if requested is not None:
        why = "as the argument says"
    elif text:
        why = "as STORMDROP_THREADS says"
    elif quotas and count < affinity:
        why = f"a cgroup quota of {min(quotas):g} CPUs"
    else:
        why = "the affinity mask" + ("; a quota does not lower it" if quotas else "; no quota")
    return Check("threads", True, f"{count} ({why}; the mask allows {affinity} of {os.cpu_count()} CPUs)")


def _environment(threads: int) -> Check:
    """Checks the variables for waiting and placement of threads."""
    unknown = unknown_variables()
    if unknown:
        return Check("environment", False, f"{unknown[0]} is no setting", f"known are {', '.join(VARIABLES)}")
    try:
        settings = PoolSettings.of(threads)
    except UserError as error:
        return Check("environment", False, str(error), "unset the variable, or set it to what the message says")
    spin = f"threads spin for {settings.spin_seconds * 1e6:g} µs before they sleep"
    cpus = settings.cpus()
    return Check("environment", True, f"{spin}, {f'on CPUs {cpu_text(cpus)}' if cpus else 'on any CPU'}")


def _cache() -> Check:
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        advice = "measurements cannot be kept: make it writable, or set STORMDROP_CACHE_DIR to a folder that is"
        return Check("cache", False, f"{folder} is not writable: {error.strerror or error}", advice)
    return Check("cache", True, f"{folder} is writable")


def _store() -> Check:
    """Checks every page and row of the store."""
    from stormdrop.store.store import Store, default_path

    path = default_path()
    if not path.exists():
        return Check("store", True, "there is none yet")
    with Store.view(path) as store:
        problems, count = store.integrity(), sum(s.trials for s in store.summaries())
    if problems:
        raise UserError(f"{path} is damaged: {problems[0]}")
    return Check("store", True, f"{path.name} holds {count} trials and is sound")
