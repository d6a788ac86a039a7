"""The environment variables that configure Stormdrop; only this module reads variables `STORMDROP_*`.

An argument of a function or an option of a command overrides its variable; a variable overrides the default.
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
}


def variable(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the value of one of `VARIABLES`, without surrounding white space; empty if it is not set."""
    assert name in VARIABLES, name
    return environ.get(name, "").strip()


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the variables with Stormdrop's prefix that configure nothing, such as misspelt names."""
    return sorted(name for name in environ if name.startswith("STORMDROP_") and name not in VARIABLES)
