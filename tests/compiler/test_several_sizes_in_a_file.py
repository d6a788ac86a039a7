"""`.sd` files that hold a model for several sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop.base.codec import Malformed, decode, encode
from stormdrop.model import package
from stormdrop.model.family import Family, verify_family
from stormdrop.model.open_model import OpenModel
from tests.support.open_onnx import decoder, perceptron

Array = NDArray[Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORMDROP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        compiled = sd.compile(perceptron(), shapes=[{"x": (n, 32)} for n in (1, 4, 9)], threads=2)
    assert isinstance(compiled, OpenModel)
    return compiled


def rows(n: int) -> Array:
    return np.random.default_rng(n).standard_normal((n, 32)).astype(np.float32)


def test_a_file_gives_the_same_bits_at_every_size_it_holds(model: OpenModel, tmp_path: Path) -> None:
    model.save(tmp_path / "m.sd")
    again = sd.load_compiled(tmp_path / "m.sd")
    assert isinstance(again, OpenModel)
    assert [repr(p) for p in (*again.inputs, *again.outputs)] == ["x: f32[rows, 32]", "y: f32[rows, 20]"]
    for n in (1, 4, 9):
        assert np.array_equal(again(rows(n)), model(rows(n)))
    assert len({id(chunk) for m in again.models for chunk in m.chunks}) == 1
    again.save(tmp_path / "again.sd")
    assert (tmp_path / "again.sd").stat().st_size == (tmp_path / "m.sd").stat().st_size


def test_a_size_that_a_file_does_not_hold_is_an_error_that_names_shapes(model: OpenModel, tmp_path: Path) -> None:
    model.save(tmp_path / "m.sd")
    again = sd.load_compiled(tmp_path / "m.sd")
    with pytest.raises(sd.UserError, match=r"was compiled for the input shapes .*, not for \(5, 32\); .*shapes="):
        again(rows(5))


def test_one_size_of_an_open_model_can_be_saved_alone(model: OpenModel, tmp_path: Path) -> None:
    model.specialise({"x": (4, 32)}).save(tmp_path / "four.sd")
    four = sd.load_compiled(tmp_path / "four.sd")
    assert not isinstance(four, OpenModel)
    assert np.array_equal(four(rows(4)), model(rows(4)))


def test_an_open_model_that_was_never_compiled_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(sd.UserError, match="compiled for no size yet; give shapes="):
        sd.compile(perceptron()).save(tmp_path / "m.sd")


def test_rounded_sizes_are_kept_with_their_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    model = sd.compile(decoder(layers=1, width=16, heads=2), threads=2)
    ids = {n: np.random.default_rng(n).integers(0, 50, (2, n)) for n in (5, 9)}
    wanted = {n: model(x) for n, x in ids.items()}
    model.save(tmp_path / "m.sd")
    again = sd.load_compiled(tmp_path / "m.sd")
    assert isinstance(again, OpenModel)
    assert len(again.models) == 1
    for n, x in ids.items():
        assert np.array_equal(again(x), wanted[n])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("served", 0, "image"), 3),
        (("served", 0, "shapes"), [[2, 32]]),
        (("served", 0, "shapes"), []),
        (("served", 0, "masks"), [[1, 2, 1]]),
        (("served", 0, "outputs"), [[[7, [1, 1, 1]]]]),
        (("served", 0, "outputs"), [[[-1, [1, 1, 1]]]]),
        (("images",), []),
        (("images", 1, "threads"), 1),
        (("images", 1, "weights_bytes"), 1 << 40),
        (("inputs", 0), ["x", "f77", None]),
    ],
)
def test_several_sizes_that_do_not_fit_each_other_are_refused(model: OpenModel, place: list[Any], value: Any) -> None:
    family, _ = model.family()
    verify_family(decode(Family, encode(family)))
    tree = part = encode(family)
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises((Malformed, sd.UserError)):
        verify_family(decode(Family, tree))


def test_a_file_of_several_sizes_is_no_single_image(model: OpenModel, tmp_path: Path) -> None:
    model.save(tmp_path / "m.sd")
    with pytest.raises(sd.UserError, match="several sizes"):
        package.load(tmp_path / "m.sd")
