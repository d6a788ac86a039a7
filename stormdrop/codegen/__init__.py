"""From a loop program to machine code."""
