"""How often a schedule that is carried from one task to another is invalid.

    python -m benchmarks.transfer invalid --pairs 5000                # goes on where it was broken off
    python -m benchmarks.transfer invalid --pairs 5000 --isa avx2     # the same with narrower vectors
    python -m benchmarks.transfer invalid --table                     # what is stored

Donors and tasks are kernels of the zoo's networks that share a class, or an anchor class alone. A donor's schedule, its
default or a random legal point in turn, is re-fitted to the task. Each candidate is built and run, and 256 elements of
its output are compared with the reference. A pair is invalid where re-fitting gives no candidate, or where one of its
candidates is not legal, cannot be built, crashes or computes something else. (Of the log replays of the
transfer-tuning paper 28 of 72 were invalid.)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stormdrop import zoo
from stormdrop.base.version import __version__
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.device.host import detect
from stormdrop.ir.keys import anchor_stages
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import READER_RULES, refit
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import replay, sketches
from stormdrop.target.cpu import Cpu
from stormdrop.target.machine import Target

RESULTS = Path(__file__).parent / "results"
SUMMARY = RESULTS / "transfer.json"
"""Counts of finished runs, by instruction set."""
NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "googlenet",
    "efficientnet_b0",
    "densenet121",
    "mnasnet1_0",
    "squeezenet1_0",
    "shufflenet_v2_x1_0",
    "dcgan_generator",
    "bert_base_seq128",
)
MOST_FLOPS = 6e8
"""Of a task, so that slow random points do not take seconds."""
DONORS = 8
"""Pairs with one task, measured together."""
KEYS = ("class", "anchor")


def kernels(networks: Sequence[str]) -> list[Task]:
    """The tasks of all networks, each once, without the very large ones."""
    found: dict[str, Task] = {}
    for name in networks:
        for use in tasks_of(read_graph(zoo.build(name))).tasks:
            if use.task.flops <= MOST_FLOPS:
                found[use.task.digest] = use.task
    return [found[digest] for digest in sorted(found)]


def key_of(donor: Task, task: Task) -> str:
    """By what a schedule of the direct variant can be carried; empty where by nothing."""
    if donor.digest == task.digest:
        return ""
    if donor.class_key == task.class_key:
        return KEYS[0]
    return KEYS[1] if donor.anchor_key and donor.anchor_key == task.anchor_key else ""


def drawn(tasks: Sequence[Task], seed: int) -> Iterator[tuple[str, Task, Task]]:
    """Pairs without end, `DONORS` in turn with one task: key, donor, task. Keys alternate where both have donors."""
    rng = np.random.default_rng(seed)
    while True:
        task = tasks[int(rng.integers(len(tasks)))]
        donors = {key: [d for d in tasks if key_of(d, task) == key] for key in KEYS}
        keys = [key for key in KEYS if donors[key]]
        for k in range(DONORS if keys else 0):
            key = keys[k % len(keys)]
            yield key, donors[key][int(rng.integers(len(donors[key])))], task


@cache
def default_of(task: Task, target: Target) -> Schedule:
    return default_schedule(task, target)


def schedule_of(donor: Task, task: Task, number: int, target: Target) -> Schedule:
    """Of even pairs the donor's default schedule, of odd ones a random point; of a variant that the task has too."""
    shared = [k for k, v in enumerate(donor.variants) if v.anchor_key in {w.anchor_key for w in task.variants}]
    if number % 2 == 0 and default_of(donor, target).variant in shared:
        return default_of(donor, target)
    rng = np.random.default_rng(number)
    found = [s for s in sketches(donor, target) if s.variant in shared]
    sketch = found[int(rng.integers(len(found)))]
    return sketch.schedule(sketch.sample_legal(1, rng)[0])


def anchor_steps(task: Task, schedule: Schedule) -> Counter[tuple[object, ...]]:
    """The derivation of the anchor stages, without what depends on their readers."""
    variant = task.variants[schedule.variant]
    ids = {f"s{variant.stages.index(t)}" for t in anchor_stages(variant)}
    steps = (s for s in schedule.steps if s.stage.rstrip("p") in ids and s.rule not in READER_RULES)
    return Counter((s.rule, *s.args) for s in steps)


def examined(number: int, key: str, donor: Task, task: Task, measurer: Measurer) -> dict[str, Any]:
    """What became of one pair."""
    target = measurer.target
    schedule = schedule_of(donor, task, number, target)
    found = refit(schedule, donor, task, target)
    problems: list[str] = [] if found else ["no candidate"]
    for candidate in found:
        sketch, point = replay(task, candidate, target)
        if sketch.schedule(point) != candidate:
            problems.append("not a legal point of its sketch")
    results = measurer.measure(task, found, best=1e-6)
    problems += [str(result) for result in results if isinstance(result, Failure)]
    same_steps = [anchor_steps(task, c) == anchor_steps(donor, schedule) for c in found]
    return {
        "pair": number,
        "key": key,
        "donor": donor.name,
        "task": task.name,
        "digests": [donor.digest, task.digest],
        "candidates": len(found),
        "keeps_steps": all(same_steps) and bool(found),
        "differs": any(c != default_of(task, target) for c in found),
        "problems": problems,
    }


def summary(pairs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By key and in all: pairs, invalid ones, candidates, and the share of pairs whose candidates keep the donor's
    steps and are not all the default schedule.
    """
    found: dict[str, dict[str, Any]] = {}
    for key in (*KEYS, "all"):
        some = [p for p in pairs if key in (p["key"], "all")]
        found[key] = {
            "pairs": len(some),
            "invalid": sum(bool(p["problems"]) for p in some),
            "candidates": sum(p["candidates"] for p in some),
            "useful": sum(p["keeps_steps"] and p["differs"] for p in some) / max(1, len(some)),
        }
    return found


def table(results: Mapping[str, Any]) -> str:
    """The stored counts as Markdown."""
    lines = ["| instruction set | key | pairs | invalid | candidates | keep the donor's steps, not the default |"]
    lines += ["|---|---|---:|---:|---:|---:|"]
    for isa, run in results.items():
        for key, row in run["keys"].items():
            counts = f"{row['pairs']} | {row['invalid']} | {row['candidates']}"
            lines.append(f"| {isa} | {key} | {counts} | {row['useful']:.1%} |")
    machines = sorted({f"{run['machine']}, {run['threads']} threads" for run in results.values()})
    return "\n".join(["; ".join(machines), "", *lines])


def store(path: Path, found: Sequence[Mapping[str, Any]], target: Cpu) -> None:
    """Into the file as it is now, beside the counts of other instruction sets."""
    results = json.loads(path.read_text()) if path.exists() else {}
    about = {"machine": target.name, "threads": target.threads, "stormdrop": __version__}
    results[target.isa] = {**about, "keys": summary(found)}
    path.write_text(json.dumps(results, indent=1) + "\n")


def invalid(pairs: int, path: Path, seed: int, target: Cpu) -> list[dict[str, Any]]:
    """Examine pairs until there are so many in the file; all that are in it."""
    done: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if len(done) >= pairs:
        return done
    path.parent.mkdir(parents=True, exist_ok=True)
    tasks = kernels(NETWORKS)
    todo = islice(drawn(tasks, seed), len(done), pairs)
    settings = MeasureSettings(min_seconds=0.0005, max_repeats=2)
    with Measurer(target, settings) as measurer, path.open("a") as file:
        for number, (key, donor, task) in enumerate(todo, len(done)):
            done.append(examined(number, key, donor, task, measurer))
            file.write(json.dumps(done[-1]) + "\n")
            file.flush()
            if done[-1]["problems"] or not (number + 1) % 50:
                print(number + 1, done[-1]["problems"], file=sys.stderr, flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=["invalid"])
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--results", type=Path, default=None, help="one line of JSON for each pair")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--isa", default=None, help="narrower vectors than this machine has: avx2, sse")
    parser.add_argument("--table", action="store_true", help="print the stored counts")
    given = parser.parse_args()
    if not given.table:
        target = detect(given.threads)
        target = target if given.isa is None else target.with_isa(given.isa)
        found = invalid(given.pairs, given.results or RESULTS / f"transfer-{target.isa}.jsonl", given.seed, target)
        store(SUMMARY, found, target)
        for pair in (p for p in found if p["problems"]):
            print(f"{pair['pair']}: {pair['donor']} -> {pair['task']}: {pair['problems'][0][:200]}")
    print(table(json.loads(SUMMARY.read_text())))


if __name__ == "__main__":
    main()
