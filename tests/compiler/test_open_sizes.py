"""Sizes that suit a model with open dimensions, and the errors of uses that need one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

import stormdrop as sd
from stormdrop.base.errors import UserError
from stormdrop.compiler.open_sizes import OpenSizes, at_size, settled
from stormdrop.compiler.specialise import OpenSource, open_source
from stormdrop.frontend.open_dimensions import DeclaredPort, Interface
from stormdrop.frontend.parsed import parsed
from stormdrop.model.open_model import OpenModel
from tests.support.open_onnx import batched, classifier, decoder, detector, open_onnx, perceptron, recogniser

Shapes = Mapping[str, tuple[int, ...]]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))


def sizes_of(proto: ModelProto) -> OpenSizes:
    opened = open_source(proto, parsed(proto), None, None)
    assert isinstance(opened, OpenSource)
    return OpenSizes.of(opened)


def imagined(*fits: Shapes, **inputs: Sequence[int | str] | None) -> OpenSizes:
    """The sizes of a model of f32 inputs that computes with some shapes only, with any if none are given."""
    ports = tuple(DeclaredPort(name, None if dims is None else tuple(dims), "f32") for name, dims in inputs.items())
    return OpenSizes(Interface("m", ports, ()), lambda s: None if not fits or s in fits else UserError("unfit"))


def first(sizes: OpenSizes) -> Shapes:
    (shapes,) = sizes.first().sizes
    return shapes


def test_an_open_batch_is_one() -> None:
    assert sizes_of(batched()).batch_of_one() == {"image": (1, 3, 8, 8)}
    assert sizes_of(detector()).batch_of_one() is None
    assert sizes_of(decoder()).batch_of_one() is None


def test_a_dimension_of_the_name_of_a_batch_is_the_batch_elsewhere_too() -> None:
    assert imagined(x=["n", 4], state=[2, "n", 128]).batch_of_one() == {"x": (1, 4), "state": (2, 1, 128)}
    assert imagined(x=["n", 4], state=[2, "m", 128]).batch_of_one() is None


def test_the_first_size_is_one_that_the_importer_accepts() -> None:
    assert first(sizes_of(detector())) == {"x": (1, 3, 224, 224)}
    assert first(sizes_of(recogniser())) == {"x": (1, 3, 48, 320)}
    assert first(sizes_of(classifier())) == {"x": (1, 3, 224, 224)}
    assert first(sizes_of(decoder())) == {"ids": (1, 128)}


def test_sizes_that_were_refused_are_kept_with_their_reasons() -> None:
    refused = sizes_of(recogniser()).first().refused
    assert [r.shapes["x"][2:] for r in refused] == [(224, 224), (320, 320), (640, 640)]
    assert all("squeeze" in str(r.reason) for r in refused)


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        (["n", 3, "h", "w"], (1, 3, 224, 224)),
        (["n", "h", "w", 3], (1, 224, 224, 3)),
        (["n", "c", "h", "w"], (1, 3, 224, 224)),
        (["n", 3, 48, "w"], (1, 3, 48, 320)),
        ([3, "h", "w"], (3, 224, 224)),
        (["n", 12, "length", 64], (1, 12, 128, 64)),
        (["n", "length"], (1, 128)),
        (["n", "length", 80], (1, 128, 80)),
        ([1, "length"], (1, 128)),
        (None, (1, 3, 224, 224)),
    ],
)
def test_candidates_follow_from_the_place_of_a_dimension(dims: list[int | str] | None, shape: tuple[int, ...]) -> None:
    assert first(imagined(x=dims)) == {"x": shape}


def test_a_dimension_has_one_size_in_all_inputs_and_a_sum_of_names_is_their_sum() -> None:
    dims: dict[str, Sequence[int | str]] = {
        "ids": ["n", "new"],
        "past": ["n", 12, "old", 64],
        "mask": ["n", "old + new"],
        "next": ["n", "old + 1"],
    }
    assert first(imagined(**dims)) == {
        "ids": (1, 128),
        "past": (1, 12, 128, 64),
        "mask": (1, 256),
        "next": (1, 129),
    }


def test_a_batch_that_cannot_be_one_gets_another() -> None:
    sizes = imagined({"x": (4, 6)}, x=["n", 6])
    assert sizes.batch_of_one() is None
    assert first(sizes) == {"x": (4, 6)}


def test_comparisons_take_three_sizes_of_different_batches() -> None:
    tried = sizes_of(detector()).several()
    assert [shapes["x"] for shapes in tried.sizes] == [(1, 3, 224, 224), (2, 3, 64, 96), (5, 3, 96, 160)]
    assert [r.shapes["x"] for r in tried.refused] == [(2, 3, 65, 97)]
    assert [shapes["image"][0] for shapes in sizes_of(batched()).several().sizes] == [1, 2, 5]
    words = [shapes["ids"] for shapes in sizes_of(decoder()).several().sizes]
    assert [batch for batch, _ in words] == [1, 2, 5]
    assert len({length for _, length in words}) == 3


def test_a_model_that_no_size_suits_is_refused_with_the_error_of_the_first() -> None:
    sizes = OpenSizes(Interface("m", (DeclaredPort("x", ("n", 3, "h", "w"), "f32"),), ()), _too_small)
    with pytest.raises(UserError, match=r"0 rows are left \(at x=1x3x224x224, and \d+ other sizes fail as well; --sha"):
        sizes.first()


def _too_small(shapes: Shapes) -> UserError | None:
    return UserError(f"{shapes['x'][2] * 0} rows are left" if shapes["x"][2] == 224 else "too small")


def test_an_error_that_does_not_depend_on_the_size_is_told_without_sizes() -> None:
    sizes = OpenSizes(Interface("m", (DeclaredPort("x", ("n", "length"), "f32"),), ()), lambda _: UserError("never"))
    with pytest.raises(UserError, match=r"^never$"):
        sizes.first()


def test_constants_for_no_input_are_refused_by_the_names_of_inputs() -> None:
    with pytest.raises(UserError, match=r"constants name nothing, which is no input; the inputs are ids$"):
        sd.compile(decoder(), constants={"nothing": np.ones(1, np.float32)})


# ---- Python


def test_tuning_open_images_is_refused_with_a_call_that_works(tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    path.write_bytes(detector().SerializeToString())
    with pytest.raises(sd.UserError) as error:
        sd.tune(str(path), trials=1)
    text = str(error.value)
    assert "x: f32[batch, 3, height, width]" in text
    call = text[text.index("sd.tune(") :]
    assert call == f"sd.tune({str(path)!r}, shapes={{'x': (1, 3, 224, 224)}})"
    with pytest.raises(sd.UserError, match=r"sd\.tune\(model, shapes=\{'x': \(1, 3, 48, 320\)\}\)"):
        sd.tune(recogniser(), trials=1)


def test_tuning_an_open_batch_takes_one_with_one_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tuned = sd.tune(batched(), trials=1, threads=1)
    assert tuned.tasks
    (warning,) = [w for w in caught if "batch" in str(w.message)]
    assert "leaves the batch open: 1 is taken (image=1x3x8x8); shapes= gives another size" in str(warning.message)
    assert warning.filename == __file__


def test_reading_is_settled_only_where_dimensions_are_open() -> None:
    closed = settled(batched(), shapes={"image": (4, 3, 8, 8)})
    assert closed["shapes"] == {"image": (4, 3, 8, 8)}
    with pytest.warns(UserWarning, match="the batch open"):
        assert settled(batched())["shapes"] == {"image": (1, 3, 8, 8)}


def test_an_error_at_a_size_names_it_and_a_size_that_works() -> None:
    told = r"merge: shapes .* do not broadcast \(at x=1x3x33x64; x=1x3x224x224 works\)"
    with pytest.raises(sd.UserError, match=told):
        sd.compile(detector(), shapes={"x": (1, 3, 33, 64)})
    with pytest.raises(sd.UserError, match=told):
        sd.tune(detector(), shapes={"x": (1, 3, 33, 64)}, trials=1)


def test_the_size_of_an_error_is_named_once() -> None:
    def nested() -> None:
        with at_size({"x": (1, 2)}), at_size({"x": (1, 2)}):
            raise UserError("wrong")

    with pytest.raises(UserError, match=r"^wrong \(at x=1x2\)$"):
        nested()


def test_shapes_as_texts_are_parsed() -> None:
    text: Any = {"x": "1x3x8x12"}
    wrong: Any = {"x": "1;3"}
    model = sd.compile(classifier(), shapes=text, threads=1)
    assert model.inputs[0].shape == (1, 3, 8, 12)
    opened = sd.compile(classifier(), shapes=[text], threads=1)
    assert isinstance(opened, OpenModel)
    assert len(opened.models) == 1
    assert opened.specialise(text).inputs[0].shape == (1, 3, 8, 12)
    assert len(opened.models) == 1
    with pytest.raises(sd.UserError, match=r"shapes= gives '1;3' for 'x'; write \{'x': \(1, 3, 224, 224\)\}"):
        sd.compile(classifier(), shapes=wrong)


# ---- dimensions without names


def test_an_open_model_without_names_takes_any_size_and_is_saved(tmp_path: Path) -> None:
    model: Any = sd.compile(classifier(), threads=1)
    assert [repr(port) for port in (*model.inputs, *model.outputs)] == ["x: f32[any, 3, any, any]", "y: f32[any, 8]"]
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 12)).astype(np.float32)
    expected = model(x)
    assert expected.shape == (2, 8)
    assert repr(model) == "<model classifier, open in dimensions without names, compiled for 1 size>"
    model.save(tmp_path / "m.sd")
    loaded = sd.load(tmp_path / "m.sd", threads=1)
    assert np.array_equal(loaded(x), expected)
    with pytest.raises(sd.UserError, match=r"input for x: f32\[any, 3, any, any\] has shape \(2, 2, 8, 12\)"):
        model(x[:, :2])


def test_dimensions_without_names_in_two_inputs_are_independent() -> None:
    ports = {"a": ("f32", ["?", 4]), "b": ("f32", ["?", 4])}
    proto = open_onnx([helper.make_node("Concat", ["a", "b"], ["y"], axis=0)], ports, {"y": ("f32", ["?", 4])}, {})
    two, three = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
    assert sd.compile(proto, threads=1)(two, three).shape == (5, 4)
    assert sd.compile(proto, shapes={"a": (2, 4), "b": (3, 4)}, threads=1)(two, three).shape == (5, 4)


def test_a_batch_of_its_own_size_is_kept() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sd.tune(perceptron(), shapes={"x": (3, 32)}, trials=1, threads=1)
    assert not [w for w in caught if "batch" in str(w.message)]
