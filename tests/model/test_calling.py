"""How models and kernels are called and let go: inputs by name, some outputs, other libraries' arrays, closing."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import stormdrop as sd
from tests.support.tiny_onnx import saved


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nodes = [helper.make_node("Sub", ["a", "b"], ["difference"]), helper.make_node("MatMul", ["a", "w"], ["product"])]
    outputs: dict[str, int] = {"difference": TensorProto.FLOAT, "product": TensorProto.FLOAT}
    w = np.random.default_rng(3).standard_normal((4, 2)).astype(np.float32)
    return saved(tmp_path_factory.mktemp("models"), nodes, {"a": [3, 4], "b": [3, 4]}, outputs, {"w": w})


@pytest.fixture
def model(path: Path) -> sd.Model:
    return sd.compile(path, schedules=lambda _: None)


@pytest.fixture(scope="module")
def arrays() -> tuple[Any, Any]:
    a, b = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    return a, b


class Foreign:
    """An array of another library: it speaks DLPack, and nothing else."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def foreign(array: Any) -> Any:
    return Foreign(array)


def test_inputs_are_taken_by_name_in_any_order(model: sd.Model, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    for difference, _ in (model(b=b, a=a), model(a, b=b), model(a, b)):
        np.testing.assert_array_equal(difference, a - b)


@pytest.mark.parametrize(
    ("positions", "names", "said"),
    [(1, "c", "no input 'c'"), (2, "b", "'b' once"), (0, "a", "needs 'b'"), (1, "", r"takes 2 arrays")],
)
def test_wrong_names_are_refused(
    model: sd.Model, arrays: tuple[Any, Any], positions: int, names: str, said: str
) -> None:
    given: dict[str, Any] = dict.fromkeys(names, arrays[0])
    with pytest.raises(sd.UserError, match=said):
        model(*arrays[:positions], **given)


def test_a_run_gives_the_outputs_that_are_named(model: sd.Model, arrays: tuple[Any, Any]) -> None:
    feeds = dict(zip("ab", arrays))
    assert list(model.run(feeds)) == ["difference", "product"]
    found = model.run(feeds, outputs=["product"])
    assert list(found) == ["product"]
    np.testing.assert_array_equal(found["product"], model(*arrays)[1])
    with pytest.raises(sd.UserError, match="no output 'sum'; its outputs: 'difference', 'product'"):
        model.run(feeds, outputs=["sum"])
    with pytest.raises(sd.UserError, match="list of names"):
        model.run(feeds, outputs="product")


def test_arrays_of_other_libraries_are_read_in_place(model: sd.Model, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    np.testing.assert_array_equal(model(foreign(a), foreign(b))[0], a - b)
    with pytest.raises(sd.UserError, match="shape"):
        model(foreign(a), foreign(b[:2]))
    with pytest.raises(sd.UserError, match="is no array"):
        model(a, foreign(np.array(["text"])))


def test_results_speak_dlpack(model: sd.Model, arrays: tuple[Any, Any]) -> None:
    y = model(*arrays)[0]
    assert np.shares_memory(np.from_dlpack(y), y)


def test_a_closed_model_frees_its_weights_and_refuses_to_run(
    model: sd.Model, arrays: tuple[Any, Any], tmp_path: Path
) -> None:
    weights = weakref.ref(model.weights.base if model.weights.base is not None else model.weights)
    with model as entered:
        assert entered is model
        kept = model(*arrays)[0]
    gc.collect()
    assert weights() is None
    np.testing.assert_array_equal(kept, arrays[0] - arrays[1])
    for use in (lambda: model(*arrays), lambda: model.bench(*arrays), lambda: model.save(tmp_path / "m.sd")):
        with pytest.raises(sd.UserError, match="is closed"):
            use()
    model.close()


def test_closing_does_not_disturb_calls_that_are_under_way(model: sd.Model, arrays: tuple[Any, Any]) -> None:
    wrong: list[str] = []
    begun = threading.Event()

    def call() -> None:
        try:
            while True:
                if not np.array_equal(model(*arrays)[0], arrays[0] - arrays[1]):
                    wrong.append("another result")
                begun.set()
        except sd.UserError as error:
            wrong.extend([] if "is closed" in str(error) else [str(error)])
        except BaseException as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    model.close()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_a_kernel_is_called_by_name_and_closed() -> None:
    A, B = sd.tensor("A", (3,)), sd.tensor("B", (3,))
    i = sd.axis(3)
    kernel = sd.build(sd.Task([sd.compute("C", (i,), A[i] - B[i])]))
    a = np.arange(3, dtype=np.float32)
    with kernel:
        np.testing.assert_array_equal(kernel(B=a, A=2 * a), a)
    with pytest.raises(sd.UserError, match="is closed"):
        kernel(a, a)
