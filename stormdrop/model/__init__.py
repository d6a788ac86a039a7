"""Compiled models and kernels as users call them, their memory, weights and files."""
