"""Recurrent networks, unrolled in time."""

from __future__ import annotations

from stormdrop.frontend.pointwise import Importer

RECURRENT: dict[str, Importer] = {}
