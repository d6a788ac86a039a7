"""The fuzzer's command; see the package's text."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.fuzz.model import random_model
from tests.fuzz.recipe import Recipe
from tests.fuzz.shrink import Failure, check, shrunk
from tests.fuzz.trial import problem
from tests.fuzz.workers import Died, outcomes

CASES = Path(__file__).parent / "cases"
FRESH = 1_000_000
"""Seeds below are the test suite's."""


def tried(seed: int, special: bool) -> dict[str, Any]:
    """What became of one seed, as it is logged."""
    began = time.monotonic()
    model = random_model(seed, special)
    why = problem(model.recipe, model.held, model.setting, special)
    row = {"seed": seed, "special": special, "seconds": round(time.monotonic() - began, 3), "problem": why}
    return row | {"drawn": drawn(model.recipe, {k: str(h.plain.dtype) for k, h in model.held.items()})}


def drawn(recipe: Recipe, types: Mapping[str, str]) -> list[str]:
    """`operator type` for every node, the type being that of its first input, else of its output."""
    return [f"{n.op} {types[next((i for i in n.inputs if i), n.outputs[0])]}" for n in recipe.nodes]


def kept(name: str) -> Failure:
    return Failure.from_json(json.loads((CASES / f"{name}.json").read_text()))


def failure_of(seed: int, special: bool, why: str) -> Failure:
    model = random_model(seed, special)
    return Failure(model.recipe, model.setting, special, why)


def keep(failure: Failure, seed: int) -> str:
    """Write a failure among the cases, named after its last operator and its seed."""
    name = f"{failure.recipe.nodes[-1].op.lower()}-{seed}{'-special' if failure.special else ''}"
    CASES.mkdir(exist_ok=True)
    (CASES / f"{name}.json").write_text(json.dumps(failure.to_json(), indent=1) + "\n")
    return name


def main() -> None:
    given = _arguments()
    if given.case:
        failure = kept(given.case)
        print(
            failure.recipe,
            failure.setting,
            check(failure.recipe, failure.setting, failure.special) or "passes",
            sep="\n",
        )
        return
    log: Path = given.log
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if given.counts:
        print(_table(rows))
        return
    if given.show:
        for seed in _seeds(given, rows):
            model = random_model(seed, given.special)
            print(f"seed {seed}, {model.setting}\n{model.recipe}\n")
        return
    sys.exit(_run(given, rows))


def _run(given: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    given.log.parent.mkdir(parents=True, exist_ok=True)
    done = wrong = 0
    began = time.monotonic()
    with given.log.open("a") as log:
        try:
            for seed, outcome in outcomes(
                _seeds(given, rows), lambda seed: tried(seed, given.special), given.processes
            ):
                row = _row(seed, given.special, outcome)
                print(json.dumps(row), file=log, flush=True)
                done += 1
                if row["problem"] is not None:
                    wrong += 1
                    print(f"seed {seed}: {row['problem']}", flush=True)
                    if not given.no_shrink:
                        small = shrunk(failure_of(seed, given.special, row["problem"]))
                        print(
                            f"kept as {keep(small, seed)}: {small.why}\n{small.recipe}\n{small.setting}\n", flush=True
                        )
                if done % 100 == 0:
                    print(
                        f"… {done} models, {wrong} wrong, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True
                    )
                if given.seconds and time.monotonic() - began > given.seconds:
                    break
        except KeyboardInterrupt:
            print("stopped; the next run goes on from here", file=sys.stderr)
    print(f"{done} models, {wrong} wrong, {time.monotonic() - began:.0f} s; log {given.log}")
    return min(wrong, 1)


def _row(seed: int, special: bool, outcome: Any) -> dict[str, Any]:
    if isinstance(outcome, Died):
        return {"seed": seed, "special": special, "problem": outcome.cause, "drawn": []}
    return outcome


def _seeds(given: argparse.Namespace, rows: Iterable[Mapping[str, Any]]) -> Iterator[int]:
    if given.seeds:
        first, _, end = given.seeds.partition(":")
        return iter(range(int(first), int(end) if end else int(first) + 1))
    start = max((r["seed"] + 1 for r in rows if r["special"] == given.special), default=FRESH)
    fresh = itertools.count(start)
    return itertools.islice(fresh, given.models) if given.models else fresh


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Models in all, then nodes by operator (rows) and type (columns)."""
    rows = list(rows)
    nodes = Counter(text for r in rows for text in r["drawn"])
    types = sorted({text.split()[1] for text in nodes})
    modes = Counter("special" if r["special"] else "finite" for r in rows)
    wrong = sum(r["problem"] is not None for r in rows)
    lines = [f"{len(rows)} models ({', '.join(f'{n} {mode}' for mode, n in modes.items())}), {wrong} wrong"]
    lines.append(f"{'':28}" + "".join(f"{t:>9}" for t in types))
    for op in sorted({text.split()[0] for text in nodes}):
        lines.append(f"{op:28}" + "".join(f"{nodes[f'{op} {t}'] or '':>9}" for t in types))
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Random models against other implementations of ONNX."
    )
    parser.add_argument("--seeds", metavar="FIRST[:END]", help="these, instead of fresh ones")
    parser.add_argument("--models", type=int, metavar="N", help="stop after so many")
    parser.add_argument("--seconds", type=float, metavar="S", help="stop after so long")
    parser.add_argument(
        "--special", action="store_true", help="NaN, infinities, signed zeros and subnormals in the data"
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument(
        "--log", type=Path, default=Path(".fuzz/log.jsonl"), help="one line a model; decides where to go on"
    )
    parser.add_argument("--no-shrink", action="store_true", help="report failures as they are")
    parser.add_argument(
        "--counts", action="store_true", help="print how often operators and types were drawn, from the log"
    )
    parser.add_argument("--show", action="store_true", help="print the models instead of running them")
    parser.add_argument("--case", metavar="NAME", help="run one kept case")
    return parser.parse_args()


if __name__ == "__main__":
    main()
