"""What the thread pool costs: an empty parallel region, waking from sleep, too many threads; and LLVM's share.

Run it as python -m benchmarks.pool [--threads N].
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormdrop.codegen.llvm import Code, assemble, host
from stormdrop.device.artifact import single_groups, step_rows
from stormdrop.device.cpus import available_cpus
from stormdrop.device.pool.pool import Pool

EMPTY = "define void @k(ptr %b, ptr %s, i64 %phase, i64 %begin, i64 %end) nounwind {\n  ret void\n}\n"


@dataclass(frozen=True)
class Host:
    triple: str
    cpu: str
    features: str


def microseconds(action: Callable[[], object], repeats: int, pause: float = 0.0) -> float:
    """The median of a Python call, which itself takes about 2 µs, each after a pause."""
    spent: list[float] = []
    for _ in range(repeats):
        if pause:
            time.sleep(pause)
        start = time.perf_counter()
        action()
        spent.append(time.perf_counter() - start)
    return float(np.median(spent)) * 1e6


def measure_pool(threads: int, code: Code) -> None:
    pool = Pool(threads)

    def steps_of(phases: int) -> NDArray[np.int64]:
        extents = [[1000] * phases]
        rows = step_rows(extents, single_groups(extents))
        return np.array([(code.address("k"), 0, 0, 0, *row.words, 0, 0, 0) for row in rows], np.int64)

    one = steps_of(1)
    print(f"{threads} threads" + (" (more than CPUs)" if threads > available_cpus() else ""))
    for phases in (1, 2, 16):
        steps = steps_of(phases)
        seconds = pool.bench(steps.ctypes.data, phases, 20_000 if threads <= available_cpus() else 500)
        low, median, high = np.quantile(seconds, [0.0, 0.5, 0.99]) * 1e6
        print(
            f"  {phases:2d} empty regions   {median:8.2f} µs median  {low:8.2f} least  {high:8.2f} 99 %"
            f"  {seconds.mean() * 1e6:8.2f} mean"
        )
    print(f"  Pool.run           {microseconds(lambda: pool.run(one.ctypes.data, 1), 2000):8.2f} µs, workers awake")
    print(
        f"  Pool.run           {microseconds(lambda: pool.run(one.ctypes.data, 1), 100, 0.002):8.2f} µs, workers asleep"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, action="append")
    target = Host(*host())
    objects = assemble(EMPTY, target)
    kept: list[Code] = []
    print(f"assemble an empty kernel  {microseconds(lambda: assemble(EMPTY, target), 100):8.0f} µs")
    print(f"load an object            {microseconds(lambda: kept.append(Code(objects)), 500):8.0f} µs")
    print(f"free an object            {microseconds(lambda: kept.pop().close(), 500):8.0f} µs")
    for threads in parser.parse_args().threads or sorted({1, 2, available_cpus(), 2 * available_cpus()}):
        measure_pool(threads, Code(objects))


if __name__ == "__main__":
    main()
