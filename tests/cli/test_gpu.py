"""`--target`: what is said where there is no GPU, no driver and no assembler, and what works all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stormdrop.cli import main
from stormdrop.device.cuda import assembler, driver
from tests.support.command import refusal


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine without driver and wheel, whatever this one has."""
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "LIBRARY", "libnothing.so.1")
    monkeypatch.setattr(assembler, "_library_paths", list)
    caches: list[Any] = [driver._library, driver.driver_version, driver.open_driver, assembler.assembler]
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    "command",
    [
        ["peak"],
        ["op", "GMM", "1", "8", "8", "8"],
        ["run", "zoo:squeezenet1_0"],
        ["check", "zoo:squeezenet1_0"],
        ["tune", "zoo:squeezenet1_0", "--store", "none"],
        ["show", "zoo:squeezenet1_0"],
    ],
)
def test_without_a_driver_every_command_says_what_is_missing(command: list[str]) -> None:
    result = invoke(*command, "--target", "cuda")
    assert (result.exit_code, result.stdout) == (1, "")
    told = result.stderr.splitlines()[-1]
    assert "there is no NVIDIA driver here" in told
    assert "cuda:sm_90" in told


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["run", "m.onnx", "--target", "tpu"], "write host, cuda, cuda:1 or cuda:sm_80"),
        (["peak", "--target", "cuda:sm_80"], "a GPU that is here"),
        (["run", "m.sd", "--target", "cuda:sm_80"], "is settled"),
        (["run", "m.sd", "--target", "cuda", "--precision", "tf32"], "is settled"),
        (["run", "m.sd", "--target", "cuda/tf32"], "is settled"),
        (["run", "m.onnx", "--precision", "tf32"], "--precision is for GPUs"),
        (["run", "m.onnx", "--target", "cuda/bf16", "--precision", "tf32"], "has a precision already"),
        (["run", "m.onnx", "--target", "host/bf16"], "or with a precision cuda/bf16"),
        (["run", "m.onnx", "--target", "cuda/f8"], "'cuda/f8' is no target"),
        (["peak", "--target", "cuda/bf16"], "write host, cuda, cuda:1 or cuda:sm_80"),
        (["run", "m.onnx", "--target", "cuda", "--precision", "f8"], "'f8' is not one of 'f32', 'tf32'"),
        (["compile", "zoo:squeezenet1_0", "-o", "m.so", "--target", "cuda:sm_80"], "a C library runs on the CPU"),
    ],
)
def test_targets_that_make_no_sense_are_wrong_usage(command: list[str], told: str) -> None:
    assert told in refusal(invoke(*command), 2)


def test_a_precision_follows_the_target_or_is_an_option_of_its_own() -> None:
    """Both commands need a driver: they fail beyond the parsing of their options."""
    for arguments in (["--target", "cuda:0/bf16"], ["--target", "cuda:0", "--precision", "bf16"]):
        result = invoke("op", "GMM", "1", "8", "8", "8", *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "there is no NVIDIA driver here" in result.stderr


def test_compiling_for_another_gpu_needs_the_assembler() -> None:
    result = invoke("compile", "zoo:squeezenet1_0", "--target", "cuda:sm_80", "-o", "/tmp/never-written.sd")
    assert "nvJitLink" in result.stderr
    assert "pip install 'stormdrop[cuda]'" in result.stderr
    assert not Path("/tmp/never-written.sd").exists()


def test_doctor_names_driver_and_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    from stormdrop.doctor import doctor
    from stormdrop.doctor.checks import Check

    for slow in ("_in_worker", "_in_process"):
        monkeypatch.setattr(doctor, slow, lambda threads: Check("kernel", True, ""))  # pyright: ignore
    result = invoke("doctor", "--target", "cuda", "--json")
    assert result.exit_code == 1
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert not checks["NVIDIA driver"]["ok"]
    assert checks["NVIDIA driver"]["advice"].startswith("install it")
    assert checks["assembler"]["advice"] == "python -m pip install 'stormdrop[cuda]'"
    assert "GPU" not in checks
