"""How much longer a model takes to compile where related tasks' schedules are taken unmeasured.

    python -m benchmarks.compile_time resnet34 squeezenet1_0 --store FILE.sqlite
    python -m benchmarks.compile_time resnet34 --store FILE.sqlite --isa avx2 --repeats 5
    python -m benchmarks.compile_time --table                        # print what is stored

The experience is learned from the store once, as when tuning ends; rates and coefficients of the estimate are nominal.
Then the model is compiled with `reuse="predicted"` and with `reuse="off"` in turns, each time in a fresh process whose
cache directory holds that experience and nothing else: there are no verdicts, so every task that is worth it gets an
offer. Seconds are those of `compile`, without imports and without building the network; medians of the repeats. At most
20 % may be added.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.core import geometric_mean, say
from benchmarks.models import keep, stored
from stormdrop import zoo
from stormdrop.driver.compile import compile as compile_model
from stormdrop.reservoir.experience import Experience, path_beside, save
from stormdrop.reservoir.learning import described, learned
from stormdrop.reservoir.store import FILE, Store
from stormdrop.runtime.host import nominal
from stormdrop.target.cpu import ISAS, Cpu

RESULTS = Path(__file__).parent / "results" / "compile_time.json"
WAYS = ("predicted", "off")
"""Of `compile(reuse=...)`."""
UNMEASURED = ("donor", "portfolio")
"""Origins of schedules that were taken unmeasured."""


def target_of(threads: int | None, isa: str | None) -> Cpu:
    target = nominal(threads)
    return target if isa is None else target.with_isa(isa)


def experience_of(path: Path, target: Cpu) -> Experience:
    """What a store teaches. Raises SystemExit where nothing would be taken: there is no time to compare."""
    with Store.view(path) as store:
        found = learned(store, target)
    say(described(found))
    if found is None or found.margin is None:
        raise SystemExit(1)
    return found


def compiled_here(name: str, reuse: str, target: Cpu) -> dict[str, Any]:
    """Compile a model in this process, with what its cache directory holds."""
    network = zoo.build(name)
    start = time.perf_counter()
    model = compile_model(network, target=target, reuse=reuse)
    seconds = time.perf_counter() - start
    origins = list(model.origins.values())
    return {"seconds": seconds, "tasks": len(origins), "taken": sum(origin in UNMEASURED for origin in origins)}


def compiled_apart(name: str, reuse: str, target: Cpu, experience: Experience) -> dict[str, Any]:
    """Compile a model in a fresh process, with an experience and nothing else in its cache directory."""
    command = [sys.executable, "-m", "benchmarks.compile_time", name, "--once", reuse]
    command += ["--threads", str(target.threads), "--isa", target.isa]
    with TemporaryDirectory() as folder:
        save(path_beside(Path(folder) / FILE, target), experience)
        environment = {**os.environ, "STORMDROP_CACHE_DIR": folder}
        root = Path(__file__).parent.parent
        done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def compared(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The medians of both ways, by way, and the share of the time that reuse adds."""
    seconds = {way: median(run["seconds"] for run in runs[way]) for way in WAYS}
    last = runs["predicted"][-1]
    added = seconds["predicted"] / seconds["off"] - 1.0
    return {"tasks": last["tasks"], "taken": last["taken"], "seconds": seconds, "added": added}


def measure(name: str, target: Cpu, experience: Experience, repeats: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for k in range(repeats):
        for way in WAYS if k % 2 == 0 else WAYS[::-1]:
            runs[way].append(compiled_apart(name, way, target, experience))
    return compared(runs)


def table(results: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for machine, rows in results.items():
        lines += [*([""] if lines else []), machine, ""]
        lines.append("| model | ISA | threads | tasks | taken unmeasured | s without reuse | s with reuse | added |")
        lines.append("|---|---|---:|---:|---:|---:|---:|---:|")
        for r in rows:
            seconds = r["seconds"]
            lines.append(
                f"| {r['model']} | {r['isa']} | {r['threads']} | {r['tasks']} | {r['taken']} "
                f"| {seconds['off']:.2f} | {seconds['predicted']:.2f} | {r['added']:.1%} |"
            )
        mean = geometric_mean([1.0 + r["added"] for r in rows]) - 1.0
        lines.append(f"| geometric mean ({len(rows)}) | | | | | | | {mean:.1%} |")
    return "\n".join(lines)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *zoo.names()], metavar="MODEL")
    parser.add_argument("--store", type=Path, metavar="FILE", help="what the experience is learned from")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--isa", choices=tuple(ISAS), help="a narrower instruction set (default: this machine's)")
    parser.add_argument("--repeats", type=int, default=3, help="compilations of each way")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where results are kept")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--once", choices=WAYS, help=argparse.SUPPRESS)  # in a process of its own: prints JSON
    given = parser.parse_args(None if arguments is None else list(arguments))
    target = target_of(given.threads, given.isa)
    if given.once is not None:
        (name,) = given.names
        print(json.dumps(compiled_here(name, given.once, target)))
        return
    if given.names and not given.table:
        if given.store is None:
            parser.error("--store names what the experience is learned from")
        experience = experience_of(given.store, target)
        for name in given.names:
            what = {"model": name, "isa": target.isa, "threads": target.threads}
            row = {**what, "repeats": given.repeats, **measure(name, target, experience, given.repeats)}
            results = stored(given.json)
            machine = f"{target.name}, {os.cpu_count()} CPUs"
            others = [r for r in results.get(machine, []) if any(r[k] != v for k, v in what.items())]
            keep(given.json, results | {machine: [*others, row]})
            say(str(row))
    print(table(stored(given.json)))


if __name__ == "__main__":
    main()
