"""From a loop program to machine code."""

ENTRY, PREPARE = "kernel", "prepare"
