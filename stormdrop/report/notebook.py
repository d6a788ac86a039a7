"""A board in a Jupyter notebook: text that is drawn again in its place, without widgets."""

from __future__ import annotations

import sys
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text


def in_notebook() -> bool:
    """Returns whether this is the kernel of a notebook; IPython is not imported for that."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class NotebookBoard:
    """A board below a cell, as `rich.live.Live` is one in a terminal."""

    def __init__(self, text: Text, is_transient: bool) -> None:
        display = import_module("IPython.display").display
        self._handle, self._is_transient = display(_bundle(text), raw=True, display_id=True), is_transient

    def update(self, text: Text, *, refresh: bool = True) -> None:
        self._handle.update(_bundle(text), raw=True)

    def stop(self) -> None:
        if self._is_transient:
            self._handle.update({"text/plain": ""}, raw=True)


def _bundle(text: Text) -> dict[str, str]:
    """Returns a text for notebooks with and without HTML."""
    return {"text/plain": text.plain, "text/html": f"<pre>{escape(text.plain)}</pre>"}
