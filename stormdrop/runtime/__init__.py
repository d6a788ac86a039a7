"""Execution of kernels: threads, memory, and the callables of users."""
