"""Running kernels: threads, memory, and what a user calls."""
