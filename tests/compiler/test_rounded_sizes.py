"""Sequences of many lengths in few models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

import stormdrop as sd
from stormdrop.compiler.specialise import Specialiser, rounded_size
from stormdrop.model.open_model import OpenModel
from stormdrop.operators.node import Value
from tests.support.open_onnx import decoder, open_onnx

ort = pytest.importorskip("onnxruntime")
Array = NDArray[Any]


PROTO = decoder(layers=1, width=16, heads=2, words=30)


def opened(model: Any, **options: Any) -> tuple[OpenModel, Specialiser]:
    compiled = sd.compile(model, threads=2, **options)
    assert isinstance(compiled, OpenModel)
    specialiser = compiled._specialise
    assert isinstance(specialiser, Specialiser)
    return compiled, specialiser


@pytest.fixture(scope="module")
def small_decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenModel, Specialiser]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORMDROP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return opened(PROTO)


@pytest.fixture(scope="module")
def session() -> Any:
    return ort.InferenceSession(PROTO.SerializeToString())


@dataclass(eq=False)
class StandIn:
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def model(self) -> StandIn:
        return self


def test_sizes_are_rounded_to_two_in_an_octave() -> None:
    assert [rounded_size(n) for n in (0, 1, 2, 16, 17, 24, 25, 33, 49, 97)] == [0, 1, 16, 16, 24, 24, 32, 48, 64, 128]
    assert all(n <= rounded_size(n) < 1.5 * n + 16 for n in range(1, 2000))


def test_generating_128_words_compiles_at_most_8_times() -> None:
    _, specialiser = opened(PROTO)
    asked: list[tuple[int, ...]] = []

    def build(graph: list[Any], sharing: object) -> Any:
        asked.append(graph[0].inputs[0].shape)
        return StandIn(graph[0].inputs, graph[0].outputs)

    specialiser._build = build
    held = [specialiser(((1, n),)).model for n in range(3, 131)]  # a model is known as long as somebody holds it
    assert len({id(model) for model in held}) == len(asked)
    assert len(asked) == specialiser.compilations <= 8
    assert asked == [(1, n) for n in (16, 24, 32, 48, 64, 96, 128, 192)]


def test_threads_at_lengths_that_round_to_one_size_compile_it_once() -> None:
    _, specialiser = opened(PROTO)
    asked: list[tuple[int, ...]] = []
    begun, go = Event(), Event()

    def build(graph: list[Any], sharing: object) -> Any:
        asked.append(graph[0].inputs[0].shape)
        begun.set()
        assert go.wait(60)
        return StandIn(graph[0].inputs, graph[0].outputs)

    specialiser._build = build
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(specialiser, ((1, 9),))
        assert begun.wait(60)
        others = [pool.submit(specialiser, ((1, n),)) for n in (5, 16)]
        go.set()
        held = [call.result().model for call in (first, *others)]
    assert asked == [(1, 16)]
    assert len({id(model) for model in held}) == 1


def test_every_length_gives_what_onnxruntime_gives(small_decoder: tuple[OpenModel, Specialiser], session: Any) -> None:
    model, specialiser = small_decoder
    rng = np.random.default_rng(0)
    before = specialiser.compilations
    for n in range(1, 25):
        ids = rng.integers(0, 30, (1, n))
        np.testing.assert_allclose(model(ids), session.run(None, {"ids": ids})[0], rtol=1e-3, atol=1e-4)
    assert specialiser.compilations - before <= 3


def test_a_batch_is_not_rounded(small_decoder: tuple[OpenModel, Specialiser], session: Any) -> None:
    model, specialiser = small_decoder
    before = specialiser.compilations
    rng = np.random.default_rng(0)
    for shape in ((3, 5), (3, 7), (3, 16)):
        ids = rng.integers(0, 30, shape)
        np.testing.assert_allclose(model(ids), session.run(None, {"ids": ids})[0], rtol=1e-3, atol=1e-4)
    assert specialiser.compilations == before + 1
    assert model.models[-1].inputs[0].shape == (3, 16)


def test_outputs_go_where_the_caller_wants_them(small_decoder: tuple[OpenModel, Specialiser]) -> None:
    model, _ = small_decoder
    ids = np.array([[1, 2, 3]])
    out = np.empty((1, 3, 30), np.float32)
    assert model(ids, out=out) is out
    assert np.array_equal(out, model(ids))
    assert len(model.bench(ids, repeats=2)) == 2
    with pytest.raises(sd.UserError, match="out= needs an array"):
        model(ids, out=np.empty((1, 4, 30), np.float32))
    with pytest.raises(sd.UserError, match="type float32"):
        model(ids.astype(np.float32))


def test_a_padded_input_is_converted_as_any_other(small_decoder: tuple[OpenModel, Specialiser]) -> None:
    model, _ = small_decoder
    ids = np.array([[1, 2, 3]])
    np.testing.assert_array_equal(model(ids.astype(np.int32)), model(ids))
    with pytest.raises(sd.UserError, match=r"use x.astype\(np.int64\)"):
        model(ids.astype(np.uint64) + 2**63)


def test_where_there_is_no_proof_every_size_has_its_own_model() -> None:
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1])]
    proto = open_onnx(nodes, {"x": ("f32", ["b", "n", 3])}, {"y": ("f32", ["b", 1, 3])}, {})
    model, specialiser = opened(proto)
    for n in (2, 3, 5):
        x = np.random.default_rng(n).standard_normal((2, n, 3)).astype(np.float32)
        np.testing.assert_allclose(model(x), x.mean(1, keepdims=True), rtol=1e-5, atol=1e-6)
    assert specialiser.compilations == 3
