"""Arrays from chance and from files, and into them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from stormdrop.base.errors import UserError
from stormdrop.compare.inputs import read_arrays, read_bound, read_inputs, saved, split_name
from stormdrop.device.arrays import random_inputs
from stormdrop.operators.node import Value

X, K, B = Value("x", (40, 50), "f32"), Value("k", (300,), "i64"), Value("b", (300,), "bool")


def test_random_inputs_are_normal_or_zero_and_one_and_repeat_with_their_seed() -> None:
    found = random_inputs([X, K, B], 1)
    assert [a.dtype for a in found.values()] == [np.float32, np.int64, np.bool_]
    assert abs(float(found["x"].mean())) < 0.1
    assert 0.9 < float(found["x"].std()) < 1.1
    assert set(found["k"].tolist()) == {0, 1}
    assert set(found["b"].tolist()) == {False, True}
    np.testing.assert_array_equal(random_inputs([X, K, B], 1)["x"], found["x"])
    assert not np.array_equal(random_inputs([X], 2)["x"], found["x"])


def test_integers_are_drawn_over_the_whole_of_their_range_and_repeat_with_their_seed() -> None:
    image = Value("image", (3000,), "u8")
    ranges = {"k": (-1, 2), "b": (0, 1)}
    arrays = random_inputs([X, K, B, image], 1, ranges)
    assert set(arrays["k"].tolist()) == {-1, 0, 1, 2}
    assert set(arrays["image"].tolist()) == set(range(256))
    assert set(random_inputs([image], 1, {"image": (3, 4)})["image"].tolist()) == {3, 4}
    for name, array in random_inputs([X, K, B, image], 1, ranges).items():
        np.testing.assert_array_equal(array, arrays[name])


def test_names_and_files_may_hold_an_equals_sign(tmp_path: Path) -> None:
    file = tmp_path / "a=b.npy"
    np.save(file, np.ones(1))
    assert split_name(f"x=y={file}") == ("x=y", file)
    assert split_name(str(file)) == (None, file)
    assert split_name("x=y=nowhere.npy") == ("x", Path("y=nowhere.npy"))
    assert split_name("nowhere.npy") == (None, Path("nowhere.npy"))


def test_a_single_input_needs_no_name(tmp_path: Path) -> None:
    array = np.arange(300)
    np.save(tmp_path / "k.npy", array)
    np.testing.assert_array_equal(read_inputs([str(tmp_path / "k.npy")], [K])["k"], array)


def test_what_is_bound_has_a_name_and_one_array(tmp_path: Path) -> None:
    np.save(tmp_path / "k.npy", np.arange(3))
    np.savez(tmp_path / "k.npz", k=np.arange(3))
    assert read_bound([f"k={tmp_path / 'k.npy'}"])["k"].tolist() == [0, 1, 2]
    for given in ([str(tmp_path / "k.npy")], [f"k={tmp_path / 'k.npz'}"], [f"k={tmp_path / 'k.npy'}"] * 2):
        with pytest.raises(UserError):
            read_bound(given)


@pytest.mark.parametrize("cut", [0, 5, 60, 127])
def test_a_file_cut_short_is_a_users_error(cut: int, tmp_path: Path) -> None:
    whole = io.BytesIO()
    np.save(whole, np.arange(100))
    (tmp_path / "x.npy").write_bytes(whole.getvalue()[:cut])
    with pytest.raises(UserError, match="holds no arrays"):
        read_arrays(tmp_path / "x.npy")


def test_an_archive_of_other_things_is_a_users_error(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(UserError, match="no array"):
        read_arrays(tmp_path / "x.npz")
    with pytest.raises(UserError, match="is a directory"):
        read_arrays(tmp_path)


def test_saved_arrays_keep_their_names_unless_those_are_no_names_for_files() -> None:
    names = ["file", "allow_pickle", "a/b", "é[red]", "../z", "..|z", "/etc/x", "a\nb", "a\0b", "a\\b", ""]
    arrays = {name: np.full(3, k) for k, name in enumerate(names)}
    data, kept = saved(arrays)
    assert [kept[n] for n in names[:4]] == names[:4]
    assert all(kept[n] != n for n in names[4:] if n != "..|z")
    assert len(set(kept.values())) == len(names)
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[kept[name]], array)
    for member in zipfile.ZipFile(io.BytesIO(data)).namelist():
        assert ".." not in member.split("/")
        assert not member.startswith("/")
        assert member.isprintable()
