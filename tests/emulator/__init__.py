"""An emulator of NVIDIA GPUs: runs the LLVM text of a kernel in NumPy and reports every wrong access and every race.

    module = read(text)
    launch(module, "phase0", blocks=4, threads=128, shared_bytes=2048, arguments=[x, y], order=Order(seed=3))

`reading` parses the text, `execute` runs many threads in lockstep, each SSA value being an array with one row per
thread; `memory` checks bounds and alignment, `races` what barriers do not order, `copies` holds cp.async. What is wrong
is raised as a `Fault`. `device` is a device for the runtime (`stormdrop.device.device`) made of it.
"""
