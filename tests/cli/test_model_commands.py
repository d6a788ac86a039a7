"""`stormdrop info`, `compile`, `run` and `show` as a user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from stormdrop.base.errors import UserError
from stormdrop.cli.source import shape_of
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure
from stormdrop.measure.result import Result as Measured
from stormdrop.space.schedule import Schedule
from stormdrop.store.store import Store, default_path
from tests.support.command import done, failed, json_of, ran, refusal
from tests.support.records import make_records, make_verdict
from tests.support.tiny_onnx import HIDDEN, INPUT, OUTPUT, added, conv, dense, reshaped, saved


def npy(folder: Path, array: np.ndarray, name: str = "x.npy") -> Path:
    np.save(folder / name, array)
    return folder / name


X = np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32)


# ---- info


def test_info_tells_ports_operators_parameters_and_tasks(tmp_path: Path) -> None:
    report = json_of("info", dense(tmp_path))
    assert report["inputs"] == [{"name": INPUT, "shape": [2, 6], "dtype": "f32"}]
    assert report["outputs"] == [
        {"name": OUTPUT, "shape": [2, 5], "dtype": "f32"},
        {"name": "top", "shape": [2], "dtype": "i64"},
    ]
    assert report["opset"] == 18
    assert report["operators"]["MatMul"] == 1
    assert report["parameters"] == {"count": 30, "bytes": 120}
    assert report["kernels"] == sum(t["count"] for t in report["tasks"])
    assert report["gflop"] == pytest.approx(sum(t["count"] * t["gflop"] for t in report["tasks"]))
    assert (report["stored_tasks"], report["threads"]) == (0, 1)
    assert [t["id"] for t in report["tasks"]] == [f"t{k}" for k in range(len(report["tasks"]))]


def test_info_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.compiler.model_build.build_kernels", None)  # whoever gets as far as this fails
    out = done("info", dense(tmp_path)).stdout
    for part in ("opset 18", "2x6", "MatMul", "30, 120 bytes", "the store knows 0 of"):
        assert part in out


def test_passes_show_what_each_changes(tmp_path: Path) -> None:
    out = done("info", dense(tmp_path), "--passes").stdout
    assert out.startswith("graph ")
    assert "pass channels last: changes nothing" in out
    assert "\x1b" not in out


def test_names_from_a_file_are_printed_without_markup_and_control_characters(tmp_path: Path) -> None:
    out = done("info", dense(tmp_path)).stdout
    assert INPUT in out
    assert "\x1b" not in out
    assert "x\\ny" not in out.replace(HIDDEN, "")  # it is no port
    shown = done("show", dense(tmp_path), "t0", "--as", "schedule").stdout
    assert "\x1b" not in shown


def test_an_open_dimension_is_announced_once_and_can_be_set(tmp_path: Path) -> None:
    path = dense(tmp_path, "N")
    result = done("info", path)
    assert result.stderr.count("leaves the batch open: 1 is taken") == 1
    result = done("info", path, "--shapes", f"{INPUT}=7x6", "--json")
    assert result.stderr == ""
    assert json.loads(result.stdout)["outputs"][0]["shape"] == [7, 5]


def test_tasks_that_the_store_knows_are_counted(tmp_path: Path) -> None:
    path = dense(tmp_path)
    task = tasks_of(read_graph(path)).tasks[0].task
    with Store.open(default_path()) as store:
        records = make_records(2, task, detect().with_threads(1))
        store.add(records)
        assert json_of("compile", path, "-o", tmp_path / "m.sd")["stored_tasks"] == 0
        assert json_of("compile", path, "-o", tmp_path / "m.sd", "--unproved")["stored_tasks"] == 1
        store.add_verdicts([make_verdict(records[0])])
    report = json_of("info", path)
    assert [t["stored"] for t in report["tasks"]] == [t["digest"] == task.digest for t in report["tasks"]]
    assert report["stored_tasks"] == 1
    assert json_of("compile", path, "-o", tmp_path / "m.sd")["stored_tasks"] == 1
    assert json_of("compile", path, "-o", tmp_path / "m.sd", "--untuned")["stored_tasks"] == 0
    assert json_of("show", path, "t0")["stored"]
    assert "as tuning has decided" in done("show", path, "t0").stdout


def test_a_stored_schedule_that_the_model_does_not_use_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dense(tmp_path)
    task = tasks_of(read_graph(path)).tasks[0].task
    decided = make_verdict(make_records(1, task, detect().with_threads(1))[0])
    with Store.open(default_path()) as store:
        store.add_verdicts([replace(decided, code="0 1")])

    def prove(self: Measurer, task: Task, candidate: Schedule) -> Measured:
        return Failure("wrong", "one element differs")

    monkeypatch.setattr(Measurer, "prove", prove)
    result = done("compile", path, "-o", tmp_path / "m.sd", "--json")
    assert json.loads(result.stdout)["stored_tasks"] == 0
    assert "one element differs" in result.stderr


def test_a_damaged_store_is_told_of_and_does_without(tmp_path: Path, cache: Path) -> None:
    (cache / "reservoir.sqlite").write_bytes(b"nothing of the kind" * 100)
    result = done("info", dense(tmp_path), "--json")
    assert result.stderr.count("default schedules are used, since the store cannot be read") == 1
    assert json.loads(result.stdout)["stored_tasks"] == 0


# ---- compile


def test_a_compiled_model_is_written_described_and_run(tmp_path: Path) -> None:
    path, file = dense(tmp_path), tmp_path / "m.sd"
    report = json_of("compile", path, "-o", file)
    assert report["files"] == {str(file): file.stat().st_size}
    assert (report["threads"], report["stored_tasks"]) == (1, 0)
    assert report["kernels"] >= report["tasks"] >= 2
    assert json_of("info", file)["inputs"] == json_of("info", path)["inputs"]
    assert "compiled for" in done("info", file).stdout
    given = ("--input", npy(tmp_path, X))
    assert json_of("run", file, *given)["outputs"] == json_of("run", path, *given)["outputs"]


def test_compile_names_the_file_after_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = done("compile", dense(tmp_path)).stdout
    assert (tmp_path / "tiny.sd").is_file()
    for part in ("tiny.sd", "weights", "arena", "by default", "to compile"):
        assert part in out


def test_a_library_is_written_with_its_header(tmp_path: Path) -> None:
    file = tmp_path / "libtiny.so"
    result = ran("compile", dense(tmp_path), "-o", file, "--json")
    if "linker" in result.stderr:
        pytest.skip(result.stderr)
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)["files"]) == [str(file), str(tmp_path / "libtiny.h")]
    assert file.read_bytes().startswith(b"\x7fELF")
    assert "tiny_open" in (tmp_path / "libtiny.h").read_text()
    header = tmp_path / "t.h"
    assert json_of("compile", dense(tmp_path), "-o", file, "--header", header)["files"][str(header)] > 0


@pytest.mark.parametrize("args", [["-o", "m.zip"], ["-o", "m"], ["-o", "m.sd", "--header", "m.h"], ["-o", "."]])
def test_a_wrong_output_is_wrong_usage(args: list[str], tmp_path: Path) -> None:
    failed("compile", dense(tmp_path), *args, code=2)


def test_an_output_that_cannot_be_written_ends_it_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.compiler.compile.build_model", None)
    assert "there is no directory" in failed("compile", dense(tmp_path), "-o", tmp_path / "nowhere" / "m.sd")
    assert "there is no directory" in failed("run", dense(tmp_path), "--output", tmp_path / "nowhere" / "o.npz")


# ---- run


def test_a_run_gives_what_numpy_gives(tmp_path: Path) -> None:
    path, out = dense(tmp_path), tmp_path / "out.npz"
    w = next(iter(read_graph(path).constants.values()))
    result = done("run", path, "--input", f"{INPUT}={npy(tmp_path, X)}", "--output", out)
    assert "random" not in result.stderr
    assert f"{OUTPUT} is called ..|z there" in result.stderr
    with np.load(out, allow_pickle=False) as found:
        np.testing.assert_allclose(found["..|z"], np.maximum(X @ w, 0), rtol=1e-5)
        np.testing.assert_array_equal(found["top"], np.argmax(X @ w, axis=1))


def test_random_inputs_are_announced_and_repeatable(tmp_path: Path) -> None:
    path = added(tmp_path)
    result = done("run", path, "--json", "--seed", "3")
    assert "inputs are random, seed 3" in result.stderr
    report = json.loads(result.stdout)
    assert (report["random"], report["seed"], report["saved"]) == (True, 3, None)
    assert report["outputs"][0]["shape"] == [3]
    assert json_of("run", path, "--seed", 3) == report
    assert json_of("run", path, "--seed", 4)["outputs"] != report["outputs"]


def test_inputs_come_from_one_file_with_several_arrays(tmp_path: Path) -> None:
    x, k = np.array([0.5, 1.5, np.nan], np.float32), np.array([1, 2, 3])
    np.savez(tmp_path / "both.npz", x=x, k=k)
    output = json_of("run", added(tmp_path), "--input", tmp_path / "both.npz")["outputs"][0]
    assert (output["min"], output["max"], output["mean"], output["not_finite"]) == (1.5, 3.5, 2.5, 1)
    assert "not finite" in done("run", added(tmp_path), "--input", tmp_path / "both.npz").stdout


def test_a_bound_input_becomes_a_constant(tmp_path: Path) -> None:
    path = reshaped(tmp_path)
    assert "--bind to=FILE.npy" in failed("run", path, "--fallback", "none")
    bound = f"to={npy(tmp_path, np.array([3, 2]), 'to.npy')}"
    report = json_of("run", path, "--bind", bound)
    assert report["outputs"][0]["shape"] == [3, 2]
    assert [i["name"] for i in json_of("info", path, "--bind", bound)["inputs"]] == ["x"]


def test_files_of_doubles_and_short_integers_are_inputs(tmp_path: Path) -> None:
    wide = [f"x={npy(tmp_path, np.ones(3))}", f"k={npy(tmp_path, np.arange(3, dtype=np.int32), 'k.npy')}"]
    report = json_of("run", added(tmp_path), "--input", wide[0], "--input", wide[1])
    assert (report["outputs"][0]["min"], report["outputs"][0]["max"]) == (1.0, 3.0)


def wrong_inputs(folder: Path) -> dict[str, tuple[list[str], str]]:
    x, k = npy(folder, np.zeros(3, np.float32)), npy(folder, np.arange(3), "k.npy")
    np.savez(folder / "extra.npz", x=np.zeros(3, np.float32), other=np.zeros(1))
    (folder / "text.npy").write_text("no array")
    np.save(folder / "pickled.npy", np.array([{}]), allow_pickle=True)
    shape, dtype = npy(folder, np.zeros(4, np.float32), "shape.npy"), npy(folder, np.zeros(3, np.int8), "dtype.npy")
    return {
        "unknown": ([f"y={x}"], "has no input y; its inputs are x: f32[3], k: i64[3]"),
        "missing": ([f"x={x}"], "no array is given for the input k: i64[3]"),
        "twice": ([f"x={x}", f"x={x}"], "given twice"),
        "shape": ([f"x={shape}", f"k={k}"], "has shape [4]; the input x: f32[3] needs [3]"),
        "dtype": (
            [f"x={dtype}", f"k={k}"],
            "dtype.npy, for the input x: f32[3], has type int8; use x.astype(np.float32)",
        ),
        "nameless": ([str(x)], "is for which input?"),
        "no file": (["x=nowhere.npy"], "nowhere.npy cannot be read"),
        "no array": ([f"x={folder / 'text.npy'}"], "holds no arrays"),
        "pickled": ([f"x={folder / 'pickled.npy'}"], "nothing pickled"),
        "extra": ([str(folder / "extra.npz")], "has no input other"),
        "named file of several": ([f"x={folder / 'extra.npz'}"], "without a name"),
    }


@pytest.mark.parametrize(
    "case",
    [
        "unknown",
        "missing",
        "twice",
        "shape",
        "dtype",
        "nameless",
        "no file",
        "no array",
        "pickled",
        "extra",
        "named file of several",
    ],
)
def test_a_wrong_input_is_told_before_anything_is_compiled(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stormdrop.compiler.compile.build_model", None)
    given, message = wrong_inputs(tmp_path)[case]
    assert message in failed("run", added(tmp_path), *(part for g in given for part in ("--input", g)))


# ---- show


def test_show_without_a_task_lists_them(tmp_path: Path) -> None:
    report = json_of("show", dense(tmp_path))
    assert report["tasks"] == json_of("info", dense(tmp_path))["tasks"]
    assert done("show", dense(tmp_path)).stdout.count("default") == len(report["tasks"])


def test_a_task_is_found_by_id_digest_node_value_and_label(tmp_path: Path) -> None:
    path = dense(tmp_path)
    tasks = json_of("info", path)["tasks"]
    of_dense = next(t for t in tasks if "MatMul" in t["label"])
    for name in (of_dense["id"], of_dense["digest"][:6], "first/dense", "first|dense", "dense", "matmul"):
        assert json_of("show", path, name)["digest"] == of_dense["digest"], name


def test_an_ambiguous_task_gets_candidates_and_an_unknown_one_the_ids(tmp_path: Path) -> None:
    path = dense(tmp_path)
    assert " tasks: t0 (" in failed("show", path, "a")
    assert "tasks are t0 to t" in failed("show", path, "no such thing")


def test_show_prints_what_is_asked(tmp_path: Path) -> None:
    path = dense(tmp_path)
    parts = {
        "task": "input x0",
        "sketch": "derivation",
        "schedule": "tile(",
        "loops": "loop program",
        "llvm": "define",
        "asm": "kernel:",
    }
    everything = done("show", path, "dense", *(word for part in parts for word in ("--as", part))).stdout
    for sign in parts.values():
        assert sign in everything
    assert not any(line != line.rstrip() for line in everything.splitlines() if not line.startswith(("\t", " ")))
    report = json_of("show", path, "dense", "--as", "loops", "--as", "sketch")
    assert list(report["text"]) == ["loops"]
    assert report["sketches"][0]["derivation"]
    assert "define" not in done("show", path, "dense").stdout


# ---- what is no model


def test_winograd_can_be_switched_off(tmp_path: Path) -> None:
    path = conv(tmp_path)
    digests = [[t["digest"] for t in json_of("info", path, *more)["tasks"]] for more in ([], ["--no-winograd"])]
    assert digests == [
        [use.task.digest for use in tasks_of(read_graph(path), winograd).tasks] for winograd in (True, False)
    ]
    assert digests[0] != digests[1]
    variants = [
        {s["variant"] for s in json_of("show", path, "Conv", "--as", "sketch", *more)["sketches"]}
        for more in ([], ["--no-winograd"])
    ]
    assert len(variants[0]) == 3
    assert len(variants[1]) == 1
    file = tmp_path / "m.sd"
    done("compile", path, "-o", file, "--no-winograd")
    assert json_of("run", file)["outputs"] == json_of("run", path, "--no-winograd")["outputs"]
    assert "leave out --no-winograd" in failed("run", file, "--no-winograd", code=2)


def test_a_network_of_the_zoo_takes_the_batch_of_the_given_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def built(name: str, batch: int) -> None:
        asked.append((name, batch))
        raise UserError("that is enough")

    monkeypatch.setattr("stormdrop.zoo.build", built)
    for more in (
        [],
        ["--shapes", "input=8x3x224x224"],
        ["--shapes", "a=2x3", "--shapes", "b=4x3"],
        ["--shapes", "input=0x3"],
    ):
        assert "that is enough" in failed("info", "zoo:resnet18", *more)
    assert asked == [("resnet18", 1), ("resnet18", 8), ("resnet18", 1), ("resnet18", 1)]


def test_a_network_named_like_a_file_gets_a_hint() -> None:
    for name in ("resnet50", "resnet50.onnx"):
        assert "cannot be read: No such file or directory; the zoo has one: zoo:resnet50" in failed("info", name)
    assert "zoo" not in failed("info", "resnet5000.onnx")


def test_an_unknown_network_gets_a_suggestion() -> None:
    for command in ("info", "run", "show", "compile"):
        assert "did you mean resnet50?" in failed(command, "zoo:resnet5O", code=2)


@pytest.mark.parametrize("command", ["info", "run", "show", "compile"])
def test_a_file_that_is_no_model_is_one_clear_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("not a model at all")
    assert "is no ONNX model" in failed(command, tmp_path / "m.onnx")
    assert "cannot be read" in failed(command, tmp_path / "nowhere[red]\x1b.onnx")


def test_a_compiled_file_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "m.sd").write_text("nothing of the kind, though long enough for a header of any size whatever")
    for command in ("info", "run"):
        assert "is no compiled model" in failed(command, tmp_path / "m.sd")


def test_what_needs_the_model_itself_refuses_a_compiled_one(tmp_path: Path) -> None:
    for args in (["show", "m.sd"], ["compile", "m.sd"], ["check", "m.sd"]):
        assert "compiled already" in failed(*args, code=2)
    assert "leave out --shapes" in failed("run", "m.sd", "--shapes", "x=1", code=2)


def test_shapes_of_unknown_inputs_are_refused(tmp_path: Path) -> None:
    assert "no input" in failed("info", dense(tmp_path), "--shapes", "nobody=1x2")


@pytest.mark.parametrize("text", ["1x3", "x=1x", "x=-1", "x=1x3y", "=1x3", "x=1.5"])
def test_a_shape_says_how_it_may_be_written(text: str, tmp_path: Path) -> None:
    assert "write input=1x3x224x224" in failed("info", dense(tmp_path), "--shapes", text, code=2)


@pytest.mark.parametrize(
    ("text", "shape"), [("x=1x3", ("x", (1, 3))), ("a=b=2,4", ("a=b", (2, 4))), ("x=", ("x", ())), ("x=0", ("x", (0,)))]
)
def test_shapes_may_be_written_in_several_ways(text: str, shape: tuple[str, tuple[int, ...]]) -> None:
    assert shape_of(text) == shape


@pytest.mark.parametrize(
    "args",
    [
        ["info"],
        ["run", "m.onnx", "--seed", "-1"],
        ["show", "m.onnx", "--as", "loops"],
        ["show", "m.onnx", "t0", "--as", "x"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    failed(*args, code=2)


def test_help_has_examples_and_imports_nothing_heavy(cache: Path) -> None:
    for command in ("info", "compile", "run", "show", "check", "bench"):
        assert "Examples:" in done(command, "--help").stdout
    script = (
        "import sys; from stormdrop.cli.main import main; main(['run', '--help'], "
        "standalone_mode=False); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ)).stdout
    loaded = loaded.splitlines()[-1].split()  # the lines before are the help
    assert "stormdrop.cli.model_commands" in loaded
    assert not {"onnx", "onnxruntime", "stormdrop.compiler.compile", "stormdrop.compare.oracle"} & set(loaded)


def test_a_process_of_its_own_says_the_same(tmp_path: Path) -> None:
    path = dense(tmp_path, "N")
    command = [sys.executable, "-m", "stormdrop", "run", str(path), "--json"]
    process = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=120)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == json_of("run", path)
    assert process.stderr.count("dimensions are open: the size is") == 1
    assert "\x1b" not in process.stdout + process.stderr


# ---- rules of the user's


def test_a_rule_of_the_current_directory_is_derived_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "local_rules.py").write_text("from tests.support.own_rules import AlwaysReverse as Mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    shown = ("op", "C1D", 1, 9, 5, 17, 3, 1, 1, "--untuned", "--show", "sketches")
    assert "always_reverse(" not in done(*shown).stdout
    assert "always_reverse(" in done(*shown, "--rule", "local_rules:Mine").stdout


@pytest.mark.parametrize("reference", ["nowhere:Mine", "tests.support.own_rules"])
def test_a_rule_that_cannot_be_imported_is_a_usage_error(reference: str) -> None:
    for command in (("show", "zoo:alexnet"), ("op", "SFM", 4, 8)):
        assert "package.module:Class" in " ".join(refusal(ran(*command, "--rule", reference), 2).split())


def test_one_output_is_saved_as_an_array_and_two_are_not(tmp_path: Path) -> None:
    done("run", added(tmp_path), "--output", tmp_path / "one.npy")
    assert isinstance(np.load(tmp_path / "one.npy", allow_pickle=False), np.ndarray)
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    two = saved(tmp_path, nodes, {"x": [3]}, {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}, file="two.onnx")
    assert "ends in .npz" in failed("run", two, "--output", tmp_path / "two.npy", code=2)
    assert not (tmp_path / "two.npy").exists()
    done("run", two, "--output", tmp_path / "two.npz")
    assert set(np.load(tmp_path / "two.npz")) == {"y", "z"}
