"""Hashes of LLVM IR. They reveal whether a schedule still lowers to the measured code.

A fingerprint holds two hashes, of the text as it is and of the text with its names renumbered. The first hash is quick
to compare; the second hash stays the same if only names have changed.
"""

from __future__ import annotations

import hashlib
import re

_INTERNAL = re.compile(r"^define internal .*?@([\w.$-]+)\(|^@([\w.$-]+) = internal ", re.MULTILINE)
_NAME = re.compile(r"^define |^(?P<label>[\w.$-]+):|%(?P<local>[\w.$-]+)|@(?P<symbol>[\w.$-]+)", re.MULTILINE)


def normalised(text: str) -> str:
    """Returns the module with local values, labels and internal symbols numbered in the order in which they first
    appear.

    Values and labels are numbered in each function from 0. External symbols keep their names.
    """
    internal = {f or g for f, g in _INTERNAL.findall(text)}
    symbols: dict[str, int] = {}
    names: dict[str, int] = {}

    def renamed(match: re.Match[str]) -> str:
        label, local, symbol = match["label"], match["local"], match["symbol"]
        if label is not None:
            return f"{names.setdefault(label, len(names))}:"
        if local is not None:
            return f"%{names.setdefault(local, len(names))}"
        if symbol is not None:
            return f"@{symbols.setdefault(symbol, len(symbols))}" if symbol in internal else match[0]
        names.clear()
        return match[0]

    return _NAME.sub(renamed, text)


def digest(data: str | bytes) -> str:
    """Returns 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


def fingerprint(text: str) -> str:
    return f"{digest(text)} {digest(normalised(text))}"


def has_fingerprint(text: str, known: str) -> bool:
    """Returns whether a text equals, up to its names, the text with the fingerprint `known`.

    No text has the fingerprint "".
    """
    plain, _, renumbered = known.partition(" ")
    return digest(text) == plain or digest(normalised(text)) == renumbered
