"""The command line: one module per group of verbs."""

from stormdrop.cli.main import main

__all__ = ["main"]
