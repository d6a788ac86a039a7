"""The models of ONNX's backend suite that compute with sequences inside and take and give tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

from tests.support.onnx_suite import graph_of, run_compiled

FOLDERS = {c.name: Path(str(c.model_dir)) for c in load_model_tests(kind="simple") if "sequence_model" in c.name}


def _arrays(folder: Path, kind: str) -> list[Any]:
    paths = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))
    return [onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())) for path in paths]


def test_the_suite_has_its_eight_models() -> None:
    assert len(FOLDERS) == 8


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_a_model_with_sequences_inside_is_compiled(name: str) -> None:
    proto = onnx.load(FOLDERS[name] / "model.onnx")
    data = FOLDERS[name] / "test_data_set_0"
    held = {t.name for t in proto.graph.initializer}
    names = [i.name for i in proto.graph.input if i.name not in held]
    feeds = dict(zip(names, _arrays(data, "input"), strict=True))
    graph, bound = graph_of(proto, feeds)
    results, _ = run_compiled(graph, {k: a for k, a in feeds.items() if k not in bound})
    for y, right in zip(results, _arrays(data, "output"), strict=True):
        assert y.dtype == right.dtype
        assert y.shape == right.shape
        np.testing.assert_allclose(y, right, rtol=1e-6)
