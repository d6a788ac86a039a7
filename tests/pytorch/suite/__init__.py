"""What is tested with PyTorch outside the everyday suite: networks, and PyTorch's own samples of its operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")


def recorded() -> dict[str, Any]:
    """By model, its errors; by operator, the types for which all samples are right."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"models": {}, "operators": {}}
