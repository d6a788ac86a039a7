"""Arrays for a model's inputs from files, and outputs back into a file.

Files are NumPy's, read and written without pickle: one array (.npy), or several by name (.npz).
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import write_array
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.base.files import opened
from stormdrop.device.arrays import Wanted
from stormdrop.ir.dtypes import converted
from stormdrop.ir.shape import dimensions_text
from stormdrop.model.image import OpenPort
from stormdrop.operators.node import shown

Array = NDArray[Any]


def read_inputs(given: Sequence[str], wanted: Sequence[Wanted]) -> dict[str, Array]:
    """Returns arrays for all inputs, from NAME=FILE.npy, FILE.npz, or FILE.npy if there is only one input.

    Raises UserError for files that cannot be read, unknown, repeated and missing names, and for wrong shapes and types.
    """
    by_name = {v.name: v for v in wanted}
    listed = ", ".join(_port_text(v) for v in wanted) or "none"
    arrays_by_name: dict[str, Array] = {}
    for text in given:
        name, path = split_name(text)
        arrays = read_arrays(path)
        if isinstance(arrays, Mapping):
            if name is not None:
                raise UserError(f"{path} holds several arrays: give it without a name, --input {path}")
            named = arrays
        elif name is not None:
            named = {name: arrays}
        elif len(wanted) == 1:
            named = {wanted[0].name: arrays}
        else:
            raise UserError(f"{path} is for which input? Write NAME={path}; the inputs are {listed}")
        for key, array in named.items():
            if key not in by_name:
                raise UserError(f"the model has no input {shown(key)}; its inputs are {listed}")
            if key in arrays_by_name:
                raise UserError(f"the input {shown(key)} is given twice")
            arrays_by_name[key] = _fitting(by_name[key], array, path)
    missing = [v for v in wanted if v.name not in arrays_by_name]
    if missing:
        raise UserError(f"no array is given for the input {_port_text(missing[0])}; without any --input all are random")
    return arrays_by_name


def read_bound(given: Sequence[str]) -> dict[str, Array]:
    """Returns arrays by name from NAME=FILE.npy. Raises UserError."""
    arrays: dict[str, Array] = {}
    for text in given:
        name, path = split_name(text)
        array = read_arrays(path)
        if name is None or isinstance(array, Mapping):
            raise UserError(f"{text} binds nothing; write NAME=FILE.npy")
        if name in arrays:
            raise UserError(f"the input {shown(name)} is bound twice")
        arrays[name] = array
    return arrays


def split_name(text: str) -> tuple[str | None, Path]:
    """Splits NAME=FILE, or FILE.

    Name and file may contain `=`: the split is at the first `=` with an existing file behind it.
    """
    if os.path.isfile(text):
        return None, Path(text)
    places = [k for k, c in enumerate(text) if c == "="]
    if not places:
        return None, Path(text)
    at = next((k for k in places if os.path.isfile(text[k + 1 :])), places[0])
    return text[:at], Path(text[at + 1 :])


def read_arrays(path: Path) -> Array | dict[str, Array]:
    """Returns the contents of a file: an array, or several arrays by name. Raises UserError."""
    with opened(path, str(path)) as file:
        try:
            loaded: Any = np.load(file, allow_pickle=False)
            arrays: dict[str, Any] = (
                {"": loaded} if isinstance(loaded, np.ndarray) else {str(k): loaded[k] for k in loaded.files}
            )
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
        except Exception as error:  # NumPy and its helpers raise a dozen kinds for files that are something else
            text = "holds no arrays that NumPy saved (.npy or .npz, nothing pickled)"
            raise UserError(f"{path} {text}: {error}") from error
    if not all(isinstance(a, np.ndarray) for a in arrays.values()):  # an .npz may hold other files
        raise UserError(f"{path} holds something that is no array")
    return arrays[""] if isinstance(loaded, np.ndarray) else arrays


def _fitting(v: Wanted, array: Array, path: Path) -> Array:
    is_fitting = len(array.shape) == len(v.shape) and all(m in (n, -1) for n, m in zip(array.shape, v.shape))
    if not is_fitting:  # -1: an open dimension
        raise UserError(f"{path} has shape {list(array.shape)}; the input {_port_text(v)} needs {_extents(v)}")
    try:
        return converted(array, v.dtype)
    except UserError as error:
        raise UserError(f"{path}, for the input {_port_text(v)}, {error}") from error


def _port_text(v: Wanted) -> str:
    return f"{shown(v.name)}: {v.dtype}{_extents(v)}"


def _extents(v: Wanted) -> str:
    """Returns the shape as a text, with open dimensions by their names."""
    if isinstance(v, OpenPort) and v.dimensions is not None:
        return f"[{', '.join(dimensions_text(v.name, v.dimensions))}]"
    return str(list(v.shape))


def saved_alone(arrays: Mapping[str, Array]) -> bytes:
    """Returns the only array as an .npy file."""
    (array,) = arrays.values()
    whole = io.BytesIO()
    write_array(whole, np.asarray(array), allow_pickle=False)
    return whole.getvalue()


def saved(arrays: Mapping[str, Array]) -> tuple[bytes, dict[str, str]]:
    """Returns arrays as an .npz file, and the name of each array in the file.

    An array keeps its name unless the name is no file name, or leads out of the folder of an unpacked archive.
    """
    names: dict[str, str] = {}
    for name in arrays:
        is_harmless = (
            name
            and name.isprintable()
            and "\\" not in name
            and ".." not in name.split("/")
            and not name.startswith("/")
        )
        kept = name if is_harmless else shown(name) or "output"
        while kept in names.values():
            kept += "_"
        names[name] = kept
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{names[name]}.npy", "w", force_zip64=True) as member:
                write_array(member, np.asarray(array), allow_pickle=False)
    return whole.getvalue(), names
