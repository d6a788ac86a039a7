"""Compiled models on disk: what is written is read, and whatever else is on a disk is refused by name."""

from __future__ import annotations

import hashlib
import json
import os
import random
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormdrop.base.errors import UserError
from stormdrop.device.artifact import SLACK_BYTES
from stormdrop.device.host import detect, required_features, unfit
from stormdrop.model import container
from stormdrop.model.fixed_model import FixedModel
from stormdrop.model.image import Image
from stormdrop.model.package import load, save
from stormdrop.target.cpu import cross
from tests.support.two_steps import two_steps

ODD_NAME = 'a"b\\c\n\u2028é\ud800../\x00'


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "tiny.sd"
    image, weights = two_steps(threads=2, name=ODD_NAME, input_name=ODD_NAME)
    save(path, image, weights)
    return path


def sections(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Header, code and weights."""
    header, code, weights = struct.unpack_from("<QQQ", data, 16)
    begin = -(-(40 + header + code) // 64) * 64
    return data[40 : 40 + header], data[40 + header : 40 + header + code], data[begin : begin + weights]


def sealed(header: bytes, code: bytes, weights: bytes, version: int = container.VERSION) -> bytes:
    """A file with a right checksum, whatever is in it."""
    head = struct.pack("<8sIIQQQ", container.MAGIC, version, 0, len(header), len(code), len(weights)) + header + code
    data = head + bytes(-len(head) % 64) + weights
    return data + hashlib.sha256(data).digest()


def refusal(path: Path, data: bytes | None = None) -> str:
    """What `load` says about a file, which must be named."""
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        load(path)
    assert repr(str(path)) in str(caught.value)
    return str(caught.value)


def same(a: Image, b: Image) -> bool:
    return all(getattr(a, name) == getattr(b, name) for name in Image.__slots__)


# ---- what is written is read -----------------------------------------------------------------------------------------


def test_a_model_comes_back_with_the_same_code_numbers_and_names(tmp_path: Path) -> None:
    image, weights = two_steps(33, 65, 70, name=ODD_NAME, input_name=ODD_NAME, output_name="../../etc/passwd")
    save(tmp_path / "m.sd", image, weights)
    again, read = load(tmp_path / "m.sd")
    assert same(again, image)
    assert np.array_equal(read, weights)
    x = np.random.default_rng(1).standard_normal((33, 65)).astype(np.float32)
    assert np.array_equal(FixedModel(again, read)(x), FixedModel(image, weights)(x))


def test_weights_are_aligned_read_only_and_followed_by_memory_that_may_be_read(saved: Path) -> None:
    _, weights = load(saved)
    assert weights.ctypes.data % 64 == 0
    assert not weights.flags.writeable
    whole: Any = weights.base
    assert whole.ctypes.data + whole.nbytes - weights.ctypes.data - weights.nbytes >= SLACK_BYTES


def test_weights_of_many_chunks_come_back(tmp_path: Path) -> None:
    image, weights = two_steps()
    many = np.random.default_rng(2).integers(0, 256, (3 << 20) + 13, dtype=np.uint8)
    many[: len(weights)] = weights
    save(tmp_path / "m.sd", replace(image, weights_bytes=len(many)), many)
    assert np.array_equal(load(tmp_path / "m.sd")[1], many)


def test_a_model_without_weights_and_kernels_comes_back(tmp_path: Path) -> None:
    image, _ = two_steps()
    empty = replace(image, outputs=(), kernels=(), calls=(), arena_bytes=0, weights_bytes=0)
    save(tmp_path / "m.sd", empty, np.zeros(0, np.uint8))
    again, weights = load(tmp_path / "m.sd")
    assert same(again, empty)
    assert len(weights) == 0


def test_a_file_says_who_compiled_it(saved: Path) -> None:
    versions = json.loads(sections(saved.read_bytes())[0])[0]
    assert set(versions) == {"stormdrop", "llvm"}


def test_equal_models_give_equal_files(saved: Path, tmp_path: Path) -> None:
    save(tmp_path / "again.sd", *load(saved, threads=2))
    assert (tmp_path / "again.sd").read_bytes() == saved.read_bytes()


def test_loading_needs_neither_onnx_nor_the_search(saved: Path) -> None:
    script = "import sys; from stormdrop.model.package import load; load(sys.argv[1]); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "stormdrop.model.image" in loaded
    ours = ("codegen.emit", "frontend", "graph", "lower", "reservoir", "search", "space")
    assert not {"onnx", "lightgbm", "sqlite3", *(f"stormdrop.{name}" for name in ours)} & loaded


def test_threads_are_those_of_the_file_the_machine_or_the_caller(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    assert load(saved)[0].threads == 1
    monkeypatch.setenv("STORMDROP_THREADS", "64")
    assert load(saved)[0].threads == 2
    assert load(saved, threads=5)[0].threads == 5
    with pytest.raises(UserError, match="threads"):
        load(saved, threads=0)


# ---- damaged files ---------------------------------------------------------------------------------------------------


def test_a_file_cut_short_anywhere_is_refused(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    header, code, weights = map(len, sections(data))
    ends = [0, 8, 12, 16, 24, 32, 40, 40 + header, 40 + header + code, len(data) - 32 - weights, len(data) - 32]
    points = (
        {n + d for n in ends for d in (-1, 0, 1)} | set(random.Random(3).sample(range(len(data)), 60)) | {len(data) - 1}
    )
    assert len(points) > 60
    for n in sorted(p for p in points if 0 <= p < len(data)):
        refusal(tmp_path / "cut.sd", data[:n])


def test_a_file_with_something_behind_it_is_refused(saved: Path, tmp_path: Path) -> None:
    assert "1 bytes follow" in refusal(tmp_path / "long.sd", saved.read_bytes() + b"\0")


def test_no_single_byte_can_change(saved: Path, tmp_path: Path) -> None:
    data = bytearray(saved.read_bytes())
    rng = random.Random(4)
    path = tmp_path / "flipped.sd"
    for at in [*range(40), *(rng.randrange(len(data)) for _ in range(960))]:
        was = data[at]
        data[at] ^= rng.randrange(1, 256)
        refusal(path, bytes(data))
        data[at] = was
    path.write_bytes(data)
    load(path)


def earlier_header(header: bytes, version: int) -> bytes:
    """The header of format 4 as an earlier format wrote it."""
    versions, tree = json.loads(header)
    for kernel in tree["kernels"]:
        kernel |= {"slots": kernel.pop("buffers"), "code_bytes": kernel.pop("code")[""]}
        kernel.update({"prepare_extents": [], "scratch_bytes": 0} | kernel)
    steps = tree["steps"] = tree.pop("calls")
    for step in steps:
        step["bytes"] = step.pop("nbytes")
        if version == 3:
            step.update({"id": "", "shapes": "", "node": ""} | step)
    del tree["weights_bytes"]
    return json.dumps({"versions": versions, **tree}).encode()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_an_earlier_format_is_read(saved: Path, tmp_path: Path, version: int) -> None:
    header, code, weights = sections(saved.read_bytes())
    path = tmp_path / "old.sd"
    path.write_bytes(sealed(earlier_header(header, version), code, weights, version))
    assert same(load(path)[0], load(saved)[0])
    old = json.loads(earlier_header(header, version))
    for key, value in (("steps", {}), ("kernels", [{"code_bytes": 10}]), ("secret", 1), ("threads", 0)):
        refusal(path, sealed(json.dumps(old | {key: value}).encode(), code, weights, version))
    refusal(path, sealed(earlier_header(header, version), code + b"\0", weights, version))


def test_a_newer_format_is_told_from_damage(saved: Path, tmp_path: Path) -> None:
    said = refusal(tmp_path / "newer.sd", sealed(*sections(saved.read_bytes()), version=container.VERSION + 1))
    assert "newer Stormdrop" in said
    assert "compile" in said


@pytest.mark.parametrize("content", [b"", b"\x89SDMDL\n", b"\x08\x07onnx" * 20, b"PK\x03\x04" + bytes(100)])
def test_other_files_are_no_compiled_models(content: bytes, tmp_path: Path) -> None:
    assert "is no compiled model" in refusal(tmp_path / "other.sd", content)


def test_a_file_that_shrinks_while_it_is_read_is_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shrinking.sd"
    path.write_bytes(saved.read_bytes())
    monkeypatch.setattr(container, "aligned", lambda n: (os.truncate(path, 100), np.zeros(n, np.uint8))[1])  # pyright: ignore
    assert "cut short" in refusal(path)


def test_sizes_beyond_the_file_are_refused_before_memory_is_taken(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "aligned", lambda n: pytest.fail("took memory"))  # pyright: ignore
    for at in (16, 24, 32):
        for size in (2**63, 2**64 - 1, 2**40):
            data = bytearray(saved.read_bytes())
            struct.pack_into("<Q", data, at, size)
            assert "cut short or damaged" in refusal(tmp_path / "greedy.sd", bytes(data))


# ---- headers that somebody made up, with a right checksum ------------------------------------------------------------

Tree = dict[str, Any]


def set_at(*path: str | int, to: Any) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        place: Any = tree
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


FORGERIES: dict[str, Callable[[Tree], None]] = {
    "kernel beyond the last": set_at("calls", 0, "kernel", to=2),
    "negative kernel": set_at("calls", 0, "kernel", to=-1),
    "kernel that is true": set_at("calls", 0, "kernel", to=True),
    "one address too few": lambda t: t["calls"][0]["addresses"].pop(),
    "offset beyond the weights": set_at("calls", 0, "addresses", 3, 2, to=1 << 40),
    "offset just beyond the weights": set_at("calls", 1, "addresses", 1, 2, to=100_000),
    "negative offset": set_at("calls", 0, "addresses", 0, 2, to=-4),
    "offset between elements": set_at("calls", 0, "addresses", 0, 2, to=2),
    "offset that leaves the input": set_at("calls", 0, "addresses", 0, 2, to=4),
    "input beyond the last": set_at("calls", 0, "addresses", 0, 1, to=1),
    "second arena": set_at("calls", 0, "addresses", 2, 1, to=1),
    "unknown space": set_at("calls", 0, "addresses", 0, 0, to="heap"),
    "output in the weights": set_at("calls", 1, "addresses", 2, 0, to="weights"),
    "output nobody writes": set_at("calls", 1, "addresses", 2, to=["arena", 0, 0]),
    "no address for an input": set_at("calls", 0, "addresses", 0, to=None),
    "address of two": set_at("calls", 0, "addresses", 0, to=["input", 0]),
    "smaller arena": set_at("arena_bytes", to=0),
    "arena of the whole world": set_at("arena_bytes", to=1 << 62),
    "smaller input": set_at("inputs", 0, 1, to=[1, 1]),
    "negative extent": set_at("inputs", 0, 1, to=[-3, -5]),
    "overflowing shape": set_at("inputs", 0, 1, to=[1 << 32, 1 << 32, 0]),
    "33 dimensions": set_at("inputs", 0, 1, to=[3, 5] + [1] * 31),
    "fractional extent": set_at("inputs", 0, 1, to=[3.0, 5]),
    "unknown dtype": set_at("inputs", 0, 2, to="f16"),
    "dtype that is no text": set_at("inputs", 0, 2, to=["f32"]),
    "buffer of unknown dtype": set_at("kernels", 0, "buffers", 0, 1, to="q4"),
    "buffer of unknown role": set_at("kernels", 0, "buffers", 0, 2, to="secret"),
    "buffer with more elements": set_at("kernels", 0, "buffers", 0, 3, to=1000),
    "buffer with fewer than no elements": set_at("kernels", 0, "buffers", 0, 3, to=-1),
    "resident of 1": set_at("kernels", 0, "buffers", 0, 4, to=1),
    "code beyond the section": set_at("kernels", 0, "code", to={"": 1 << 30}),
    "less code than there is": set_at("kernels", 0, "code", to={"": 10}),
    "no code": set_at("kernels", 0, "code", to={"": 0}),
    "negative phase": set_at("kernels", 0, "extents", to=[-1]),
    "endless phase": set_at("kernels", 0, "extents", to=[1 << 63]),
    "phase of more units than elements": set_at("kernels", 0, "extents", to=[1 << 31]),
    "packing of more units than elements": set_at("kernels", 0, "prepare_extents", to=[1 << 31]),
    "negative scratch": set_at("kernels", 0, "scratch_bytes", to=-64),
    "endless scratch": set_at("kernels", 0, "scratch_bytes", to=1 << 60),
    "no threads": set_at("threads", to=0),
    "a million threads": set_at("threads", to=1_000_000),
    "threads of text": set_at("threads", to="2"),
    "negative flops": set_at("calls", 0, "flops", to=-1.0),
    "name that is a number": set_at("name", to=3),
    "unknown field": set_at("secret", to=1),
    "unknown field of a step": set_at("calls", 0, "secret", to=1),
    "missing field": lambda t: t.pop("triple"),
    "steps that are an object": set_at("calls", to={}),
    "two inputs of one name": lambda t: t["inputs"].append(t["inputs"][0]),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_header_is_refused(name: str, saved: Path, tmp_path: Path) -> None:
    header, code, weights = sections(saved.read_bytes())
    tree = json.loads(header)
    FORGERIES[name](tree[1])
    said = refusal(tmp_path / "forged.sd", sealed(json.dumps(tree).encode(), code, weights))
    assert "checksum is right" in said


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"name": 1' + b"0" * 5000 + b"}",
        b'{"flops": NaN}',
        b'{"a": 1, "a": 1}',
    ],
    ids=["nothing", "half", "list", "null", "no text", "deep", "long number", "nan", "twice"],
)
def test_a_header_that_is_no_json_of_ours_is_refused(header: bytes, saved: Path, tmp_path: Path) -> None:
    _, code, weights = sections(saved.read_bytes())
    refusal(tmp_path / "forged.sd", sealed(header, code, weights))


def test_fewer_weights_than_the_steps_read_are_refused(saved: Path, tmp_path: Path) -> None:
    header, code, weights = sections(saved.read_bytes())
    refusal(tmp_path / "forged.sd", sealed(header, code, weights[:64]))


def test_numbers_that_are_infinite_are_refused(saved: Path, tmp_path: Path) -> None:
    header, code, weights = sections(saved.read_bytes())
    refusal(tmp_path / "forged.sd", sealed(header.replace(b'"flops":210.0', b'"flops":1e999'), code, weights))


# ---- another machine -------------------------------------------------------------------------------------------------


def foreign(saved: Path, path: Path, **changes: str) -> str:
    header, code, weights = sections(saved.read_bytes())
    versions, tree = json.loads(header)
    return refusal(path, sealed(json.dumps([versions, tree | changes]).encode(), code, weights))


def test_code_of_another_architecture_is_refused(saved: Path, tmp_path: Path) -> None:
    other = "riscv64-unknown-linux-gnu"
    assert "compiled for riscv64" in foreign(saved, tmp_path / "m.sd", triple=other)


def test_code_that_uses_more_than_this_processor_has_is_refused(saved: Path, tmp_path: Path) -> None:
    said = foreign(saved, tmp_path / "m.sd", features=detect().features + ",+avx1024", cpu="zen99")
    assert "avx1024" in said
    assert "compile the model again on this machine" in said


def test_a_processor_known_by_name_only_must_be_this_one(saved: Path, tmp_path: Path) -> None:
    assert "'zen99'" in foreign(saved, tmp_path / "m.sd", features="", cpu="zen99")


HASWELL = "+64bit,+sse4.2,+popcnt,+cx16,+sahf,+sse3,+ssse3,+sse4.1,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
HERE = ("x86_64-pc-linux-gnu", "haswell", HASWELL)


def test_features_switched_off_later_are_not_needed() -> None:
    wide = "+avx,+avx2,+fma,+avx512f,+avx512vl,+avx512bw,+clzero"
    assert unfit("x86_64-unknown-linux-gnu", "znver4", wide, HERE) is not None
    assert unfit("x86_64-unknown-linux-gnu", "znver4", wide + ",-avx512f", HERE) is None
    assert required_features("znver4", wide + ",-avx") == frozenset()


def test_features_of_the_operating_system_do_not_matter() -> None:
    assert unfit("x86_64-unknown-linux-gnu", "znver4", "+avx2,+clzero,+sgx,+pku,-rtm", HERE) is None


@pytest.mark.parametrize(
    ("isa", "fits"), [("sse", True), ("avx2", True), ("avx512", False), ("neon", False), ("sve512", False)]
)
def test_targets_that_were_only_assembled_for_need_what_their_level_has(isa: str, fits: bool) -> None:
    target = cross(isa)
    assert (unfit(target.triple, target.cpu, target.features, HERE) is None) == fits


# ---- the file system -------------------------------------------------------------------------------------------------


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sd")
    assert "no regular file" in refusal(tmp_path / "pipe.sd")


def test_a_device_is_refused() -> None:
    assert "no regular file" in refusal(Path("/dev/zero"))


def test_a_directory_is_refused_by_both(tmp_path: Path) -> None:
    assert "is a directory" in refusal(tmp_path)
    image, weights = two_steps()
    with pytest.raises(UserError, match="is a directory"):
        save(tmp_path, image, weights)


def test_a_missing_file_and_a_name_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "missing.sd")
    with pytest.raises(UserError, match="null"):
        load("a\0b.sd")
    image, weights = two_steps()
    with pytest.raises(UserError, match="cannot be written"):
        save(tmp_path / "missing" / "m.sd", image, weights)
    with pytest.raises(UserError, match="null"):
        save("a\0b.sd", image, weights)


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    image, weights = two_steps()
    os.mkfifo(tmp_path / "pipe.sd")
    with pytest.raises(UserError, match="no regular file"):
        save(tmp_path / "pipe.sd", image, weights)
    assert stat.S_ISFIFO((tmp_path / "pipe.sd").stat().st_mode)


def test_files_and_folders_without_permission_are_refused(saved: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
    image, weights = two_steps()
    locked = tmp_path / "locked.sd"
    locked.write_bytes(saved.read_bytes())
    locked.chmod(0)
    assert "Permission denied" in refusal(locked)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UserError, match="Permission denied"):
            save(tmp_path / "m.sd", image, weights)
    finally:
        tmp_path.chmod(0o700)


def test_permission_errors_of_the_system_name_the_file(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as root, for whom no permission is missing."""

    def denied(*_: Any) -> int:
        raise PermissionError(13, "Permission denied")

    image, weights = two_steps()
    monkeypatch.setattr(os, "open", denied)
    assert "Permission denied" in refusal(saved)
    with pytest.raises(UserError, match=r"m\.sd' cannot be written: Permission denied"):
        save(tmp_path / "m.sd", image, weights)


@pytest.mark.parametrize("fault", ["write", "sync", "replace"])
def test_a_full_disk_leaves_the_file_that_was_there(
    fault: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    image, weights = two_steps(5, 6, 7)
    path = tmp_path / "m.sd"
    path.write_bytes(saved.read_bytes())
    if fault == "write":
        if not Path("/dev/full").exists():
            pytest.skip("needs /dev/full")
        real = os.open

        def opened(name: Any, flags: int, mode: int = 0o777) -> int:
            descriptor = real(name, flags, mode)
            if flags & os.O_CREAT:
                os.dup2(real("/dev/full", os.O_WRONLY), descriptor)
            return descriptor

        monkeypatch.setattr(os, "open", opened)
    else:
        monkeypatch.setattr(os, "fsync" if fault == "sync" else "replace", full)
    with pytest.raises(UserError, match="No space left on device"):
        save(path, image, weights)
    monkeypatch.undo()
    assert path.read_bytes() == saved.read_bytes()
    assert os.listdir(tmp_path) == ["m.sd"]


def test_an_interrupt_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    image, weights = two_steps()
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "m.sd", image, weights)
    assert os.listdir(tmp_path) == []


def test_a_new_file_has_the_permissions_of_any_new_file(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "any").write_bytes(b"")
    image, weights = two_steps()
    save(tmp_path / "m.sd", image, weights)
    assert (tmp_path / "m.sd").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    image, weights = two_steps()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.sd").symlink_to(tmp_path / "folder" / "real.sd")
    save(tmp_path / "link.sd", image, weights)
    assert (tmp_path / "link.sd").is_symlink()
    assert same(load(tmp_path / "link.sd")[0], image)
    assert (tmp_path / "folder" / "real.sd").is_file()


@pytest.mark.parametrize("name", ["with space.sd", "-o.sd", "new\nline.sd", "é\u2028.sd", "x" * 255, "\udcff.sd"])
def test_files_with_odd_names_are_written_and_read(name: str, tmp_path: Path) -> None:
    image, weights = two_steps()
    save(tmp_path / name, image, weights)
    assert same(load(str(tmp_path / name))[0], image)
    assert os.listdir(tmp_path) == [name]


def test_savers_to_one_path_do_not_meet(tmp_path: Path) -> None:
    """Whoever reads meanwhile finds one whole model or the other."""
    path = tmp_path / "m.sd"
    models = [two_steps(n, 5, 7, name=f"model{n}") for n in (3, 4, 5)]
    save(path, *models[0])
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for _ in range(15):
                save(path, *models[n])
                image, weights = load(path)
                whose = next(k for k, (theirs, _) in enumerate(models) if theirs.name == image.name)
                assert same(image, models[whose][0])
                assert np.array_equal(weights, models[whose][1])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert os.listdir(tmp_path) == ["m.sd"]


def test_an_image_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    image, weights = two_steps()
    with pytest.raises(UserError, match="address"):
        save(tmp_path / "m.sd", replace(image, calls=(replace(image.calls[0], addresses=()),)), weights)
    with pytest.raises(UserError, match="weights"):
        save(tmp_path / "m.sd", image, weights[:-1])
    with pytest.raises(UserError, match="threads"):
        save(tmp_path / "m.sd", replace(image, threads=0), weights)
    assert os.listdir(tmp_path) == []
