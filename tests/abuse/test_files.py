"""Files that are no models, that never end, or that point elsewhere: one clear error each, no waiting, no memory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto, TensorProto

import stormdrop as sd
from stormdrop.cli.main import main
from stormdrop.compare.inputs import read_arrays
from stormdrop.frontend import parsed
from tests.support.abused_onnx import held, model, node, port

VERBS = ("info", "compile", "run", "check", "bench", "show")


def whole() -> Any:
    return model([node("Add", "x c", "y")], [port("x", (64,))], "y", {"c": np.ones(64, np.float32)})


def refused(*args: object) -> str:
    """The one line that a command leaves, exit code 1."""
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == 1, result.output
    assert result.output.startswith("Error: ")
    assert len(result.output.splitlines()) == 1
    return result.output


def test_a_model_cut_short_anywhere_is_refused() -> None:
    data = whole().SerializeToString()
    for n in range(len(data)):
        with pytest.raises(sd.UserError, match="model"):
            sd.read_graph(data[:n])


def test_damaged_bytes_are_refused_or_harmless() -> None:
    data, rng = whole().SerializeToString(), random.Random(5)
    refusals = 0
    for _ in range(1000):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            sd.read_graph(bytes(damaged))
        except sd.UserError:
            refusals += 1
    assert refusals > 100


@pytest.mark.parametrize("what", ["graph", "tensor", "noise", "text", "nothing"])
def test_messages_of_another_kind_are_no_models(what: str) -> None:
    contents = {
        "graph": whole().graph.SerializeToString(),
        "tensor": held("c", np.ones(4)).SerializeToString(),
        "noise": random.Random(1).randbytes(10_000),
        "text": b"model: resnet50\n",
        "nothing": b"",
    }
    with pytest.raises(sd.UserError, match="no ONNX model"):
        sd.read_graph(contents[what])


@pytest.mark.parametrize("name", ["", "a\0b", "a" * 5000, "\udc80", "none.onnx"])
def test_names_that_no_file_has_are_refused(name: str) -> None:
    with pytest.raises(sd.UserError, match="cannot be read"):
        sd.read_graph(name)


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_refuses_a_pipe_without_waiting_for_it(verb: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    output = ["-o", tmp_path / "m.sd"] if verb == "compile" else []
    assert "m.onnx is no regular file" in refused(verb, tmp_path / "m.onnx", *output)


def test_devices_and_folders_are_refused(tmp_path: Path) -> None:
    assert "is no regular file" in refused("info", "/dev/zero")
    assert "is a directory" in refused("info", tmp_path)


def test_a_file_larger_than_any_model_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(100 << 30)
    assert "107,374,182,400 bytes" in refused("info", path)
    path.write_bytes(whole().SerializeToString())
    monkeypatch.setattr(parsed, "MOST_MODEL_BYTES", path.stat().st_size)
    assert sd.read_graph(path).nodes


def test_a_model_that_does_not_say_its_operator_set_is_refused() -> None:
    m = whole()
    del m.opset_import[:]
    with pytest.raises(sd.UserError, match="is the file complete"):
        sd.read_graph(m)


@pytest.mark.parametrize("version", [-1, 0, 1, 2, 3, 4, 5, 6, 99, 2**31])
def test_operator_sets_that_are_too_old_or_unknown_are_refused(version: int) -> None:
    m = whole()
    m.opset_import[0].version = version
    with pytest.raises(sd.UserError, match=f"operator set {version}"):
        sd.read_graph(m)


def test_names_that_are_no_text_are_refused() -> None:
    data = whole().SerializeToString().replace(b"n_y", b"n\xffy")
    with pytest.raises(sd.UserError, match="is no UTF-8"):
        sd.read_graph(data)


# ---- constants in files of their own


def outside(folder: Path, entries: Mapping[str, object] | None = None, dims: tuple[int, ...] = (4,)) -> Path:
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **(entries or {})}.items():
        tensor.external_data.add(key=key, value=str(value))
    m = model([node("Add", "x c", "y")], [port("x", (4,))], "y", [tensor])
    (folder / "m.onnx").write_bytes(m.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": 2**63},
        {"offset": 8},
        {"offset": 10**30},
        {"length": 2**63},
        {"length": 0x7FFFFFFF},
        {"length": -16},
        {"offset": "1e3"},
        {"offset": ""},
        {"location": "w.bin\0.txt"},
        {"location": "./../" + "w.bin"},
        {"location": "c:\\w.bin"},
        {"location": "~/w.bin"},
        {"location": "w" * 5000},
    ],
    ids=lambda e: next(f"{k}={str(v)[:12]}" for k, v in e.items()).replace("\0", "0"),
)
def test_wrong_places_of_external_data_name_the_constant(entries: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    if entries == {"offset": ""}:  # as good as none
        assert sd.read_graph(outside(tmp_path, entries)).constants
        return
    assert "constant c" in refused("info", outside(tmp_path, entries))


@pytest.mark.parametrize("dims", [(1 << 40,), (-4,), (2**62, 2**62), (0, 2**62, 4), (1,) * 70])
def test_external_data_of_impossible_shapes_is_refused(dims: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    assert "constant c" in refused("info", outside(tmp_path, dims=dims))


def test_a_folder_that_is_a_link_may_hold_external_data_but_links_out_of_it_may_not(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (tmp_path / "link").symlink_to(real)
    outside(real)
    assert sd.read_graph(tmp_path / "link" / "m.onnx").constants
    (real / "loop").symlink_to(real / "loop")
    (real / "up").symlink_to(tmp_path)
    for location in ("loop", "up/secret"):
        (tmp_path / "secret").write_bytes(bytes(16))
        assert "constant c" in refused("info", outside(real, {"location": location}))


def test_a_model_in_memory_has_no_folder(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    data = outside(tmp_path).read_bytes()
    for form in (data, ModelProto.FromString(data)):
        with pytest.raises(sd.UserError, match="load the model by its path"):
            sd.read_graph(form)


# ---- inputs


def npy(shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy("(64,)", bytes(256)))
    damaged = bytearray(path.read_bytes())
    damaged[60:70] = b"\xff" * 10
    path.write_bytes(damaged)


@pytest.mark.parametrize("what", ["pipe", "device", "deep", "negative", "boundless", "pickled", "damaged"])
def test_files_that_hold_no_arrays_are_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    match what:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "deep":
            path.write_bytes(npy("(" * 300))
        case "negative":
            path.write_bytes(npy("(-2, 3)", bytes(24)))
        case "boundless":
            path.write_bytes(npy("(10**30,)".replace("10**30", "1" + "0" * 30)))
        case "pickled":
            np.save(path, np.array([{}], object), allow_pickle=True)
        case _:
            zipped(path)
    with pytest.raises(sd.UserError, match=r"regular file|holds no arrays"):
        read_arrays(path)


# ---- the terminal


@pytest.mark.parametrize("where", ["/dev/full", "closed"])
def test_output_that_cannot_be_written_is_no_bug(where: str, tmp_path: Path) -> None:
    if where == "/dev/full" and not os.path.exists(where):
        pytest.skip("no /dev/full here")
    (tmp_path / "m.onnx").write_bytes(whole().SerializeToString())
    redirected = ">&-" if where == "closed" else f"> {where}"
    command = f'"{sys.executable}" -m stormdrop info m.onnx {redirected}'
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    found = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == (0 if where == "closed" else 1)
    assert ("No space left" in found.stderr) == (where == "/dev/full")
    assert "Error:" in found.stderr or where == "closed"
    assert "File " not in found.stderr


def test_a_name_too_long_for_a_file_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(whole().SerializeToString())
    assert "too long" in refused("compile", tmp_path / "m.onnx", "-o", tmp_path / ("n" * 300 + ".sd"))
