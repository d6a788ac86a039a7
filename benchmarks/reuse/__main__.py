"""What reusing schedules of other models gains: measured once into a table, from which all figures are computed.

    python -m benchmarks.reuse record                          # ten models on all threads of this machine, resumable
    python -m benchmarks.reuse record --isa avx2               # the same with narrower vectors, into another table
    python -m benchmarks.reuse record --share 0.02 --seconds-per-task 4     # fewer tasks, shorter searches
    python -m benchmarks.reuse record --dry-run                # how long it would take
    python -m benchmarks.reuse record --four --threads 8       # four models
    python -m benchmarks.reuse record resnet50 mobilenet_v2 --seconds-per-task 15
    python -m benchmarks.reuse record --passes long            # tasks with something to gain, 2,000 trials each
    python -m benchmarks.reuse value                           # best known against default: tasks, models, in the model
    python -m benchmarks.reuse matrix --plot matrix.png        # donor models x models, choice of a donor, pools
    python -m benchmarks.reuse gain                            # time to the best known, with reuse and from nothing
    python -m benchmarks.reuse all --table                     # every stored table, as docs/figures.md has them
    python -m benchmarks.reuse store --store made.sqlite       # a store of the table's winners, for benchmarks.shipped

A table is benchmarks/results/reuse-CPU-ISA-THREADS.jsonl. The file beside it that ends in .sqlite is a store with the
trials of the searches. Cost models learn from it where a model is held out; the figures do not need it. Recording needs
an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.core import say
from benchmarks.reuse.budgets import PASSES, Budgets, Pass, expected_seconds
from benchmarks.reuse.figures import gain, matrix, model_values, pool_curve, task_values
from benchmarks.reuse.known import known_of
from benchmarks.reuse.networks import measurers_for, network_of, partition_of
from benchmarks.reuse.picture import save_matrix
from benchmarks.reuse.recording import Recorder
from benchmarks.reuse.table import Table, TableFile, path_for, read_rows, recipient_id, stored_tables
from benchmarks.reuse.text import PARTS, report, value_text
from stormdrop import zoo
from stormdrop.base.errors import UserError
from stormdrop.device.host import nominal
from stormdrop.ir.tensor import Task
from stormdrop.store import shipped
from stormdrop.store.store import Store
from stormdrop.target.cpu import Cpu

MODELS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "googlenet",
    "efficientnet_b0",
    "densenet121",
    "mnasnet1_0",
    "squeezenet1_0",
    "shufflenet_v2_x1_0",
    "bert_base_seq128",
)
FOUR = ("resnet50", "googlenet", "mobilenet_v2", "bert_base_seq128")
USUAL: tuple[Pass, ...] = ("winners", "donors", "reuse", "model")


def target_for(given: argparse.Namespace) -> Cpu:
    """The target with nominal rates and coefficients: tables do not depend on how this machine was calibrated."""
    target = nominal(given.threads)
    return target if given.isa is None else target.with_isa(given.isa)


def record(given: argparse.Namespace, path: Path) -> None:
    target, passes = target_for(given), tuple(given.passes or USUAL)
    names = given.models or list(FOUR if given.four else MODELS)
    if unknown := [name for name in names if name not in zoo.names()]:
        raise UserError(f"no networks of the zoo: {', '.join(unknown)}")
    say(f"{target}; reading {', '.join(names)}")
    networks = [network_of(name, partition_of(name), target, given.share) for name in names]
    budgets = Budgets(given.seconds_per_task, given.trials, given.gain_seconds, given.long_trials, given.donors)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # A shipped store may have winners of the models that are held out.
        stack.enter_context(patch.object(shipped, "stores_dir", lambda: folder / "none"))
        if given.dry_run:
            path = copied(path, folder)
        trials = stack.enter_context(Store.open(path.with_suffix(".sqlite"), cap_bytes=None))
        measurers = measurers_for(target, networks, stack)
        recorder = Recorder(TableFile(path), networks, target, measurers, budgets, trials, say)
        if given.recipients:
            recorder.recipients = [r for r in recorder.recipients if set(r.calls) & set(given.recipients)]
        expected = expected_seconds(recorder.table, recorder.recipients, budgets, passes)
        minutes = ", ".join(f"{name} {seconds / 60:.0f}" for name, seconds in expected.items())
        say(f"{len(recorder.recipients)} tasks; minutes to expect: {minutes}; in all {sum(expected.values()) / 60:.0f}")
        if given.dry_run:
            return
        for name in passes:
            match name:
                case "winners":
                    recorder.winners()
                case "donors":
                    recorder.donors()
                case "reuse":
                    recorder.reuse(folder)
                case "long":
                    recorder.long()
                case "model":
                    recorder.models(names)


def made_store(table: Table, target: Cpu, path: Path) -> int:
    """Write a store with what a table knows of its tasks, their best known schedules as verdicts; return how many."""
    tasks: dict[str, Task] = {}
    for name in table.model_names:
        for use in partition_of(name).tasks:
            ids = [recipient_id(use.task.digest, is_cold) for is_cold in (False, True)]
            tasks |= {id: use.task for id in ids if (id, "nothing") in table.searches}
    with Store.open(path) as store:
        for recipient in (r for r in table.recipients.values() if r.id in tasks):
            own = target.with_cold_weights(recipient.is_cold)
            known = known_of(table, recipient, tasks, own, is_best=True)
            store.add([known.default, *known.donated.values()])
            store.add_verdicts([known.verdict])
    return len(tasks)


def copied(path: Path, folder: Path) -> Path:
    """A copy of a table, if there is one, that may be written to."""
    there = folder / path.name
    if path.exists():
        there.write_bytes(path.read_bytes())
    return there


def as_json(table: Table, part: str) -> Any:
    match part:
        case "value":
            return {"models": list(map(asdict, model_values(table))), "tasks": list(map(asdict, task_values(table)))}
        case "matrix":
            return asdict(matrix(table)) | {"pools": list(map(asdict, pool_curve(table)))}
        case _:
            return asdict(gain(table))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", *PARTS, "all", "store"])
    parser.add_argument("models", nargs="*", help="of the zoo (default: ten)")
    parser.add_argument("--four", action="store_true", help=f"instead of ten models: {', '.join(FOUR)}")
    parser.add_argument("--recipients", nargs="+", help="measure only tasks of these models; all give donors")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--isa", choices=["avx2", "avx512", "sse"], default=None)
    parser.add_argument("--results", type=Path, default=None, help="the table, if not that of this machine")
    parser.add_argument("--passes", nargs="+", choices=PASSES, help=f"default: {' '.join(USUAL)}")
    parser.add_argument("--seconds-per-task", type=float, default=5.0, help="of a search (default: 5)")
    parser.add_argument("--gain-seconds", type=float, default=15.0, help="of searches that are compared (default: 15)")
    parser.add_argument("--share", type=float, default=0.015, help="of a model's time that a task must take")
    parser.add_argument("--trials", type=int, default=None, help="of a search, at most")
    parser.add_argument("--donors", type=int, default=4, help="of each model, the nearest to a task (default: 4)")
    parser.add_argument("--long-trials", type=int, default=2000)
    parser.add_argument("--dry-run", action="store_true", help="say what recording would take, and do nothing")
    parser.add_argument("--table", action="store_true", help="what is stored, as docs/figures.md has it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--store", type=Path, default=None, help="of `store`: the file to write")
    parser.add_argument("--plot", type=Path, default=None, help="draw the matrix into this file")
    given = parser.parse_intermixed_args(arguments)
    try:
        if given.table and given.results is None:
            print("\n\n".join(report(Table.of(read_rows(path)), parts_of(given)) for path in stored_tables()))
            return
        path = given.results or path_for(target_for(given))
        if given.what == "record":
            record(given, path)
            if given.dry_run:
                return
        rows = read_rows(path)
        if not rows:
            raise UserError(f"nothing is recorded in {path}")
        if given.what == "store":
            if given.store is None or given.store.exists():
                raise UserError("give --store FILE, a file that does not exist yet")
            say(f"{made_store(Table.of(rows), target_for(given), given.store)} tasks in {given.store}")
            return
        show(Table.of(rows), given)
    except UserError as error:
        sys.exit(f"error: {error}")


def parts_of(given: argparse.Namespace) -> list[str]:
    return list(PARTS) if given.what in ("all", "record") else [given.what]


def show(table: Table, given: argparse.Namespace) -> None:
    parts = parts_of(given)
    if given.json:
        print(json.dumps({part: as_json(table, part) for part in parts}, indent=1))
    elif given.what == "value" and not given.table:  # all tasks
        print(f"{table.machine}\n\n{value_text(table, None)}")
    else:
        print(report(table, parts))
    if given.plot is not None:
        save_matrix(given.plot, matrix(table), pool_curve(table), table.machine)


if __name__ == "__main__":
    main()
