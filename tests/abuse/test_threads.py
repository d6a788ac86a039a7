"""A compiled model in the hands of callers who change, free, share and interrupt: results stay right, and belong to
their caller.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

import stormdrop as sd
from stormdrop.device import arrays
from stormdrop.model import fixed_model as runtime
from tests.support.abused_onnx import model, node, port

Array = NDArray[Any]
W = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
ROOT = Path(__file__).parents[2]


def network() -> Any:
    nodes = [
        node("MatMul", "x w", "h"),
        node("Relu", "h", "r"),
        node("Softmax", "r", "y"),
        node("ReduceSum", "r", "s", keepdims=0),
    ]
    return model(nodes, [port("x", (32, 64))], "y s", {"w": W})


@cache
def compiled() -> sd.Model:
    return sd.compile(network())


def random_x(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((32, 64)).astype(np.float32)


def assert_right(found: Any, x: Array) -> None:
    r = np.maximum(x @ W, 0)
    e = np.exp(r - r.max(1, keepdims=True))
    np.testing.assert_allclose(found[0], e / e.sum(1, keepdims=True), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found[1], r.sum(), rtol=1e-4)


# ---- arrays


class Lazy:
    """Knows how to become an array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return random_x(1)


def unaligned(x: Array) -> Array:
    return np.frombuffer(b"?" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)


def test_arrays_of_any_layout_and_origin_are_taken() -> None:
    x = random_x(1)
    frozen = x.copy()
    frozen.flags.writeable = False
    forms: list[Any] = [
        np.asfortranarray(x),
        np.repeat(x, 2, 1)[:, ::2],
        x[::-1].copy()[::-1],
        unaligned(x),
        frozen,
        x.data,
        Lazy(),
        np.ma.masked_array(x),
        [list(row) for row in x],
        x.astype(np.float64),
        x.tolist(),
    ]
    for form in forms:
        assert_right(compiled()(form), x)
    row = np.broadcast_to(x[0], (32, 64))
    assert_right(compiled()(row), row)


@pytest.mark.parametrize(
    "wrong",
    [
        random_x(1).astype(">f4"),
        random_x(1).astype(object),
        np.full((32, 64), "a"),
        [[1], [2, 3]],
        None,
        "x",
        {"x": random_x(1)},
        np.zeros((32, 64), [("a", "f4")]),
        random_x(1)[:5],
        random_x(1).astype(complex),
    ],
    ids=["foreign", "objects", "texts", "ragged", "none", "text", "dict", "records", "short", "complex"],
)
def test_what_is_no_fitting_array_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(sd.UserError, match=r"input for x: f32\[32, 64\]"):
        compiled()(wrong)


def test_an_array_may_change_or_die_as_soon_as_the_call_returns() -> None:
    x = random_x(2)
    right = x.copy()
    found = compiled()(x)
    x[...] = np.nan
    del x
    gc.collect()
    assert_right(found, right)


def test_numbers_of_runs_are_checked() -> None:
    for repeats in (0, -1, 2.5, 2**62):
        with pytest.raises(sd.UserError, match="repeats"):
            compiled().bench(random_x(1), repeats=repeats)  # pyright: ignore[reportArgumentType]
        with pytest.raises(sd.UserError, match="repeats"):
            compiled().profile(random_x(1), repeats=repeats)  # pyright: ignore[reportArgumentType]
    assert compiled().bench(random_x(1), repeats=7).shape == (7,)


def test_a_run_without_memory_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = sd.compile(network())
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "SLACK_BYTES", 1 << 60)
        with pytest.raises(sd.RunError, match="no memory for a run of g"):
            fresh(random_x(1))
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "ALIGN_BYTES", 1 << 60)
        with pytest.raises(sd.RunError, match="no memory for y"):
            fresh(random_x(1))
    assert_right(fresh(random_x(1)), random_x(1))


def test_a_shape_may_be_of_numpys_numbers() -> None:
    assert sd.load(network(), shapes={"x": tuple(np.array([32, 64]))}).inputs[0].shape == (32, 64)


def test_a_bound_array_is_copied_and_must_be_one() -> None:
    x = random_x(4)
    bound = sd.compile(network(), constants={"x": x})
    x[...] = 0
    assert_right(bound(), random_x(4))
    for wrong in ([[1], [2, 3]], None, np.zeros(3)):
        with pytest.raises(sd.UserError):
            sd.load(network(), constants={"x": wrong})  # pyright: ignore[reportArgumentType]
    with pytest.raises(sd.UserError, match="constants= takes arrays by name"):
        sd.load(network(), constants=[x])  # pyright: ignore[reportArgumentType]


# ---- threads and processes


def together(count: int, work: Callable[[int], None]) -> None:
    """Run work(0) … work(count - 1) at once; their errors are raised here."""
    errors: list[BaseException] = []

    def guarded(k: int) -> None:
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_eight_threads_call_two_models_at_once() -> None:
    other = sd.compile(model([node("MatMul", "x w", "y")], [port("x", (8, 64))], "y", {"w": W}))

    def work(k: int) -> None:
        for n in range(25):
            x = random_x(100 * k + n)
            assert_right(compiled()(x), x)
            np.testing.assert_allclose(other(x[:8]), x[:8] @ W, rtol=1e-3, atol=1e-4)

    together(8, work)


def test_models_are_compiled_in_threads_at_once() -> None:
    def work(k: int) -> None:
        assert_right(sd.compile(network())(random_x(k)), random_x(k))

    together(3, work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_children_forked_while_another_thread_runs_the_model_compute_right() -> None:
    stop, x = threading.Event(), random_x(5)
    runs = compiled()

    def busy() -> None:
        while not stop.is_set():
            runs(x)

    thread = threading.Thread(target=busy)
    thread.start()
    statuses: list[int] = []
    try:
        for _ in range(4):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                try:
                    assert_right(runs(x), x)
                    os._exit(0)
                finally:
                    os._exit(1)
            statuses.append(os.waitpid(child, 0)[1])
    finally:
        stop.set()
        thread.join()
    assert statuses == [0] * 4
    assert_right(runs(x), x)


def test_a_model_is_freed_while_its_results_live() -> None:
    short = sd.compile(model([node("Relu", "x", "y")], [port("x", (4,))], "y"))
    found, gone = short(np.array([1, -1, 2, -2], np.float32)), weakref.ref(short)
    del short
    gc.collect()
    assert gone() is None
    np.testing.assert_array_equal(found, [1, 0, 2, 0])


def test_a_model_outlives_its_files(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    m = network()
    m.graph.initializer[0].CopyFrom(
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=W.shape, data_location=TensorProto.EXTERNAL)
    )
    m.graph.initializer[0].external_data.add(key="location", value="w.bin")
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    first = sd.compile(tmp_path / "m.onnx")
    first.save(tmp_path / "m.sd")
    second = sd.load_compiled(tmp_path / "m.sd")
    for path in list(tmp_path.iterdir()):
        os.truncate(path, 0)
        path.unlink()
    for each in (first, second):
        assert_right(each(random_x(6)), random_x(6))


INTERRUPTED = """
import signal, sys, numpy as np, stormdrop as sd
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
from tests.support.abused_onnx import model, node, port
w = np.ones((512, 512), np.float32)
m = sd.compile(model([node("MatMul", "x w", "y")], [port("x", (512, 512))], "y", {"w": w}))
x = np.ones((512, 512), np.float32)
print("ready", flush=True)
try:
    if sys.argv[1] == "bench":
        m.bench(x, repeats=10**6)
    while True:
        m(x)
except KeyboardInterrupt:
    print("interrupted", m(x)[0, 0], flush=True)
"""


@pytest.mark.parametrize("how", ["bench", "calls"])
def test_an_interrupt_ends_a_long_run_and_the_model_still_works(how: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, how], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        said, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    assert said == "interrupted 512.0\n"
    assert child.returncode == 0
