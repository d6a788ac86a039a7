"""A model as a C library computes what it computes in Python, bit for bit, for C programs, C++ programs and anything
else.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.base.errors import BuildError, UserError
from stormdrop.codegen.llvm import _initialise, _machine
from stormdrop.device.artifact import Group
from stormdrop.export.c_library import Library, write_library
from stormdrop.export.elf import data_object, renamed
from stormdrop.export.entry_ir import entry_ir
from stormdrop.export.header import c_string, identifier
from stormdrop.export.linker import Linker, linkers
from stormdrop.model.fixed_model import FixedModel
from stormdrop.model.image import Image, Port
from tests.support.two_steps import two_steps

N, K, M = 33, 65, 70
ODD = '"; system("x"); //\n*/ ??/\\ \u2028é\ud800 %s'

needs_linker = pytest.mark.skipif(not linkers(), reason="no linker")
CC, CXX = shutil.which("cc"), shutil.which("c++")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler")

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "tiny.h"

static float x[33 * 65], y[33 * 70];

static void fill(const char *name, void *data, size_t bytes)
{
    FILE *f = fopen(name, "rb");
    if (!f || fread(data, 1, bytes, f) != bytes) exit(10);
    fclose(f);
}

static int once(int threads, FILE *out)
{
    const void *inputs[TINY_INPUTS] = {x};
    void *outputs[TINY_OUTPUTS] = {y};
    tiny_model *model = tiny_open(threads);
    int k, r = 0;
    if (!model) return 20;
    for (k = 0; k < 3; ++k) {
        size_t n;
        for (n = 0; n < TINY_OUTPUT_0_BYTES / sizeof *y; ++n) y[n] = -1.0f;
        r |= k ? tiny_run(model, inputs, outputs) : tiny_call(model, x, y);
        if (fwrite(y, 1, TINY_OUTPUT_0_BYTES, out) != TINY_OUTPUT_0_BYTES) return 21;
    }
    tiny_close(model);
    return r;
}

static void *alongside(void *result)
{
    tiny_model *model = tiny_open(2);
    int k;
    if (!model) return NULL;
    for (k = 0; k < 200; ++k)
        if (tiny_call(model, x, (float *)result)) return NULL;
    tiny_close(model);
    return result;
}

int main(int argc, char **argv)
{
    static float results[3][33 * 70];
    const int shape[TINY_INPUT_0_RANK] = TINY_INPUT_0_SHAPE;
    pthread_t threads[3];
    FILE *out;
    int k, r;
    if (argc != 3 || shape[0] != 33 || shape[1] != 65) return 11;
    if (sizeof x != TINY_INPUT_0_BYTES || sizeof y != TINY_OUTPUT_0_BYTES) return 11;
    fill(argv[1], x, sizeof x);
    out = fopen(argv[2], "wb");
    for (k = 0; k < 4; ++k)
        if ((r = once(k, out)) != TINY_OK) return r;
    for (k = 0; k < 3; ++k)
        if (pthread_create(&threads[k], NULL, alongside, results[k])) return 12;
    for (k = 0; k < 3; ++k) {
        void *done;
        if (pthread_join(threads[k], &done) || !done) return 13;
        fwrite(results[k], 1, sizeof results[k], out);
    }
    return fclose(out);
}
"""


def matrix(rows: int = N, columns: int = K) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> tuple[Image, NDArray[np.uint8]]:
    return two_steps(N, K, M, threads=2)


@pytest.fixture(scope="module")
def library(model: tuple[Image, NDArray[np.uint8]], tmp_path_factory: pytest.TempPathFactory) -> Library:
    if not linkers():
        pytest.skip("no linker")
    folder = tmp_path_factory.mktemp("library")
    return write_library(*model, folder / "libtiny.so", folder / "tiny.h", "tiny")


class Native:
    """The library as any program sees it, through pointers alone."""

    def __init__(self, path: Path, prefix: str = "tiny") -> None:
        self._library = ctypes.CDLL(str(path))
        self.open: Any = self._library[f"{prefix}_open"]
        self._run: Any = self._library[f"{prefix}_run"]
        self.close: Any = self._library[f"{prefix}_close"]
        self.open.restype = ctypes.c_void_p
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.close.argtypes, self.close.restype = [ctypes.c_void_p], None

    def run(self, handle: int | None, inputs: list[int | None] | None, outputs: list[int | None] | None) -> int:
        given, wanted = ((ctypes.c_void_p * len(a))(*a) if a is not None else None for a in (inputs, outputs))
        return self._run(handle, given, wanted)

    def __call__(self, handle: int, x: NDArray[Any], y: NDArray[Any]) -> int:
        return self.run(handle, [x.ctypes.data], [y.ctypes.data])


def compile_with(compiler: str | None, *arguments: str) -> None:
    built = subprocess.run([str(compiler), *arguments], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


# ---- C and C++ -------------------------------------------------------------------------------------------------------


@needs_cc
def test_a_c_program_computes_what_python_does(
    model: tuple[Image, NDArray[np.uint8]], library: Library, tmp_path: Path
) -> None:
    """With the usual number of threads, 1, 2 and 3; opened and closed again; three handles at once."""
    (tmp_path / "main.c").write_text(PROGRAM)
    folder = library.path.parent
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{folder}", f"-Wl,-rpath,{folder}"]
    compile_with(CC, *strict, str(tmp_path / "main.c"), str(library.path), "-o", str(tmp_path / "main"))
    matrix().tofile(tmp_path / "x")
    ran = subprocess.run([str(tmp_path / "main"), str(tmp_path / "x"), str(tmp_path / "y")], timeout=60, check=False)
    assert ran.returncode == 0
    results = np.fromfile(tmp_path / "y", np.float32).reshape(-1, N, M)
    assert len(results) == 4 * 3 + 3
    wanted = FixedModel(*model)(matrix())
    for result in results:
        assert np.array_equal(result, wanted)


@pytest.mark.skipif(CXX is None, reason="no C++ compiler")
def test_the_header_is_cpp_as_well(library: Library, tmp_path: Path) -> None:
    body = "tiny_model *m = tiny_open(1); int r = tiny_call(m, x, y); tiny_close(m); return r;"
    (tmp_path / "main.cpp").write_text(
        f'#include "{library.header}"\nstatic float x[33 * 65], y[33 * 70];\nint main() {{ {body} }}\n'
    )
    strict = ["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-Wl,-rpath,{library.path.parent}"]
    compile_with(CXX, *strict, str(tmp_path / "main.cpp"), str(library.path), "-o", str(tmp_path / "main"))
    assert subprocess.run([str(tmp_path / "main")], timeout=60, check=False).returncode == 0


@needs_cc
@needs_linker
def test_no_name_of_a_model_can_say_anything_in_c(tmp_path: Path) -> None:
    image, weights = two_steps(threads=1, name=ODD, input_name=ODD, output_name="*/ int x; /*")
    written = write_library(image, weights, tmp_path / "lib.so", None, ODD)
    header = written.header.read_text()
    assert "system(" not in header.replace('"\\042; system(\\042', "")
    body = f"fputs({written.prefix.upper()}_INPUT_0_NAME, stdout); return 0;"
    (tmp_path / "main.c").write_text(f'#include "lib.h"\n#include <stdio.h>\nint main(void) {{ {body} }}\n')
    strict = ["-std=c99", "-trigraphs", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    compile_with(CC, *strict, str(tmp_path / "main.c"), "-o", str(tmp_path / "main"))
    said = subprocess.run([str(tmp_path / "main")], capture_output=True, check=True).stdout
    assert said == ODD.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("resnet50", "resnet50"),
        ("resnet50-v1.onnx", "resnet50_v1_onnx"),
        ("../../etc/passwd", "etc_passwd"),
        ("", "model"),
        ("__", "model"),
        ("3d-net", "model_3d_net"),
        ("é", "model"),
        ("a\nb\"c'd", "a_b_c_d"),
        ("sem", "model_sem"),
        ("x" * 500, "x" * 60),
        ("$(rm -rf)", "rm_rf"),
    ],
)
def test_any_name_gives_an_identifier(name: str, wanted: str) -> None:
    assert identifier(name) == wanted


def test_escapes_end_where_they_should() -> None:
    assert c_string('é1"\\?\0') == '"\\303\\2511\\042\\134\\077\\000"'


# ---- the functions ---------------------------------------------------------------------------------------------------


def test_all_numbers_of_threads_give_the_same_result(model: tuple[Image, NDArray[np.uint8]], library: Library) -> None:
    native, wanted = Native(library.path), FixedModel(*model)(matrix())
    for threads in (-1, 0, 1, 2, 5):
        handle = native.open(threads)
        result = np.full((N, M), np.nan, np.float32)
        assert native(handle, matrix(), result) == 0
        assert np.array_equal(result, wanted)
        native.close(handle)


@needs_linker
def test_a_library_has_the_groups_of_its_model(model: tuple[Image, NDArray[np.uint8]], tmp_path: Path) -> None:
    image, weights = model
    single, wanted = image.all_groups, FixedModel(*model)(matrix())
    phases = tuple(phase for group in single for phase in group.phases)
    for name, groups in {"serial": [Group(1, phases)], "single": list(single)}.items():
        grouped = replace(image, groups=tuple(groups))
        native = Native(write_library(grouped, weights, tmp_path / f"lib{name}.so", None, name).path, name)
        for threads in (1, 2, 5):
            handle = native.open(threads)
            result = np.full((N, M), np.nan, np.float32)
            assert native(handle, matrix(), result) == 0
            assert np.array_equal(result, wanted)
            assert np.array_equal(FixedModel(grouped, weights)(matrix()), wanted)
            native.close(handle)


def test_wrong_pointers_are_told_from_right_ones(library: Library) -> None:
    native = Native(library.path)
    handle = native.open(2)
    x, y = matrix(), np.full((N, M), np.nan, np.float32)
    a, b = x.ctypes.data, y.ctypes.data
    assert native.run(None, [a], [b]) == 1
    assert native.run(handle, None, [b]) == 1
    assert native.run(handle, [a], None) == 1
    assert native.run(handle, [None], [b]) == 1
    assert native.run(handle, [a], [None]) == 1
    assert native.run(handle, [a + 1], [b]) == 2
    assert native.run(handle, [a], [b + 2]) == 2
    assert np.isnan(y).all()
    assert native(handle, x, y) == 0  # and none of them has left the handle busy
    native.close(handle)
    native.close(None)


def test_absurd_numbers_of_threads_give_no_handle(library: Library) -> None:
    assert Native(library.path).open(4097) is None
    assert Native(library.path).open(2**31 - 1) is None


def test_threads_end_when_their_handle_is_closed(library: Library) -> None:
    native = Native(library.path)
    before = len(os.listdir("/proc/self/task"))
    handles = [native.open(3) for _ in range(4)]
    assert len(os.listdir("/proc/self/task")) == before + 8
    for handle in handles:
        native.close(handle)
    assert len(os.listdir("/proc/self/task")) == before


def test_memory_is_given_back(library: Library) -> None:
    native = Native(library.path)

    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0])

    native.close(native.open(2))
    before = mapped()
    for _ in range(50):
        native.close(native.open(2))
    assert mapped() - before < 10 * 2048  # one thread's stack is 2048 pages


def test_two_callers_of_one_handle_do_not_meet(model: tuple[Image, NDArray[np.uint8]], library: Library) -> None:
    native, wanted = Native(library.path), FixedModel(*model)(matrix())
    handle = native.open(2)
    codes: list[int] = []

    def work() -> None:
        result = np.zeros((N, M), np.float32)
        for _ in range(300):
            code = native(handle, matrix(), result)
            codes.append(code if code or np.array_equal(result, wanted) else -1)

    callers = [threading.Thread(target=work) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    native.close(handle)
    assert 0 in codes
    assert set(codes) <= {0, 3}


def test_the_callers_float_mode_holds_on_all_threads(library: Library, model: tuple[Image, NDArray[np.uint8]]) -> None:
    """Two threads, a mode that rounds up: the result differs, and is that of one thread in the same mode."""
    libm = ctypes.CDLL("libm.so.6")
    native, results = Native(library.path), list[NDArray[np.float32]]()
    for threads in (1, 2):
        handle = native.open(threads)
        result = np.full((N, M), np.nan, np.float32)
        before = libm.fegetround()
        if os.uname().machine != "x86_64" or libm.fesetround(0x800):
            pytest.skip("no such rounding mode")
        native(handle, matrix(), result)
        libm.fesetround(before)
        native.close(handle)
        results.append(result)
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], FixedModel(*model)(matrix()))


@needs_linker
def test_a_processor_that_lacks_a_feature_gets_no_handle(
    model: tuple[Image, NDArray[np.uint8]], tmp_path: Path
) -> None:
    image, weights = model
    absent = "avx512vp2intersect" if os.uname().machine == "x86_64" else "sve"
    if f"+{absent}" in image.features:
        pytest.skip(f"this processor has {absent}")
    written = write_library(
        replace(image, features=f"{image.features},+{absent}"), weights, tmp_path / "l.so", None, "tiny"
    )
    assert Native(written.path).open(1) is None


def test_only_three_functions_are_visible(library: Library) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    listed = subprocess.run(
        [nm, "-D", "--defined-only", str(library.path)], capture_output=True, text=True, check=True
    ).stdout
    assert sorted(line.split()[-1] for line in listed.splitlines()) == ["tiny_close", "tiny_open", "tiny_run"]


@needs_linker
def test_two_libraries_live_in_one_process(
    model: tuple[Image, NDArray[np.uint8]], library: Library, tmp_path: Path
) -> None:
    image, weights = two_steps(5, 6, 7, threads=2)
    other = write_library(image, weights, tmp_path / "libother.so", None, "other")
    one, two = Native(library.path), Native(other.path, "other")
    handles = one.open(2), two.open(2)
    for native, handle, (n, k, m), mine in (
        (one, handles[0], (N, K, M), model),
        (two, handles[1], (5, 6, 7), (image, weights)),
    ):
        result = np.full((n, m), np.nan, np.float32)
        assert native(handle, matrix(n, k), result) == 0
        assert np.array_equal(result, FixedModel(*mine)(matrix(n, k)))
        native.close(handle)


@needs_linker
def test_a_model_without_steps_and_weights_becomes_a_library(tmp_path: Path) -> None:
    image, _ = two_steps()
    ports = {"inputs": (), "outputs": (Port("none", (0, 3), "i64"),)}
    empty = replace(image, **ports, kernels=(), calls=(), arena_bytes=0, weights_bytes=0, threads=2)
    native = Native(write_library(empty, np.zeros(0, np.uint8), tmp_path / "l.so", None, "empty").path, "empty")
    handle = native.open(2)
    assert native.run(handle, [], [None]) == 0
    native.close(handle)


# ---- linking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linker", linkers(), ids=lambda linker: Path(linker.path).name)
def test_every_linker_here_makes_the_library(
    linker: Linker, model: tuple[Image, NDArray[np.uint8]], tmp_path: Path
) -> None:
    written = write_library(*model, tmp_path / "libtiny.so", None, "tiny", [linker])
    native = Native(written.path)
    handle, result = native.open(2), np.full((N, M), np.nan, np.float32)
    assert native(handle, matrix(), result) == 0
    assert np.array_equal(result, FixedModel(*model)(matrix()))
    native.close(handle)


@needs_linker
def test_equal_models_give_equal_libraries(
    model: tuple[Image, NDArray[np.uint8]], library: Library, tmp_path: Path
) -> None:
    again = write_library(*model, tmp_path / library.path.name, None, "tiny")
    assert again.path.read_bytes() == library.path.read_bytes()
    assert again.header.read_bytes() == library.header.read_bytes()


@needs_linker
@pytest.mark.parametrize("name", ["with space.so", "-o.so", "a,b;$(touch x)`y`.so", "new\nline.so", "lib.so.1"])
def test_odd_file_names_are_only_file_names(name: str, tmp_path: Path) -> None:
    image, weights = two_steps()
    folder = tmp_path / "odd folder,'\"$(touch z)"
    folder.mkdir()
    written = write_library(image, weights, folder / name, folder / "h.h", "tiny")
    assert sorted(os.listdir(folder)) == sorted([name, "h.h"])
    assert os.listdir(tmp_path) == [folder.name]
    native = Native(written.path)
    native.close(native.open(1))


def fake(tmp_path: Path, script: str) -> Linker:
    path = tmp_path / "fake-linker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return Linker(str(path), is_driver=True)


def test_no_linker_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, weights = two_steps()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="install gcc or clang"):
        write_library(image, weights, tmp_path / "l.so", None, "tiny")
    assert os.listdir(tmp_path) == []


def test_what_lies_in_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, "exit 0")
    shutil.copy(tmp_path / "fake-linker", tmp_path / "cc")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([".", ""]))
    assert linkers() == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no such thing >&2; exit 3", "no such thing"),
        ("exit 4", "with 4"),
        ("true", "wrote nothing"),
        ("kill -9 $$", "with -9"),
    ],
    ids=["message", "code", "nothing written", "killed"],
)
def test_a_linker_that_fails_is_quoted_and_leaves_nothing(script: str, said: str, tmp_path: Path) -> None:
    image, weights = two_steps()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "l.so").write_bytes(b"what was there")
    with pytest.raises(UserError, match=said):
        write_library(image, weights, tmp_path / "out" / "l.so", None, "tiny", [fake(tmp_path, script)])
    assert os.listdir(tmp_path / "out") == ["l.so"]
    assert (tmp_path / "out" / "l.so").read_bytes() == b"what was there"


@needs_linker
def test_the_next_linker_is_tried(model: tuple[Image, NDArray[np.uint8]], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_library(*model, tmp_path / "out" / "l.so", None, "tiny", [fake(tmp_path, "exit 1"), *linkers()])
    assert sorted(os.listdir(tmp_path / "out")) == ["l.h", "l.so"]


def test_a_linker_sees_a_private_folder_and_little_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, weights = two_steps(name="secret-name")
    monkeypatch.setenv("STORMDROP_SECRET", "secret-variable")
    linker = fake(tmp_path, f'(stat -c %a . ; env ; echo "$@") > {tmp_path}/seen; exit 1')
    with pytest.raises(UserError):
        write_library(image, weights, tmp_path / "secret-output.so", None, "secret-prefix!", [linker])
    seen = (tmp_path / "seen").read_text()
    assert seen.startswith("700\n")
    assert "secret-variable" not in seen
    assert "secret-name" not in seen


@pytest.mark.parametrize("which", ["output", "header"])
def test_what_is_no_file_is_not_replaced(which: str, tmp_path: Path) -> None:
    image, weights = two_steps()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("folder", "a directory"), ("pipe", "no regular file"), ("a\0b", "cannot be written")):
        paths = {"output": tmp_path / "l.so", "header": tmp_path / "l.h"} | {which: tmp_path / name}
        with pytest.raises(UserError, match=said):
            write_library(image, weights, paths["output"], paths["header"], "tiny")
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_models_that_cannot_be_libraries_are_refused(tmp_path: Path) -> None:
    image, weights = two_steps()
    with pytest.raises(UserError, match="compiled for riscv64"):
        write_library(replace(image, triple="riscv64-unknown-linux-gnu"), weights, tmp_path / "l.so", None, "tiny")
    with pytest.raises(UserError, match="bytes of weights"):
        write_library(image, weights[:-1], tmp_path / "l.so", None, "tiny")
    with pytest.raises(UserError, match="addresses"):
        write_library(
            replace(image, calls=(replace(image.calls[0], addresses=()),)), weights, tmp_path / "l.so", None, "tiny"
        )
    with pytest.raises(UserError, match="both the library and its header"):
        write_library(image, weights, tmp_path / "l.h", None, "tiny")
    with pytest.raises(UserError, match="cannot be written"):
        write_library(image, weights, tmp_path / "missing" / "l.so", None, "tiny")
    many = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (2 << 30,), (1,))  # never read: it is too large
    with pytest.raises(UserError, match="2048 MiB of weights"):
        write_library(replace(image, weights_bytes=2 << 30), many, tmp_path / "l.so", None, "tiny")
    assert os.listdir(tmp_path) == []


# ---- objects ---------------------------------------------------------------------------------------------------------


def test_renaming_leaves_code_alone() -> None:
    code = two_steps()[0].kernels[0].code
    changed = renamed(code, {"kernel": "a_very_much_longer_name", "prepare": "p"})
    assert b"a_very_much_longer_name\0" in changed
    begin = code.index(b"\x7fELF") + 64
    assert changed[begin : begin + 64] == code[begin : begin + 64]


def test_objects_with_other_symbols_are_refused() -> None:
    code = two_steps()[0].kernels[0].code
    with pytest.raises(BuildError, match="symbol 'kernel'"):
        renamed(code, {"prepare": "p"})


def test_damaged_objects_are_refused_or_harmless() -> None:
    code = two_steps()[0].kernels[0].code
    rng = np.random.default_rng(5)
    for _ in range(300):
        damaged = bytearray(code)
        damaged[int(rng.integers(len(code)))] ^= int(rng.integers(1, 256))
        try:
            renamed(bytes(damaged[: int(rng.integers(1, len(code) + 1))]), {"kernel": "a", "prepare": "b"})
        except BuildError:
            continue


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 1000])
def test_an_object_of_data_is_one_to_llvm(nbytes: int) -> None:
    _initialise()
    head, tail = data_object("x86_64", "blob", nbytes, nbytes + 512)
    read = llvm.ObjectFileRef.from_data(head + bytes(nbytes) + tail)
    sizes = {section.name(): section.size() for section in read.sections()}
    assert sizes[b".rodata"] == nbytes + 512


def test_the_entry_points_are_right_for_arm_too(model: tuple[Image, NDArray[np.uint8]]) -> None:
    image = replace(model[0], triple="aarch64-unknown-linux-gnu", cpu="neoverse-n1", features="")
    text = entry_ir([image], "tiny", "aarch64")
    _, preamble = _machine(image.triple, image.cpu, "")
    with llvm.create_context() as context, llvm.parse_assembly(preamble + text, context) as module:
        module.verify()
        visible = sorted(
            f.name for f in module.functions if not f.is_declaration and f.linkage == llvm.Linkage.external
        )
    assert visible == ["tiny_close", "tiny_open", "tiny_run"]
