"""Machines by name, the assembler for GPUs, and a GPU's model as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormdrop.base.codec import encode
from stormdrop.base.errors import BuildError, UserError
from stormdrop.device.artifact import Launch
from stormdrop.device.cuda import assembler as assembling
from stormdrop.device.cuda import driver, peak
from stormdrop.device.cuda.assembler import NoAssembler, NvJitLink, machine_code
from stormdrop.device.cuda.context import Attribute
from stormdrop.device.cuda.device import EMPTY, SPIN, cuda_device
from stormdrop.device.cuda.driver import NoGpu
from stormdrop.device.cuda.peak import known_gpu_peak, measure_gpu_peak
from stormdrop.device.host import detect
from stormdrop.device.targets import target_for
from stormdrop.model.fixed_model import FixedModel
from stormdrop.model.image import Address, Image, KernelCall, Port
from stormdrop.model.open_model import load_compiled
from stormdrop.model.package import load
from stormdrop.target.gpu import GPU_TRIPLE, gpu
from stormdrop.target.machine import target_from_json
from stormdrop.target.structures import Scope
from tests.device.test_artifact import GPU
from tests.support.fake_cuda import FakeCudaDevice


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine without driver and wheel, whatever this one has."""
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "LIBRARY", "libnothing.so.1")
    monkeypatch.setattr(assembling, "_library_paths", list)
    caches: list[Any] = [driver._library, driver.driver_version, driver.open_driver, assembling.assembler, cuda_device]
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def test_the_host_is_what_is_meant_where_nothing_is_named() -> None:
    assert target_for(None) == target_for("host") == detect()
    assert target_for("host", 1).threads == 1
    assert target_for(gpu("sm_86")) == gpu("sm_86")


def test_an_architecture_needs_no_gpu() -> None:
    assert target_for("cuda:sm_80") == gpu("sm_80")


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cuda:-1", "cpu", "", "cuda:sm_52"])
def test_an_unknown_target_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="unknown"):
        target_for(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_without_a_driver_it_says_what_to_do(name: str) -> None:
    with pytest.raises(NoGpu, match=r"no NVIDIA driver here.*install it.*cuda:sm_90"):
        target_for(name)


def test_the_number_of_a_gpu_is_kept_in_json_and_is_no_part_of_the_key() -> None:
    second = replace(gpu(), ordinal=1)
    assert target_from_json(second.to_json()) == second
    assert second.key() == gpu().key()
    with pytest.raises(UserError, match="ordinal: -1 is not"):
        target_from_json({**gpu().to_json(), "ordinal": -1})


# ---- the assembler --------------------------------------------------------------------------------------------------


class FakeNvJitLink:
    """Assembles whatever begins like PTX to what it was given; its log is that of the real one."""

    def __init__(self, major: int = 13) -> None:
        self.major = major
        self.live = 0
        self._data = b""

    def nvJitLinkVersion(self, major: Any, minor: Any) -> None:  # noqa: N802
        major._obj.value, minor._obj.value = self.major, 0

    def nvJitLinkCreate(self, handle: Any, count: Any, options: Any) -> int:  # noqa: N802
        self.live += 1
        return 16 if b"-arch=sm_11" in list(options) else 0

    def nvJitLinkAddData(self, handle: Any, kind: Any, data: bytes, size: Any, name: bytes) -> int:  # noqa: N802
        assert size.value == len(data)
        self._data = data.rstrip(b"\0")
        return 0

    def nvJitLinkComplete(self, handle: Any) -> int:  # noqa: N802
        return 0 if b".version" in self._data else 4

    def nvJitLinkDestroy(self, handle: Any) -> None:  # noqa: N802
        self.live -= 1

    def __getattr__(self, name: str) -> Any:
        what = name.removeprefix("nvJitLinkGet")
        texts = {"LinkedCubin": b"cubin of " + self._data[:4], "ErrorLog": b"it is\nno PTX", "InfoLog": LOG}

        def size(handle: Any, out: Any) -> None:
            out._obj.value = len(texts[what.removesuffix("Size")])

        def text(handle: Any, out: Any) -> None:
            out[: len(texts[what])] = texts[what]

        return size if what.endswith("Size") else text


LOG = b"""info: Function properties for phase0
 0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
info: Used 40 registers, 384 bytes cmem[0]
info: Function properties for phase1
 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
info: Used 22 registers, 384 bytes cmem[0]
"""


def test_the_assembler_tells_registers_and_spills_of_each_function() -> None:
    library = FakeNvJitLink()
    found = NvJitLink(library, "here").assemble(EMPTY, "sm_90")
    assert found.code == b"cubin of .ver"
    assert (found.registers, found.spilled_bytes) == ({"phase0": 40, "phase1": 22}, {"phase0": 12, "phase1": 0})
    assert library.live == 0


def test_ptx_and_architectures_that_it_refuses_are_build_errors() -> None:
    library = FakeNvJitLink()
    with pytest.raises(BuildError, match=r"refuses the PTX .4.: it is no PTX"):
        NvJitLink(library, "here").assemble("hello", "sm_90")
    assert library.live == 0
    with pytest.raises(BuildError, match="does not assemble for sm_11"):
        NvJitLink(library, "here").assemble(SPIN, "sm_11")


def test_the_driver_gets_ptx_where_the_assembler_is_missing_or_too_new(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoAssembler, match=r"pip install 'stormdrop\[cuda\]'"):
        machine_code(EMPTY, "sm_90")
    monkeypatch.setattr(assembling, "driver_version", lambda: (12, 4))
    assert machine_code(EMPTY, "sm_90") == EMPTY.encode()
    monkeypatch.setattr(assembling, "assembler", lambda: NvJitLink(FakeNvJitLink(13), ""))
    assert machine_code(EMPTY, "sm_90") == EMPTY.encode()
    monkeypatch.setattr(assembling, "driver_version", lambda: (13, 0))
    assert machine_code(EMPTY, "sm_90").startswith(b"cubin")
    monkeypatch.setattr(assembling, "driver_version", lambda: None)
    assert machine_code(EMPTY, "sm_90").startswith(b"cubin")


# ---- a peak, and a model as a file ----------------------------------------------------------------------------------


def test_a_measured_peak_is_kept_and_a_damaged_one_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = FakeCudaDevice()
    device.library.attributes |= {Attribute.MULTIPROCESSORS: 2, Attribute.L2_BYTES: 1 << 20}

    def as_it_is(ptx: str, architecture: str) -> bytes:
        return ptx.encode()

    monkeypatch.setattr(peak, "machine_code", as_it_is)
    found = measure_gpu_peak(device)
    assert measure_gpu_peak(device) == known_gpu_peak(device) == found
    (path,) = tmp_path.glob("peak-gpu-*.json")
    for damaged in ("{}", json.dumps(encode(found)).replace(str(found.gflops), "0"), "no JSON"):
        path.write_text(damaged)
        assert known_gpu_peak(device) is None


def image() -> Image:
    kernel = replace(GPU, buffers=(replace(GPU.buffers[0], scope=Scope.OUTPUT),), launches=(Launch(1, 32, 0),) * 2)
    call = KernelCall(0, (Address("output", 0, 0),), "k", "d", 0.0, 0)
    return Image("m", (), (Port("y", (12,), "f32"),), (kernel,), (call,), 0, 0, 132, GPU_TRIPLE, "sm_90", "+ptx80")


def test_a_model_for_a_gpu_that_is_not_here_is_saved_and_read_but_not_run(tmp_path: Path) -> None:
    model, path = FixedModel(image(), np.zeros(0, np.uint8)), tmp_path / "m.sd"
    assert repr(model) == "<model m, 1 kernel, sm_90>"
    model.save(path)
    found, _ = load(path)
    assert found.kernels == (replace(image().kernels[0], prepare_code=b""),)
    assert (found.cpu, found.threads) == ("sm_90", 132)
    for run in (model, lambda: load_compiled(path)):
        with pytest.raises(NoGpu, match="no NVIDIA driver"):
            run()


def test_a_file_for_another_architecture_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "m.sd"
    FixedModel(replace(image(), cpu="sm_80"), np.zeros(0, np.uint8)).save(path)

    def fake(ordinal: int) -> FakeCudaDevice:
        return FakeCudaDevice()

    monkeypatch.setattr("stormdrop.device.cuda.device.cuda_device", fake)
    with pytest.raises(UserError, match=r"compiled for sm_80, and GPU 0 .NVIDIA H200. is sm_90"):
        load_compiled(path)


def test_a_precision_is_a_part_of_a_gpus_name_or_an_argument() -> None:
    assert (
        target_for("cuda:sm_80/tf32")
        == target_for("cuda:sm_80", precision="tf32")
        == gpu("sm_80").with_precision("tf32")
    )
    assert target_for(gpu("sm_90"), precision="bf16").key() == "sm_90/132/bf16"
    assert target_for("host", precision="f32") == detect()
    for wrong in ("cuda:sm_80/f8", "host/tf32"):
        with pytest.raises(UserError, match="precision"):
            target_for(wrong)
