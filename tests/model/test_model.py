"""A compiled model: right results however it is called, from wherever, with whatever arrays; and clear words for wrong
ones.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop.device.device import Account
from stormdrop.ir.expr import Dtype
from stormdrop.ir.interp import evaluate
from stormdrop.ir.tensor import Task
from stormdrop.model.fixed_model import FixedModel
from stormdrop.model.image import Address, Image, Port, verify
from stormdrop.model.profile import Profile, ProfileRow, profile_of
from stormdrop.model.shared_weights import pack
from stormdrop.operators import catalogue
from stormdrop.target.structures import Scope
from tests.support.images import Draft, poisoned

Array = NDArray[Any]
N, K, H, M = 13, 29, 47, 37


def normal(*shape: int, seed: int = 5) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@cache
def dense(n: int, m: int, k: int) -> Task:
    """Y = relu(X @ W + b): W is packed, b stays as it is."""
    X, W, b = sd.tensor("X", (n, k)), sd.tensor("W", (k, m), constant=True), sd.tensor("b", (m,), constant=True)
    i, j, q = sd.axis(n), sd.axis(m), sd.reduce_axis(k)
    product = sd.compute("P", (i, j), sd.sum(X[i, q] * W[q, j], q))
    i, j = sd.axis(n), sd.axis(m)
    return sd.Task([sd.compute("Y", (i, j), sd.relu(product[i, j] + b[j]))], name="dense")


@cache
def addition(n: int, m: int) -> Task:
    A, B, i, j = sd.tensor("A", (n, m)), sd.tensor("B", (n, m)), sd.axis(n), sd.axis(m)
    return sd.Task([sd.compute("S", (i, j), A[i, j] + B[i, j])], name="addition")


@cache
def affine(n: int, dtype: Dtype = "i64") -> Task:
    """Y = w · X + c: the order of two such steps matters."""
    X, i = sd.tensor("X", (n,), dtype), sd.axis(n)
    w, c = (sd.tensor(name, (n,), dtype, constant=True) for name in ("w", "c"))
    return sd.Task([sd.compute("Y", i, X[i] * w[i] + c[i])], name="affine")


WEIGHTS = {"W": normal(K, H, seed=1), "b": normal(H, seed=2)}, {"W": normal(H, M, seed=3), "b": normal(M, seed=4)}


def two_layers(threads: int = 2) -> Draft:
    """y = layer(h), h = layer(x), z = y + u: inputs x and u, outputs y (read again by the last step) and z."""
    draft = Draft({"x": (N, K), "u": (N, M)}, {"y": (N, M), "z": (N, M)}, threads)
    hidden = draft.call(dense(N, H, K), {"X": draft.port("x")}, WEIGHTS[0], "first")
    draft.call(dense(N, M, H), {"X": hidden, "Y": draft.port("y")}, WEIGHTS[1], "second")
    draft.call(addition(N, M), {"A": draft.port("y"), "B": draft.port("u"), "S": draft.port("z")}, label="sum")
    return draft


def wanted(x: Array, u: Array) -> tuple[Array, Array]:
    y = x.astype(np.float64)
    for layer in WEIGHTS:
        y = np.maximum(y @ layer["W"] + layer["b"], 0)
    return y, y + u


def close(found: Array, right: Array) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


X, U = normal(N, K), normal(N, M, seed=6)


@cache
def shared_model() -> FixedModel:
    return two_layers().model()


# ---- right calls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_steps_hand_values_on_through_the_arena_and_through_outputs(threads: int) -> None:
    model = two_layers(threads).model()
    for _ in range(3):
        for found, right in zip(model(X, U), wanted(X, U)):
            close(found, right)
    assert model.threads == threads
    assert repr(model) == f"<model tiny, 3 kernels, {threads} thread{'s' if threads > 1 else ''}>"


def test_inputs_and_outputs_are_described_by_name_shape_and_type() -> None:
    model = shared_model()
    assert model.name == "tiny"
    assert model.inputs == (Port("x", (N, K), "f32"), Port("u", (N, M), "f32"))
    assert [repr(port) for port in model.outputs] == [f"y: f32[{N}, {M}]", f"z: f32[{N}, {M}]"]


def test_arrays_are_given_and_returned_by_name() -> None:
    found = shared_model().run({"u": U, "x": X})
    assert list(found) == ["y", "z"]
    for name, right in zip(("y", "z"), wanted(X, U)):
        close(found[name], right)


def test_a_single_output_is_an_array_of_its_own_each_time() -> None:
    draft = Draft({"x": (N, K)}, {"y": (N, H)})
    draft.call(dense(N, H, K), {"X": draft.port("x"), "Y": draft.port("y")}, WEIGHTS[0])
    model = draft.model()
    first = model(X)
    before = first.copy()
    assert not np.array_equal(model(-X), first)
    np.testing.assert_array_equal(first, before)


def test_a_hundred_steps_run_in_order() -> None:
    """Two arena buffers in turn, the same kernel with other constants each time; integers, so that the result is
    exact.
    """
    n, rng = 1000, np.random.default_rng(7)
    draft = Draft({"x": (n,)}, {"y": (n,)}, dtype="i64")
    sides = [draft.arena(8 * n), draft.arena(8 * n)]
    at, value = draft.port("x"), (x := rng.integers(-1000, 1000, n))
    for k in range(100):
        constants = {name: rng.integers(-9, 9, n) for name in ("w", "c")}
        value = value * constants["w"] + constants["c"]
        at = draft.call(affine(n), {"X": at, "Y": draft.port("y") if k == 99 else sides[k % 2]}, constants)
    model = draft.model()
    for _ in range(20):
        np.testing.assert_array_equal(model(x), value)
    assert len(model.image.kernels) == 1


def test_whatever_an_earlier_call_left_in_memory_changes_nothing() -> None:
    model = two_layers().model()
    first = model(X, U)
    assert model._idle
    poisoned(model)
    for a, b in zip(model(X, U), first):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(40, 700), (3, 70_000)], ids=["scratch", "workspace"])
def test_kernels_work_in_their_threads_scratch_and_in_the_arena(shape: tuple[int, int]) -> None:
    """Softmax of softmax; long rows take several phases, with what is between them in the arena."""
    task = catalogue.build("SFM", list(shape))
    draft = Draft({"x": shape}, {"y": shape})
    middle = draft.call(task, {"X": draft.port("x")})
    draft.call(task, {"X": middle, "Y": draft.port("y")})
    kernel = draft.image().kernels[0]
    assert bool(kernel.scratch_bytes) != any(buffer.scope is Scope.WORKSPACE for buffer in kernel.buffers)
    model = draft.model()
    x = 3 * normal(*shape)
    model(x)
    poisoned(model)
    (once,) = evaluate(task, {"X": x}).values()
    np.testing.assert_allclose(model(x), *evaluate(task, {"X": once}).values(), rtol=1e-5)


def test_a_step_without_phases_does_nothing() -> None:
    draft = two_layers()
    image = draft.image()
    nothing = replace(image.kernels[0], extents=())
    idle = replace(image.calls[0], kernel=len(image.kernels))
    image = replace(
        image, kernels=(*image.kernels, nothing), calls=(idle, image.calls[0], idle, idle, *image.calls[1:], idle)
    )
    sources = [0, 0, 0, 0, 1, 2, 0]
    model = FixedModel(image, pack(image, lambda n: draft.constants[sources[n]]))
    for found, right in zip(model(X, U), wanted(X, U)):
        close(found, right)
    assert len(model.profile(X, U, repeats=2).rows) == 7


def test_a_read_only_input_is_read_where_it_is_and_left_alone() -> None:
    x = X.copy()
    x.flags.writeable = False
    close(shared_model()(x, U)[0], wanted(X, U)[0])
    np.testing.assert_array_equal(x, X)


def test_arrays_without_elements_and_models_without_steps_work() -> None:
    draft = Draft({"x": (N, K), "none": (0, 5)}, {"y": (N, H), "void": (3, 0)})
    draft.call(dense(N, H, K), {"X": draft.port("x"), "Y": draft.port("y")}, WEIGHTS[0])
    y, void = draft.model()(X, np.zeros((0, 5), np.float32))
    close(y, np.maximum(X @ WEIGHTS[0]["W"] + WEIGHTS[0]["b"], 0))
    assert void.shape == (3, 0)
    empty = Draft({"none": (0,)}, {"void": (0, 2)}).model()
    assert empty(np.zeros(0, np.float32)).shape == (0, 2)
    assert empty.run({"none": np.zeros(0, np.float32)})["void"].shape == (0, 2)
    assert len(empty.bench(np.zeros(0, np.float32), repeats=3)) == 3
    assert empty.profile(np.zeros(0, np.float32), repeats=3).rows == ()


# ---- wrong calls ------------------------------------------------------------------------------------------------

WRONG_NAMES: dict[str, tuple[Any, str]] = {
    "unknown": ({"x": X, "u": U, "v": U}, "tiny has no input 'v'; its inputs: 'x', 'u'"),
    "missing": ({"x": X}, "tiny needs 'u'; its inputs: 'x', 'u'"),
    "no mapping": ([X, U], "by name, {'x', 'u': array}, not list"),
    "shape": ({"x": X.T, "u": U}, "x: .* has shape"),
}


@pytest.mark.parametrize("mistake", WRONG_NAMES)
def test_wrong_names_are_refused_with_those_that_are_known(mistake: str) -> None:
    inputs, message = WRONG_NAMES[mistake]
    with pytest.raises(sd.UserError, match=message):
        shared_model().run(inputs)


# ---- threads, processes -----------------------------------------------------------------------------------------


def wide(threads: int = 2) -> Draft:
    """A model whose arena lies in pages of its own, with a value that lives across a step."""
    n = 300
    draft = Draft({"x": (n, n)}, {"y": (n, n)}, threads)
    first = draft.call(addition(n, n), {"A": draft.port("x"), "B": draft.port("x")})
    second = draft.call(addition(n, n), {"A": first, "B": draft.port("x")})
    draft.call(addition(n, n), {"A": first, "B": second, "S": draft.port("y")})
    return draft


@pytest.mark.parametrize("threads", [1, 2])
def test_eight_python_threads_call_one_model_at_once(threads: int) -> None:
    model = wide(threads).model()
    inputs = [normal(300, 300, seed=k) for k in range(8)]
    failures: list[object] = []

    def call(x: Array) -> None:
        try:
            for _ in range(30):
                np.testing.assert_allclose(model(x), 5 * x, rtol=1e-5)
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=call, args=(x,)) for x in inputs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures
    assert len(model._idle) <= 8


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parent_and_forked_children_run_a_loaded_model_at_once() -> None:
    model = wide().model()
    x = normal(300, 300)
    np.testing.assert_allclose(model(x), 5 * x, rtol=1e-5)

    def works(seed: int) -> bool:
        mine = normal(300, 300, seed=seed)
        return all(np.allclose(model(mine), 5 * mine, rtol=1e-5) for _ in range(200))

    children: list[int] = []
    for seed in (1, 2):
        child = os.fork()
        if not child:
            signal.alarm(60)
            os._exit(0 if works(seed) else 1)
        children.append(child)
    good = works(3)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert good


# ---- packing ----------------------------------------------------------------------------------------------------


def test_constants_are_asked_for_step_by_step_and_dropped_before_the_next() -> None:
    draft = two_layers()
    given: list[tuple[int, weakref.ref[Array]]] = []

    def constants(n: int) -> Mapping[str, Array]:
        assert all(array() is None for _, array in given)
        arrays = {name: array.copy() for name, array in draft.constants[n].items()}
        given.extend((n, weakref.ref(array)) for array in arrays.values())
        return arrays

    image = draft.image()
    model = FixedModel(image, pack(image, constants))
    assert sorted(n for n, _ in given) == [0, 0, 1, 1]  # the last step has none
    close(model(X, U)[0], wanted(X, U)[0])


def test_steps_with_the_same_weights_are_packed_once() -> None:
    draft = Draft({"x": (N, N)}, {"y": (N, N)})
    layer = {"W": normal(N, N), "b": normal(N)}
    middle = draft.call(dense(N, N, N), {"X": draft.port("x")}, layer)
    draft.call(dense(N, N, N), {"X": middle, "Y": draft.port("y")}, layer)
    kept = [a if a is not None and a.space == "weights" else None for a in draft.calls[0].addresses]
    draft.calls[1] = replace(draft.calls[1], addresses=tuple(a or b for a, b in zip(kept, draft.calls[1].addresses)))
    asked: list[int] = []
    image = draft.image()
    model = FixedModel(image, pack(image, lambda n: asked.append(n) or layer))
    x = normal(N, N, seed=9)
    right = np.maximum(np.maximum(x @ layer["W"] + layer["b"], 0) @ layer["W"] + layer["b"], 0)
    close(model(x), right)
    assert asked == [0]


def test_constants_of_a_wrong_size_are_refused() -> None:
    draft = two_layers()
    draft.constants[0] = {**draft.constants[0], "b": normal(H + 1)}
    with pytest.raises(ValueError, match=f"constant b has {H + 1} elements; it must have {H}"):
        pack(draft.image(), lambda n: draft.constants[n])


def test_weights_may_lie_anywhere_but_must_be_all_there() -> None:
    draft = two_layers()
    image = draft.image()
    weights = pack(image, lambda n: draft.constants[n])
    shifted = np.concatenate([np.zeros(1, np.uint8), weights])[1:]
    for found, right in zip(FixedModel(image, shifted)(X, U), wanted(X, U)):
        close(found, right)
    with pytest.raises(sd.UserError, match=rf"tiny needs {image.weights_bytes} bytes of weights, not uint8\[5\]"):
        FixedModel(image, weights[:5])


# ---- damaged images ---------------------------------------------------------------------------------------------


def with_address(image: Image, step: int, buffer: str, address: Address | None) -> Image:
    names = [s.name for s in image.kernels[image.calls[step].kernel].buffers]
    addresses = list(image.calls[step].addresses)
    addresses[names.index(buffer)] = address
    steps = list(image.calls)
    steps[step] = replace(steps[step], addresses=tuple(addresses))
    return replace(image, calls=tuple(steps))


DAMAGE: dict[str, tuple[Callable[[Image], Image], str]] = {
    "no kernel": (lambda image: replace(image, kernels=image.kernels[:2]), r"step 2 \(sum\): there is no kernel 2"),
    "addresses": (lambda image: replace(image, calls=(replace(image.calls[0], addresses=()),)), "0 addresses for"),
    "no input": (
        lambda image: with_address(image, 0, "X", Address("input", 2, 0)),
        r"step 0 \(first\): input X: there is no input 2",
    ),
    "beyond": (lambda image: with_address(image, 1, "X", Address("arena", 0, 1 << 40)), "not within"),
    "before": (lambda image: with_address(image, 1, "X", Address("arena", 0, -64)), "not within"),
    "weights beyond": (lambda image: replace(image, weights_bytes=image.weights_bytes - 512), "not within"),
    "odd": (lambda image: with_address(image, 1, "X", Address("arena", 0, 2)), "no multiple of 4"),
    "space": (
        lambda image: with_address(image, 2, "S", Address("input", 0, 0)),
        "output S: it cannot be in the space 'input'",
    ),
    "nowhere": (lambda image: with_address(image, 0, "b", None), "constant b: it has no address"),
    "unwritten": (
        lambda image: replace(image, calls=image.calls[:2]),
        f"no step writes the output z: f32\\[{N}, {M}\\]",
    ),
    "names": (lambda image: replace(image, outputs=(image.outputs[0],) * 2), "one name: y, y"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_image_is_refused(damage: str) -> None:
    harm, message = DAMAGE[damage]
    image = two_layers().image()
    verify(image)
    with pytest.raises(sd.UserError, match=message):
        FixedModel(harm(image), np.zeros(image.weights_bytes, np.uint8))


# ---- timing -----------------------------------------------------------------------------------------------------


def test_a_profile_has_a_row_for_each_step_and_adds_up() -> None:
    model = shared_model()
    profile = model.profile(X, U, repeats=5, standalone=True)
    assert [row.label for row in profile.rows] == ["first", "second", "sum"]
    assert [row.digest for row in profile.rows] == [step.digest for step in model.image.calls]
    assert all(
        row.seconds > 0 and row.standalone is not None and row.standalone > 0 and row.count == 1 for row in profile.rows
    )
    assert sum(row.share for row in profile.rows) == pytest.approx(1)
    for row, step in zip(profile.rows, model.image.calls):
        assert row.gflops == pytest.approx(step.flops / row.seconds / 1e9)
        assert row.gbs == pytest.approx(step.nbytes / row.seconds / 1e9)
        assert row.peak_share == pytest.approx(row.gflops / profile.peak_gflops)
        assert row.computing + row.off + row.late + row.waiting == pytest.approx(row.seconds)
        assert row.busy_alone is not None
        assert row.judged is not None
        assert row.judged > 0
        assert row.slowdown == pytest.approx(row.computing - row.busy_alone)
    assert profile.seconds == pytest.approx(sum(row.seconds for row in profile.rows))
    assert (profile.name, profile.threads, profile.repeats) == ("tiny", 2, 5)


def test_inputs_that_cannot_be_written_are_profiled_alone() -> None:
    """Interludes write to inputs: to copies of the caller's."""
    pages = mmap.mmap(-1, X.nbytes, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    zeros = np.frombuffer(pages, X.dtype).reshape(X.shape)
    assert shared_model().profile(zeros, U, repeats=2, standalone=True).repeats == 2


def test_equal_tasks_of_a_profile_are_added_up() -> None:
    profile = wide().model().profile(normal(300, 300), repeats=4)
    (row,) = profile.by_task().rows
    assert (row.count, row.standalone) == (3, None)
    assert row.seconds == pytest.approx(sum(r.seconds for r in profile.rows))
    assert row.flops == sum(r.flops for r in profile.rows)
    assert row.share == pytest.approx(1)


def test_a_profile_has_shares_of_the_bandwidth_of_memory_where_that_is_known() -> None:
    calls = shared_model().image.calls
    seconds = np.full((4, len(calls)), 1e-3)
    account = Account(seconds, 0 * seconds, seconds, 0 * seconds)
    profile = profile_of("tiny", 2, calls, account, 100.0, memory_gbs=10.0)
    for row in (*profile.rows, *profile.by_task().rows):
        assert row.memory_share == pytest.approx(row.nbytes / row.seconds / 10e9)
    assert "of memory" in str(profile)
    assert "of memory" not in str(profile_of("tiny", 2, calls, account, 100.0))


def test_a_profile_is_a_table_for_people_and_plain_data_for_programs() -> None:
    profile = shared_model().profile(X, U, repeats=3)
    lines = str(profile).splitlines()
    assert lines[0].startswith("tiny: ")
    assert "3 kernels, 2 threads" in lines[0]
    assert lines[1].split()[-3:] == ["kernel", "node", "shapes"]
    assert [line.split()[-3:] for line in lines[2:]] == [[label, "–", "–"] for label in ("first", "second", "sum")]
    data: Any = json.loads(json.dumps(profile.to_json()))
    assert [row["label"] for row in data["rows"]] == ["first", "second", "sum"]
    row = replace(profile.rows[0], label="a\x1b[31m\nb", node="\x1b[0mc")
    assert "\\x1b[0mc" in str(Profile("m", 1, 1, 1.0, 1.0, (row,)))
    assert "a\\x1b[31m\\nb" in str(Profile("m", 1, 1, 1.0, 1.0, (row,)))


def test_a_row_of_a_profile_names_the_task_the_shapes_and_the_node() -> None:
    row = ProfileRow("Conv3x3", "d", 1, 1e-3, id="t3", shapes="1x4x4x8, 3x3x8x8 → 1x4x4x8", node="block/conv")
    copy = ProfileRow("Copy", "e", 1, 2e-3)
    lines = str(Profile("m", 1, 1, 3e-3, 1.0, (row, copy))).splitlines()
    assert lines[2].split()[0] == "t3"
    assert lines[2].endswith("Conv3x3  block/conv  1x4x4x8, 3x3x8x8 → 1x4x4x8")
    assert lines[3].split()[0] == "–"
    assert lines[4] == "stormdrop show MODEL t3 shows how a task is computed"


def test_bench_gives_the_seconds_of_each_run_and_computes() -> None:
    seconds = shared_model().bench(X, U, repeats=7)
    assert seconds.shape == (7,)
    assert (seconds > 0).all()
    with pytest.raises(sd.UserError, match="takes 2 arrays"):
        shared_model().bench(X)
