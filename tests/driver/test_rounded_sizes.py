"""Sequences of many lengths in few models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

import stormdrop as sd
from stormdrop.driver.specialise import Specialiser, rounded_size
from stormdrop.runtime.open_model import OpenModel
from tests.support.open_onnx import decoder, open_onnx

ort = pytest.importorskip("onnxruntime")
Array = NDArray[Any]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))


def opened(model: Any, **options: Any) -> tuple[OpenModel, Specialiser]:
    compiled = sd.compile(model, threads=2, **options)
    assert isinstance(compiled, OpenModel)
    specialiser = compiled._specialise
    assert isinstance(specialiser, Specialiser)
    return compiled, specialiser


def test_sizes_are_rounded_to_two_in_an_octave() -> None:
    assert [rounded_size(n) for n in (0, 1, 2, 16, 17, 24, 25, 33, 49, 97)] == [0, 1, 16, 16, 24, 24, 32, 48, 64, 128]
    assert all(n <= rounded_size(n) < 1.5 * n + 16 for n in range(1, 2000))


def test_generating_128_words_compiles_at_most_8_times() -> None:
    proto = decoder(layers=1, width=16, heads=2, words=30)
    session = ort.InferenceSession(proto.SerializeToString())
    model, specialiser = opened(proto)
    rng = np.random.default_rng(0)
    ids = np.array([[3]])
    for _ in range(128):
        logits = model(ids)
        (wanted,) = session.run(None, {"ids": ids})
        np.testing.assert_allclose(logits, wanted, rtol=1e-3, atol=1e-4)
        ids = np.concatenate([ids, rng.integers(0, 30, (1, 1))], axis=1)
    assert specialiser.compilations <= 8


def test_a_batch_is_not_rounded() -> None:
    proto = decoder(layers=1, width=16, heads=2)
    session = ort.InferenceSession(proto.SerializeToString())
    model, specialiser = opened(proto)
    rng = np.random.default_rng(0)
    for shape in ((3, 5), (3, 7), (3, 16), (2, 7)):
        ids = rng.integers(0, 50, shape)
        np.testing.assert_allclose(model(ids), session.run(None, {"ids": ids})[0], rtol=1e-3, atol=1e-4)
    assert specialiser.compilations == 2
    assert sorted(m.inputs[0].shape for m in model.models) == [(2, 16), (3, 16)]


def test_outputs_go_where_the_caller_wants_them() -> None:
    model, _ = opened(decoder(layers=1, width=16, heads=2))
    ids = np.array([[1, 2, 3]])
    out = np.empty((1, 3, 50), np.float32)
    assert model(ids, out=out) is out
    assert np.array_equal(out, model(ids))
    with pytest.raises(sd.UserError, match="out= needs an array"):
        model(ids, out=np.empty((1, 4, 50), np.float32))
    with pytest.raises(sd.UserError, match="type float32"):
        model(ids.astype(np.float32))


def test_where_there_is_no_proof_every_size_has_its_own_model() -> None:
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1])]
    proto = open_onnx(nodes, {"x": ("f32", ["b", "n", 3])}, {"y": ("f32", ["b", 1, 3])}, {})
    model, specialiser = opened(proto)
    for n in (2, 3, 5):
        x = np.random.default_rng(n).standard_normal((2, n, 3)).astype(np.float32)
        np.testing.assert_allclose(model(x), x.mean(1, keepdims=True), rtol=1e-5, atol=1e-6)
    assert specialiser.compilations == 3
