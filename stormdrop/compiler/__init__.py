"""Compiling models: choice of schedules, building of kernels, models with open dimensions."""

ZOO = "zoo:"
"""The prefix of a model's name in the zoo, in place of a file."""

COMPILED = ".sd"
"""The suffix of the files of compiled models."""
