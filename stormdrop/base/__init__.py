"""Errors, files, paths and settings: used by every package, imports none."""
