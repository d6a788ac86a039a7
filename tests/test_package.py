"""What `import stormdrop` gives, and what it does not load."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import stormdrop


@pytest.mark.parametrize("name", stormdrop.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(stormdrop, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tuen'"):
        _ = stormdrop.tuen  # pyright: ignore


def test_importing_loads_neither_the_compiler_nor_the_search_nor_the_store() -> None:
    script = "import sys, stormdrop; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "stormdrop.ir.tensor" in loaded
    assert (
        not {
            "llvmlite",
            "sqlite3",
            "rich",
            "matplotlib",
            "lightgbm",
            "torch",
            "stormdrop.tuning.tune",
            "stormdrop.space.sketch",
        }
        & loaded
    )


def test_no_module_hides_a_function_of_the_package() -> None:
    """Importing `stormdrop.x` sets the attribute `x` of the package."""
    modules = {m.name for m in pkgutil.iter_modules(stormdrop.__path__)}
    assert not modules & set(stormdrop.__all__)
