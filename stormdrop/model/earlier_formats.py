"""Headers of compiled models in the formats 1 to 3, as trees of today's `Image` and `Family`.

Format 1 had no groups of phases; the formats 1 and 2 had no id, shapes and node of a call.
"""

from __future__ import annotations

from typing import Any

from stormdrop.base.codec import Malformed


def current_image(head: Any, code: bytes, weights_bytes: int) -> Any:
    """Returns the tree of an image. Raises Malformed if the header has another structure."""
    try:
        kernels: list[Any] = []
        begin = 0
        for kernel in head["kernels"]:
            end = begin + kernel["code_bytes"]
            kernels.append(_renamed(kernel, code_bytes="code", slots="buffers") | {"code": code[begin:end]})
            begin = end
        calls = [_renamed(step, bytes="nbytes") for step in head["steps"]]
        tree = _renamed(head, steps="calls") | {"kernels": kernels, "calls": calls, "weights_bytes": weights_bytes}
        del tree["versions"]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise Malformed(f"not a header of this format: {error!r:.100}") from error
    if begin != len(code):
        raise Malformed(f"kernels of {begin} bytes, not {len(code)}")
    return tree


def current_family(head: Any, code: bytes, weights_bytes: int) -> Any:
    """Returns the tree of a family. Raises Malformed if the header has another structure."""
    try:
        images: list[Any] = []
        begin = 0
        for tree in head["models"]:
            end = begin + sum(kernel["code_bytes"] for kernel in tree["kernels"])
            images.append(current_image(tree, code[begin:end], weights_bytes))
            begin = end
        served = [_renamed(s, model="image") | {"outputs": list(map(_claim, s["outputs"]))} for s in head["served"]]
        ports = {name: list(map(_open_port, head[name])) for name in ("inputs", "outputs")}
        tree = _renamed(head, models="images") | ports | {"images": images, "served": served}
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise Malformed(f"not a header of this format: {error!r:.100}") from error
    if begin != len(code):
        raise Malformed(f"kernels of {begin} bytes, not {len(code)}")
    return tree


def _renamed(tree: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in tree.items()}


def _claim(rows: Any) -> list[Any]:
    return [[dimension, padding] for dimension, *padding in rows]


def _open_port(row: Any) -> list[Any]:
    name, dimensions, dtype = row
    return [name, dtype, None if dimensions is None else [text or size for text, size in dimensions]]
