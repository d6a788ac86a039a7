"""Models with open dimensions: dispatch by shape, shared weights and arenas, limits, errors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

import stormdrop as sd
from stormdrop.compiler.specialise import Build, Sharing, Specialiser
from stormdrop.frontend.mixed import MixedGraph
from stormdrop.graph.graph import Graph
from stormdrop.model.open_model import OpenModel, Specialised
from tests.support.open_onnx import open_onnx, perceptron

Array = NDArray[Any]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))


def opened(model: Any, **options: Any) -> OpenModel:
    compiled = sd.compile(model, threads=2, **options)
    assert isinstance(compiled, OpenModel)
    return compiled


def rows(n: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((n, 32)).astype(np.float32)


def expected(proto: ModelProto, x: Array) -> Array:
    first, second, shift = (numpy_helper.to_array(t) for t in proto.graph.initializer)
    return np.maximum(x @ first, 0) @ second + shift


def test_a_model_with_an_open_dimension_takes_any_size() -> None:
    proto = perceptron()
    model = opened(proto)
    for n in (1, 7, 2, 7, 33):
        np.testing.assert_allclose(model(rows(n)), expected(proto, rows(n)), rtol=1e-4, atol=1e-4)
    assert len(model.models) == 4
    assert repr(model) == "<model net, open in rows, compiled for 4 sizes>"


def test_its_ports_name_the_open_dimensions() -> None:
    model = opened(perceptron())
    assert [repr(p) for p in (*model.inputs, *model.outputs)] == ["x: f32[rows, 32]", "y: f32[rows, 20]"]
    assert model.inputs[0].shape == (-1, 32)


def test_it_is_a_model_whose_image_and_weights_belong_to_its_sizes() -> None:
    model = opened(perceptron(), shapes=[{"x": (2, 32)}])
    assert isinstance(model, sd.Model)
    for name in ("image", "weights", "chunks"):
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match=rf"one {name} for each size: specialise\(shapes\).{name}"):
            getattr(model, name)
    two = model.specialise({"x": (2, 32)})
    assert isinstance(two, sd.Model)
    assert not isinstance(two, OpenModel)
    assert two.weights.nbytes == two.image.weights_bytes
    assert model.origins == two.origins != {}
    model.attach()


def test_doubles_are_converted_at_every_size() -> None:
    model, x = opened(perceptron()), rows(3).astype(np.float64) / 3
    right = model(x.astype(np.float32))
    np.testing.assert_array_equal(model(x), right)
    np.testing.assert_array_equal(model(x.tolist()), right)
    with pytest.raises(sd.UserError, match=r"x: f32\[3, 32\].*use x.astype\(np.float32\)"):
        model(x * 1e300)


def test_names_out_bench_and_profile_work_as_of_any_model() -> None:
    model = opened(perceptron())
    x = rows(3)
    assert np.array_equal(model(x), model.run({"x": x})["y"])
    out = np.empty((3, 20), np.float32)
    assert model(x, out=out) is out
    assert len(model.bench(x, repeats=3)) == 3
    assert model.profile(x, repeats=3).name == "net"


def test_a_size_gives_the_bits_that_a_model_of_that_size_gives() -> None:
    proto = perceptron()
    model = opened(proto)
    for n in (1, 5, 16):
        alone = sd.compile(proto, shapes={"x": (n, 32)}, threads=2)
        assert not isinstance(alone, OpenModel)
        assert alone.inputs[0].shape == (n, 32)
        assert np.allclose(model(rows(n)), alone(rows(n)), rtol=1e-5, atol=1e-5)


def test_shapes_ahead_are_compiled_at_once_and_others_when_they_come() -> None:
    model = opened(perceptron(), shapes=[{"x": (2, 32)}, {"x": (4, 32)}])
    assert sorted(m.inputs[0].shape[0] for m in model.models) == [2, 4]
    model(rows(3))
    assert len(model.models) == 3


def test_a_packed_constant_is_held_once_for_all_sizes() -> None:
    model = opened(perceptron(width=256))
    for n in (1, 2, 3, 4, 8, 16, 32):
        model(rows(n))
    packed = [m.image.weights_bytes for m in model.models]
    chunks = {id(chunk): chunk for m in model.models for chunk in m.chunks}
    assert sum(chunk.nbytes for chunk in chunks.values()) < 1.5 * max(packed)


def test_all_sizes_share_one_arena() -> None:
    model = opened(perceptron())
    for n in (1, 64, 8, 32):
        model(rows(n))
    specialiser = model._specialise
    assert isinstance(specialiser, Specialiser)
    assert len(specialiser._sharing.arenas._idle) == 1


def test_the_least_recently_used_models_go() -> None:
    proto = perceptron()
    model = opened(proto)
    model._most_models = 3
    for n in (4, 2, 3, 4, 1):
        model(rows(n))
    assert [m.inputs[0].shape[0] for m in model.models] == [3, 4, 1]
    np.testing.assert_allclose(model(rows(2)), expected(proto, rows(2)), rtol=1e-4, atol=1e-4)
    gc.collect()
    specialiser = model._specialise
    assert isinstance(specialiser, Specialiser)
    (arena,) = specialiser._sharing.arenas._idle
    assert len(arena.recordings) == 3  # the one of a model that went is freed


def test_threads_that_call_different_sizes_get_what_a_serial_caller_gets() -> None:
    model = opened(perceptron(width=128))
    sizes = (1, 2, 3, 5, 8, 13, 21, 34)
    serial = {n: model(rows(n, seed=n)) for n in sizes}
    fresh = opened(perceptron(width=128))
    wrong: list[int] = []

    def call(first: int) -> None:
        for k in range(40):
            n = sizes[(first + k) % len(sizes)]
            if not np.array_equal(fresh(rows(n, seed=n)), serial[n]):
                wrong.append(n)

    callers = [Thread(target=call, args=(k,)) for k in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
    assert len(fresh.models) == len(sizes)


def held_up(model: OpenModel, size: int) -> tuple[list[int], Event, Callable[[], None]]:
    """Returns the sizes compiled from now on, an event when compiling `size` begins, and a call that ends the wait."""
    specialiser = model._specialise
    assert isinstance(specialiser, Specialiser)
    build: Build = specialiser._build
    sizes: list[int] = []
    begun, go = Event(), Event()

    def slow(graphs: list[Graph | MixedGraph], sharing: Sharing) -> sd.Model:
        assert isinstance(graphs[0], Graph)
        sizes.append(graphs[0].inputs[0].shape[0])
        if sizes[-1] == size:
            begun.set()
            assert go.wait(60)
        return build(graphs, sharing)

    specialiser._build = slow
    return sizes, begun, go.set


def test_threads_at_a_new_size_compile_it_once_and_block_no_other_size() -> None:
    proto = perceptron()
    model = opened(proto)
    sizes, begun, go = held_up(model, 3)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(model, rows(3)) for _ in range(3)]
        assert begun.wait(60)
        np.testing.assert_allclose(model(rows(5)), expected(proto, rows(5)), rtol=1e-4, atol=1e-4)
        go()
        for call in calls:
            np.testing.assert_allclose(call.result(), expected(proto, rows(3)), rtol=1e-4, atol=1e-4)
    assert sizes == [3, 5]
    assert len(model.models) == 2


def test_sizes_that_are_compiled_at_once_hold_a_packed_constant_once() -> None:
    model = opened(perceptron(width=256))
    model(rows(1))
    sizes = (2, 3, 4, 8, 16, 32)
    with ThreadPoolExecutor(len(sizes)) as pool:
        list(pool.map(model, map(rows, sizes)))
    packed = [m.image.weights_bytes for m in model.models]
    chunks = {id(chunk): chunk for m in model.models for chunk in m.chunks}
    assert sum(chunk.nbytes for chunk in chunks.values()) < 1.5 * max(packed)


def test_a_model_that_is_closed_while_a_size_is_compiled_keeps_no_size() -> None:
    proto = perceptron()
    model = opened(proto)
    _, begun, go = held_up(model, 3)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(model, rows(3))
        assert begun.wait(60)
        model.close()
        go()
        np.testing.assert_allclose(call.result(), expected(proto, rows(3)), rtol=1e-4, atol=1e-4)
    assert model.models == ()
    with pytest.raises(sd.UserError, match="is closed"):
        model(rows(3))


def test_two_inputs_must_agree_on_a_dimension_of_one_name() -> None:
    ports = {"a": ("f32", ["n", 4]), "b": ("f32", ["n", 4])}
    model = opened(open_onnx([helper.make_node("Add", ["a", "b"], ["y"])], ports, {"y": ("f32", ["n", 4])}, {}))
    two, three = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
    assert model(two, two).sum() == 16
    with pytest.raises(sd.UserError, match=r"dimension n of net is 2 in a and 3 in b; .*shapes="):
        model(two, three)
    assert model.specialise({"a": (5, 4)}).inputs[1].shape == (5, 4)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((1, 31), r"input for x: f32\[rows, 32\] has shape \(1, 31\); shapes="),
        ((32,), r"has shape \(32,\); shapes="),
        ((1, 1, 32), r"has shape \(1, 1, 32\); shapes="),
    ],
)
def test_an_array_that_fills_more_than_the_open_dimensions_is_refused(shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(sd.UserError, match=told):
        opened(perceptron())(np.zeros(shape, np.float32))


def test_shapes_that_do_not_settle_everything_leave_the_rest_open() -> None:
    ports = {"a": ("f32", ["n", "m"]), "b": ("f32", ["k"])}
    nodes = [helper.make_node("ReduceSum", ["b"], ["s"]), helper.make_node("Mul", ["a", "s"], ["y"])]
    proto = open_onnx(nodes, ports, {"y": ("f32", ["n", "m"])}, {})
    model = opened(proto, shapes={"a": (2, 3)})
    assert [repr(p) for p in model.inputs] == ["a: f32[2, 3]", "b: f32[k]"]
    assert np.array_equal(model(np.ones((2, 3), np.float32), np.ones(4, np.float32)), np.full((2, 3), 4.0))
    with pytest.raises(sd.UserError, match="shapes= leaves open k of the input b"):
        model.specialise({"a": (2, 3)})


def test_an_operator_that_is_not_supported_is_refused_when_compiling() -> None:
    nodes = [helper.make_node("Nonsense", ["x"], ["y"], domain="example")]
    proto = open_onnx(nodes, {"x": ("f32", ["n"])}, {"y": ("f32", ["n"])}, {})
    with pytest.raises(sd.UserError, match="Nonsense"):
        sd.compile(proto)


def test_what_fails_for_a_size_names_the_shapes() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    ports = {"x": ("f32", ["n"])}
    proto = open_onnx(nodes, ports, {"y": ("f32", [2, 3])}, {"shape": np.array([2, 3], np.int64)})
    model = opened(proto)
    assert model(np.ones(6, np.float32)).shape == (2, 3)
    specialise = model._specialise
    assert specialise is not None
    asked: list[Any] = []

    def counted(shapes: tuple[tuple[int, ...], ...], is_exact: bool) -> Specialised:
        asked.append(shapes)
        return specialise(shapes, is_exact)

    model._specialise = counted
    for _ in range(2):
        with pytest.raises(sd.UserError, match=r"compiled for shapes=\{'x': \(7,\)\}"):
            model(np.ones(7, np.float32))
    assert len(asked) == 1


def test_a_file_that_has_changed_is_not_mixed_with_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(perceptron(seed=0).SerializeToString())
    model = opened(path)
    first = model(rows(2))
    path.write_bytes(perceptron(seed=1).SerializeToString())
    assert np.array_equal(model(rows(2)), first)
    with pytest.raises(sd.UserError, match="has changed since the model was opened"):
        model(rows(3))


def test_a_size_whose_file_could_not_be_read_is_compiled_when_the_file_is_back(tmp_path: Path) -> None:
    path, aside = tmp_path / "m.onnx", tmp_path / "aside.onnx"
    path.write_bytes(perceptron().SerializeToString())
    model = opened(path)
    path.rename(aside)
    with pytest.raises(sd.UserError, match="cannot be read"):
        model(rows(2))
    aside.rename(path)
    assert model(rows(2)).shape == (2, 20)


def test_a_model_of_one_size_names_shapes_when_it_gets_another() -> None:
    model = sd.compile(perceptron(), shapes={"x": (2, 32)}, threads=2)
    with pytest.raises(sd.UserError, match=r"has shape \(3, 32\); it must be \(2, 32\); shapes="):
        model(rows(3))
    with pytest.raises(sd.UserError, match="type int64") as error:
        model(rows(2).astype(np.int64))
    assert "shapes=" not in str(error.value)


def test_several_shapes_of_a_model_without_open_dimensions_are_refused() -> None:
    ports = {"x": ("f32", [2])}
    proto = open_onnx([helper.make_node("Relu", ["x"], ["y"])], ports, {"y": ("f32", [2])}, {})
    with pytest.raises(sd.UserError, match="no open dimensions"):
        sd.compile(proto, shapes=[{"x": (2,)}])


def test_it_is_called_by_name_and_closed_with_all_its_sizes() -> None:
    proto = perceptron()
    with opened(proto) as model:
        np.testing.assert_array_equal(model(x=rows(3)), model(rows(3)))
        assert list(model.run({"x": rows(2)}, outputs=["y"])) == ["y"]
        (first, second) = model.models
    for use in (lambda: model(rows(3)), lambda: model(rows(4)), lambda: first(rows(3)), lambda: second(rows(2))):
        with pytest.raises(sd.UserError, match="is closed"):
            use()


def test_memory_stays_flat_over_many_calls_at_different_sizes() -> None:
    model = opened(perceptron())
    arrays = [rows(n) for n in range(1, 5)]

    def resident_after(calls: int) -> int:
        for k in range(calls):
            model(arrays[k % 4])
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = resident_after(5_000)
    assert resident_after(50_000) < 1.02 * before
