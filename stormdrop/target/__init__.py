"""What a machine is: instruction set, registers, caches, threads, and the rates it was measured to reach."""

ALIGN_BYTES = 64
"""Buffers begin at multiples of this: a cache line of all our targets, and their widest vector."""


def whole_lines(nbytes: int) -> int:
    """The bytes of a buffer with what is left of its last line."""
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
