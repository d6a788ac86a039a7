"""The cache directory, the directory of shipped stores, and the import directory of this package."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from stormdrop.base.environment import variable


def cache_dir() -> Path:
    """Returns `STORMDROP_CACHE_DIR`, else the user's cache directory; it need not exist or be writable.

    A leading `~` is the home directory: files of environment variables and unit files have no shell that expands it.
    """
    folder = os.path.expanduser(variable("STORMDROP_CACHE_DIR") or platformdirs.user_cache_dir("stormdrop"))
    if folder.startswith("~"):
        # Without a home directory `~` stays unexpanded. Then return a path that cannot be created, not a folder of that
        # name in the working directory: every caller works without a cache.
        return Path(os.devnull) / "stormdrop"
    return Path(folder).absolute()


def stores_dir() -> Path:
    """Returns the directory of the stores that come with this package."""
    return package_root() / "stormdrop" / "store" / "winners"


def package_root() -> Path:
    """Returns the directory that holds the package, which a worker process needs on its path."""
    return Path(__file__).resolve().parents[2]
