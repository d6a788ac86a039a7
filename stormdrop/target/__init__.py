"""What a machine is: instruction set, registers, caches, threads, and the rates it was measured to reach."""
