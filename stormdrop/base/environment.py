"""The environment of this process: the variables that configure Stormdrop, the cache directory, the package itself.

An argument of a function or an option of a command overrides its variable; a variable overrides the default. Only this
module reads variables `STORMDROP_*`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

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


def cache_dir() -> Path:
    """Returns `STORMDROP_CACHE_DIR`, else the user's cache directory; the directory need not exist or be writable.

    A leading `~` is expanded, since no shell expands the variables of `.env` files and systemd units. Without a home
    directory, returns a path that cannot be created.
    """
    folder = os.path.expanduser(variable("STORMDROP_CACHE_DIR") or platformdirs.user_cache_dir("stormdrop"))
    if folder.startswith("~"):
        # `~` stays unexpanded. A folder of that name in the working directory would surprise; every caller works
        # without a cache.
        return Path(os.devnull) / "stormdrop"
    return Path(folder).absolute()


def stores_dir() -> Path:
    """Returns the directory of the tuning databases that come with this package."""
    return package_root() / "stormdrop" / "store" / "winners"


def package_root() -> Path:
    """Returns the parent directory of the package, an entry of a worker process's `sys.path`."""
    return Path(__file__).resolve().parents[2]


def in_notebook() -> bool:
    """Returns whether this is the kernel of a notebook; IPython is not imported for that."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
