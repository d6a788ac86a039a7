"""Names that are commands to somebody: they come back as they were in data, and harmless everywhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import helper

import stormdrop as sd
from stormdrop.cli.main import main
from tests.support.abused_onnx import held, node, port

NAMES = {
    "quotes": "a\"b'c`d",
    "lines": "a\nb\r\nc\u2028d",
    "nul": "a\0b",
    "markup": "[red]x[/red]",
    "upwards": "../../../etc/x",
    "escapes": "\x1b[31mred\x1b]0;t\x07\x9b1m",
    "endless": "n" * 10_000,
    "turned": "x\u202ecba",
    "blank": " ",
    "format": "%s%n{0}",
    "option": "--help",
    "sign": "a=b",
    "llvm": '"\n}\ndefine void @x(){',
    "c": "*/ int main(){} /*\\",
    "ours": "x0",
    "made": "y.1",
}
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


def named(name: str) -> Any:
    """relu(x @ identity), everything called after `name`."""
    nodes = [
        helper.make_node("MatMul", [name, f"{name}w"], [f"{name}h"], name=name),
        helper.make_node("Relu", [f"{name}h"], [f"{name}o"], name=f"{name}2"),
    ]
    graph = helper.make_graph(
        nodes, name, [port(name, (2, 3))], [port(f"{name}o")], [held(f"{name}w", np.eye(3, dtype=np.float32))]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10, producer_name=name)
    made.doc_string = name
    return made


def said(*args: object) -> str:
    """What a command prints: one line after the other, nothing that a terminal would obey."""
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == 0, result.output
    assert not [c for c in result.output if not c.isprintable() and c != "\n"]
    return result.output


@pytest.mark.parametrize("what", NAMES)
def test_a_name_comes_back_as_it_was(what: str, tmp_path: Path) -> None:
    name = NAMES[what]
    compiled = sd.compile(named(name))
    compiled.save(tmp_path / "m.sd")
    for m in (compiled, sd.load(tmp_path / "m.sd")):
        assert [p.name for p in m.inputs] == [name]
        results = m.run({name: X})
        assert list(results) == [f"{name}o"]
        np.testing.assert_array_equal(results[f"{name}o"], np.maximum(X, 0))
    with pytest.raises(sd.UserError):
        compiled.run({f"{name}?": X})


@pytest.mark.parametrize("what", NAMES)
def test_no_command_prints_or_writes_more_than_it_should(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    Path("m.onnx").write_bytes(named(NAMES[what]).SerializeToString())
    told = said("info", "m.onnx")
    assert len(told) < 3000
    assert json.loads(said("info", "m.onnx", "--json"))["inputs"][0]["name"] == NAMES[what]
    assert len(said("show", "m.onnx", "t0", "--as", "llvm", "--as", "task", "--as", "loops")) < 30_000
    said("compile", "m.onnx", "-o", "m.sd")
    said("info", "m.sd")
    said("run", "m.sd", "--output", "o.npz")
    assert sorted(os.listdir()) == ["m.onnx", "m.sd", "o.npz"]
    with np.load("o.npz") as saved:
        assert len(saved.files) == 1
        assert saved[saved.files[0]].shape == (2, 3)


def test_errors_print_names_without_their_commands(tmp_path: Path) -> None:
    bad = "\x1b[2J[red]\n"
    m = named(bad)
    m.graph.node[1].op_type = f"Fancy{bad}"
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    result = CliRunner().invoke(main, ["info", str(tmp_path / "m.onnx")])
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert "\x1b" not in result.output
    assert "Fancy" in result.output


def test_an_input_without_a_name_is_nobodys(tmp_path: Path) -> None:
    graph = helper.make_graph([node("Relu", "x", "y")], "", [port("x", (2,)), port("", (3,))], [port("y")])
    compiled = sd.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    assert len(compiled.inputs) == 2
    np.testing.assert_array_equal(compiled(np.array([1, -1], np.float32), np.zeros(3, np.float32)), [1, 0])
