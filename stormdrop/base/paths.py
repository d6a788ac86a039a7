"""The cache directory, the directory of shipped stores, and the directory to import this package from."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from stormdrop.base.environment import variable


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
