"""Artifacts as trees, those of a CPU and those of a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stormdrop.base.codec import Malformed, decode, encode, text_of, tree_of
from stormdrop.device.artifact import Artifact, BufferSpec, Launch
from stormdrop.target.structures import Scope

BUFFERS = (BufferSpec("x", "f32", Scope.INPUT, 12), BufferSpec("w", "f32", Scope.CONSTANT, 7, resident=False))
HOST = Artifact(b"object", BUFFERS, (8, 3), (5,), 640)
GPU = replace(HOST, code=b"cubin", launches=(Launch(8, 128, 49152), Launch(3, 64, 0)), prepare_code=b"object")


@pytest.mark.parametrize("artifact", [HOST, GPU])
def test_an_artifact_survives_its_text(artifact: Artifact) -> None:
    assert decode(Artifact, tree_of(*text_of(encode(artifact)))) == artifact


@pytest.mark.parametrize(
    ("launches", "fault"),
    [
        ([[8, 128, 0]], "1 launches for 2 phases"),
        ([[8, 128, 0], [3, 2048, 0]], r"launches\.1\.threads: 2048"),
        ([[8, 128, 0], [0, 64, 0]], r"launches\.1\.blocks: 0"),
        ([[8, 128, 0], [3, 64]], "a list of blocks, threads, shared_bytes"),
    ],
)
def test_launches_that_no_gpu_could_run_are_refused(launches: Any, fault: str) -> None:
    with pytest.raises(Malformed, match=fault):
        decode(Artifact, encode(GPU) | {"launches": launches})
