"""The environment variables that set Stormdrop up. Nothing else in the package reads a variable `STORMDROP_*`.

An argument of a function or an option of a command comes before its variable, a variable before the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES = {
    "STORMDROP_THREADS": "threads that run a model",
    "STORMDROP_SPIN": "microseconds that a waiting thread spins before it sleeps",
    "STORMDROP_AFFINITY": "CPUs of the threads: none, compact, spread, or a list such as 0-3,8",
    "STORMDROP_GROUPS": "how phases may share barriers: none, or some of serial, independent, local",
    "STORMDROP_CACHE_DIR": "the folder of the store and of what was measured of this machine",
    "STORMDROP_PORTFOLIO": "a folder of portfolios, in place of those that come with the package",
}


def variable(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The value of one of `VARIABLES`, without white space around it; empty if it is not set."""
    assert name in VARIABLES, name
    return environ.get(name, "").strip()


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look as if they should set something up here, and do not."""
    return sorted(name for name in environ if name.startswith("STORMDROP_") and name not in VARIABLES)
