"""Artifacts as JSON and as messages between processes, those of a CPU and those of a GPU."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stormdrop.base.errors import UserError
from stormdrop.device.artifact import ARTIFACT_FORM, Artifact, BufferSpec, Launch
from stormdrop.ir.strict import conform
from stormdrop.target.scope import Scope

BUFFERS = (BufferSpec("x", "f32", Scope.INPUT, 12), BufferSpec("w", "f32", Scope.CONSTANT, 7, resident=False))
HOST = Artifact(b"object", BUFFERS, (8, 3), (5,), 640)
GPU = replace(HOST, code=b"cubin", launches=(Launch(8, 128, 49152), Launch(3, 64, 0)), prepare_code=b"object")


@pytest.mark.parametrize("artifact", [HOST, GPU])
def test_an_artifact_survives_json_and_a_message(artifact: Artifact) -> None:
    tree = json.loads(json.dumps(artifact.to_json()))
    conform(tree, ARTIFACT_FORM, "artifact")
    assert Artifact.from_json(tree, artifact.code, artifact.prepare_code) == artifact
    assert Artifact.from_message(artifact.to_message()) == artifact


def test_the_json_of_a_cpu_artifact_says_nothing_of_launches() -> None:
    assert list(HOST.to_json()) == ["scratch_bytes", "extents", "prepare_extents", "slots"]
    assert "prepare_code" not in HOST.to_message()


@pytest.mark.parametrize(
    ("launches", "told"),
    [
        ([[8, 128, 0]], "1 launches for 2 phases"),
        ([[8, 128, 0], [3, 2048, 0]], "2048"),
        ([[8, 128, 0], [0, 64, 0]], "launches: 0"),
        ([[8, 128, 0], [3, 64]], "list of 3"),
    ],
)
def test_launches_that_no_gpu_could_run_are_refused(launches: object, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Artifact.from_message({**GPU.to_message(), "launches": launches})
