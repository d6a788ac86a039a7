"""Kernels under threads, forks, interrupts and exits, and wherever Python code may come from."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import stormdrop as sd
from stormdrop.operators import catalogue


def normal(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(5).standard_normal(shape, dtype=np.float32)


def test_several_python_threads_call_one_kernel_at_once() -> None:
    """A chain whose middle is kept in memory shared by the kernel's threads, so that calls must not share it."""
    kernel = sd.build(catalogue.build("SFM", [40, 700]), threads=2)
    inputs = [normal(40, 700) * (1 + k) for k in range(4)]
    wanted = [kernel(x) for x in inputs]
    failures: list[int] = []

    def call(k: int) -> None:
        for _ in range(100):
            if not np.array_equal(kernel(inputs[k]), wanted[k]):
                failures.append(k)

    callers = [threading.Thread(target=call, args=(k,)) for k in range(len(inputs))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


def test_a_call_whose_memory_another_one_took_meanwhile_makes_its_own() -> None:
    """Between looking at the idle memory and taking it, another thread may come."""

    class NeverEmpty(list[Any]):
        def __bool__(self) -> bool:
            return True

    kernel = sd.build(catalogue.build("SFM", [4, 70]), threads=1)
    kernel._idle = NeverEmpty()
    np.testing.assert_allclose(kernel(normal(4, 70)).sum(1), np.ones(4), rtol=1e-5)


PRELUDE = """
import atexit, os, signal, sys, threading, time
import numpy as np
import stormdrop as sd
A, B = sd.tensor("A", (64, 48)), sd.tensor("B", (48, 80), constant=True)
i, j, k = sd.axis(64), sd.axis(80), sd.reduce_axis(48)
task = sd.Task([sd.compute("C", (i, j), sd.sum(A[i, k] * B[k, j], k))])
a, b = np.random.rand(64, 48).astype("f4"), np.random.rand(48, 80).astype("f4")
right = lambda kernel: "right" if np.allclose(kernel(a), a @ b, rtol=1e-4) else "wrong"
"""
BUILD = 'kernel = sd.build(task, constants={"B": b}, threads=2)\n'
USE = "print(right(kernel))\n"


def run(code: str, *arguments: str) -> str:
    """What a fresh Python prints when it reads `code` from its standard input; it must end well."""
    done = subprocess.run(
        [sys.executable, *(arguments or ("-",))], input=code, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip()


def test_a_kernel_works_in_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + BUILD + USE)
    assert run("", str(script)) == "right"


def test_a_kernel_works_in_a_program_read_from_standard_input() -> None:
    assert run(PRELUDE + BUILD + USE) == "right"


def test_a_kernel_works_in_a_repl() -> None:
    assert run(PRELUDE + BUILD + USE, "-q", "-i") == "right"


def test_a_kernel_works_in_a_cell_inside_an_event_loop_without_real_standard_streams() -> None:
    """What a notebook's kernel does, without the notebook."""
    code = f"""
import asyncio, io, sys
cells = {[PRELUDE, BUILD, USE]!r}
async def main():
    names, real = {{"__name__": "__main__"}}, sys.stdout
    sys.stdout = sys.stderr = io.StringIO()
    for cell in cells:
        exec(compile(cell, "<cell>", "exec"), names)
        await asyncio.sleep(0)
    real.write(sys.stdout.getvalue())
asyncio.run(main())
"""
    assert run(code) == "right"


if find_spec("IPython") is not None:

    def test_a_kernel_works_in_an_ipython_cell() -> None:
        code = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in {[PRELUDE, BUILD, USE]!r}:
    shell.run_cell(cell).raise_error()
"""
        assert run(code) == "right"


def test_a_child_forked_while_the_pool_runs_calls_and_builds_kernels() -> None:
    """Others call the kernel all the time; the child's first call finds no worker, and no lock that a lost thread
    holds.
    """
    code = """
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
kernel(a)
going = True
def call():
    while going: kernel(a)
callers = [threading.Thread(target=call) for _ in range(2)]
for c in callers: c.start()
bad = 0
for _ in range(10):
    child = os.fork()
    if not child:
        again = sd.build(task, constants={"B": b}, threads=2)
        os._exit(0 if right(kernel) == right(again) == right(kernel) == "right" else 1)
    bad += os.waitpid(child, 0)[1] != 0
going = False
for c in callers: c.join()
print(bad, right(kernel))
"""
    assert run(PRELUDE + BUILD + code) == "0 right"


def test_an_interrupt_during_a_long_kernel_is_raised_and_the_next_call_works() -> None:
    code = """
X, i, p = sd.tensor("X", (64,)), sd.axis(64), sd.reduce_axis(2048)
long = lambda n: sd.build(sd.Task([sd.compute("Y", i, sd.sum(sd.exp(X[i]), p, sd.reduce_axis(n)))]), threads=2)
x = np.zeros(64, "f4")
n = 256
while True:
    slow = long(n)
    start = time.perf_counter()
    slow(x)
    seconds = time.perf_counter() - start
    if seconds > 0.4: break
    n *= 2
y = np.full(64, np.nan, "f4")
threading.Timer(seconds / 4, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    slow(x, out=y)
    print("never interrupted")
except KeyboardInterrupt:
    print("interrupted", np.isfinite(y).all(), right(kernel), np.array_equal(slow(x), y))
"""
    assert run(PRELUDE + BUILD + code) == "interrupted True right True"


def test_a_call_during_interpreter_exit_works() -> None:
    """Exit handlers from before and after the pool's own, which ends it."""
    early, late = (
        'atexit.register(lambda: print("early", right(kernel)))\n',
        'atexit.register(lambda: print("late", right(kernel)))\n',
    )
    assert run(PRELUDE + early + BUILD + USE + late).split("\n") == ["right", "late right", "early right"]


def test_a_build_during_interpreter_exit_works() -> None:
    assert (
        run(
            PRELUDE
            + 'atexit.register(lambda: print(right(sd.build(task, constants={"B": b}, threads=2))))\n'
            + BUILD
            + USE
        )
        == "right\nright"
    )


def test_a_call_by_a_finaliser_or_a_daemon_at_the_very_end_crashes_nothing() -> None:
    code = """
class Last:
    def __del__(self, kernel=kernel, a=a):
        try: kernel(a)
        except Exception: pass
last = Last()
def call(kernel=kernel, a=a):
    while True: kernel(a)
for _ in range(2): threading.Thread(target=call, daemon=True).start()
time.sleep(0.1)
print("end")
"""
    assert run(PRELUDE + BUILD + code) == "end"
