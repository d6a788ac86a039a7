"""The cache directory, the directory of portfolios, and the directory this package is imported from."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from stormdrop.environment import variable


def cache_dir() -> Path:
    """`STORMDROP_CACHE_DIR`, else the user's cache directory; it need not exist, nor be writable.

    A leading `~` is the home directory: files of environment variables and unit files have no shell that expands it.
    """
    folder = os.path.expanduser(variable("STORMDROP_CACHE_DIR") or platformdirs.user_cache_dir("stormdrop"))
    if folder.startswith("~"):
        # There is no home directory, and `~` stands there as it is. A place that cannot be made is better than a folder
        # of that name in the working directory: every caller knows what to do without a cache.
        return Path(os.devnull) / "stormdrop"
    return Path(folder).absolute()


def portfolio_dir() -> Path:
    """`STORMDROP_PORTFOLIO`, else the directory of the portfolios that come with this package."""
    named = variable("STORMDROP_PORTFOLIO")
    return Path(os.path.expanduser(named)).absolute() if named else Path(__file__).resolve().parent / "portfolio"


def package_root() -> Path:
    """The directory that holds the package: what a worker process must have on its path."""
    return Path(__file__).resolve().parent.parent
