"""A C library that holds a model at several sizes."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop.export.c_library import Library, export_library
from stormdrop.export.linker import linkers
from stormdrop.model.open_model import OpenModel
from tests.support.open_onnx import perceptron

Array = NDArray[Any]
SIZES = (2, 5, 11)
FINDS = """\
#include "net.h"
int main(void)
{
    const int64_t five[] = {5, 32}, six[] = {6, 32};
    const int64_t *const known[] = {five}, *const unknown[] = {six};
    const int shape[NET_INPUT_0_RANK] = NET_SIZE_1_INPUT_0_SHAPE;
    return !(NET_SIZES == 3 && net_size(known) == 1 && net_size(unknown) == -1 && shape[0] == 5
             && NET_SIZE_2_OUTPUT_0_BYTES == 11 * 20 * 4 && NET_UNKNOWN == 4);
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORMDROP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        compiled = sd.compile(perceptron(), shapes=[{"x": (n, 32)} for n in SIZES], threads=2)
    assert isinstance(compiled, OpenModel)
    return compiled


@pytest.fixture(scope="module")
def library(model: OpenModel, tmp_path_factory: pytest.TempPathFactory) -> Library:
    if not linkers():
        pytest.skip("no linker")
    folder = tmp_path_factory.mktemp("library")
    return export_library(model, folder / "libnet.so", folder / "net.h", "net")


def test_each_size_gives_the_bits_of_the_model(model: OpenModel, library: Library) -> None:
    native: Any = ctypes.CDLL(str(library.path))
    native.net_open.restype = ctypes.c_void_p
    native.net_run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    native.net_close.argtypes = [ctypes.c_void_p]
    for threads in (1, 2):
        handle = native.net_open(threads)
        assert handle
        for number, n in [*enumerate(SIZES), (0, 2)]:
            x = np.random.default_rng(n).standard_normal((n, 32)).astype(np.float32)
            y = np.full((n, 20), np.nan, np.float32)
            inputs, outputs = ((ctypes.c_void_p * 1)(a.ctypes.data) for a in (x, y))
            assert native.net_run(handle, number, inputs, outputs) == 0
            assert np.array_equal(y, model(x))
            assert native.net_run(handle, 3, inputs, outputs) == 4
            assert native.net_run(handle, -1, inputs, outputs) == 4
            assert native.net_run(handle, number, None, outputs) == 1
        native.net_close(handle)


def test_its_header_finds_the_size_of_given_shapes(library: Library, tmp_path: Path) -> None:
    driver = next((linker.path for linker in linkers() if linker.is_driver), None)
    if driver is None:
        pytest.skip("no C compiler")
    (tmp_path / "finds.c").write_text(FINDS)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{library.header.parent}"]
    command = [driver, *flags, str(tmp_path / "finds.c"), "-o", str(tmp_path / "finds")]
    subprocess.run(command, check=True)
    assert subprocess.run([tmp_path / "finds"], check=False).returncode == 0
