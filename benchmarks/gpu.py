"""Operators and models on a GPU, beside PyTorch on the same GPU in the same run.

    python -m benchmarks.gpu operators                         # every case, by default schedules and PyTorch's
    python -m benchmarks.gpu operators --trials 100 GMM C2D    # and tuned, some operators
    python -m benchmarks.gpu operators "GMM 1 512 512 512"     # one case
    python -m benchmarks.gpu models resnet50 --seconds 60      # untuned, and after so many seconds of tuning
    python -m benchmarks.gpu anchors --inductor                # PyTorch's networks
    python -m benchmarks.gpu tensor --trials 100 bf16 4096     # matrix products by matrix instructions
    python -m benchmarks.gpu long                              # the default search against storms of 1,000 trials
    python -m benchmarks.gpu --table                           # print what is stored

All but `tensor` is f32 without TF32, batch 1, timed by events around CUDA graphs; `gpu_torch.py` is PyTorch's side.
Its figures for models are stored by `anchors`: torchvision's networks and BERT, eager in a CUDA graph and
(`--inductor`) by Inductor, with TF32 where asked for (`--tf32`). A row that is there is measured again unless
`--missing` is given; each row names the commit it comes from.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np

import stormdrop as sd
from benchmarks import tensor
from benchmarks.core import geometric_mean, label, say
from benchmarks.long_storm import against_a_storm, long_table
from benchmarks.models import keep, stored
from benchmarks.search_bench import ONE_EACH, medians_in_turns
from stormdrop import zoo
from stormdrop.base.errors import StormdropError
from stormdrop.compiler.choose import Schedules
from stormdrop.device.targets import target_for
from stormdrop.operators.catalogue import build
from stormdrop.space.schedule import Schedule
from tests.support.inputs import inputs_for

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gpu.json"
CASES = HERE / "operators.json"
REPEATS = 50
MODEL_REPEATS = 200
MODELS = ("resnet50", "mobilenet_v2", "squeezenet1_0", "densenet121", "vgg16", "bert_base_seq128")
LONG = ("GMM", "C1D", "C2D", "DEP", "T2D", "CAP")
LONG_TRIALS = 1000
ANCHORS = ("anchors", "anchors with TF32")
PEERS = ("eager", "inductor")


def cases(names: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    operators: dict[str, list[list[int]]] = json.loads(CASES.read_text())
    listed = [(name, tuple(case)) for name, found in operators.items() for case in found]
    listed.append(("GMM", (1, 4096, 4096, 4096)))
    return [case for case in listed if not names or case[0] in names or label(*case) in names]


# ---- ours ------------------------------------------------------------------------------------------------------------


def kernel_seconds(task: sd.Task, schedules: Sequence[Schedule | None]) -> list[float]:
    """The median of each schedule's kernel, timed in turns, their arrays on the GPU."""
    rng = np.random.default_rng(0)
    arrays = {t.name: (0.5 * rng.standard_normal(t.shape)).astype(np.float32) for t in task.inputs}
    inputs, constants = [arrays[t.name] for t in task.runtime_inputs], {t.name: arrays[t.name] for t in task.constants}
    kernels = [sd.build(task, constants=constants, schedule=schedule, target="cuda") for schedule in schedules]
    recordings = [kernel._record() for kernel in kernels]
    for recording in recordings:
        recording.bind(inputs, [np.empty(t.shape, np.float32) for t in task.outputs])
        recording.run()
    return medians_in_turns([recording.bench for recording in recordings], REPEATS)  # pyright: ignore


def operator_row(name: str, case: tuple[int, ...], trials: int | None) -> dict[str, Any]:
    """The default's and the tuned schedule's times, both taken after tuning; the tuned one may be the slower."""
    task = build(name, case)
    row: dict[str, Any] = {"flops": task.flops}
    if trials is None:
        (row["default"],) = kernel_seconds(task, [None])
    else:
        tuned = sd.tune(task, target="cuda", trials=trials)
        row["default"], row["tuned"] = kernel_seconds(task, [None, tuned.best])
        row["trials"] = tuned.trials
    try:
        from benchmarks.gpu_torch import operator_seconds
    except ImportError:
        return row
    return row | {"torch": operator_seconds(name, case)}


def _defaults(task: sd.Task) -> None:
    """Schedules of a model that nobody tuned."""


def model_row(name: str, seconds: float | None) -> dict[str, Any]:
    """The untuned and the tuned model's times, taken in turns after tuning; kernels and error are the untuned one's."""
    proto = zoo.build(name)
    inputs = list(inputs_for(proto).values())
    chosen: list[Schedules] = [_defaults]
    if seconds is not None:
        chosen.append(sd.tune(proto, target="cuda", seconds=seconds).schedules)
    expected = sd.compile(proto, schedules=_defaults)(*inputs)
    compiled = [sd.compile(proto, target="cuda", schedules=schedules) for schedules in chosen]
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (compiled[0](*inputs), expected)))
    error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    untuned, *tuned = medians_in_turns([lambda n, m=m: m.bench(*inputs, repeats=n) for m in compiled], MODEL_REPEATS)
    kernels = sum(r.seconds for r in compiled[0].profile(*inputs, repeats=REPEATS).rows)
    row: dict[str, Any] = {"untuned": untuned, "kernels": kernels, "error": error}
    return row | ({"tuned": tuned[0], "tuning": seconds} if tuned else {})


def torch_network(name: str, given: argparse.Namespace) -> dict[str, float]:
    from benchmarks.gpu_torch import network_seconds

    return network_seconds(name, given.tf32, given.inductor)


# ---- the command -----------------------------------------------------------------------------------------------------


def table(results: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for gpu, parts in results.items():
        lines += [*([""] if lines else []), gpu, ""]
        if rows := parts.get("operators"):
            lines += ["| operator | default µs | tuned µs | PyTorch µs | speed |", "|---|---:|---:|---:|---:|"]
            for name, r in rows.items():
                best, peer = r.get("tuned", r["default"]), r.get("torch")
                cells = [r["default"], r.get("tuned"), peer]
                shown = [f"{1e6 * s:.2f}" if s is not None else "" for s in cells]
                lines.append(f"| {name} | {' | '.join(shown)} | {f'{peer / best:.2f}' if peer is not None else ''} |")
            for way in ("default", "tuned"):
                ratios = [r["torch"] / r[way] for r in rows.values() if "torch" in r and way in r]
                if ratios:
                    mean = geometric_mean(ratios)
                    lines += ["", f"{way}: {mean:.2f} times PyTorch, least {min(ratios):.2f}, of {len(ratios)} cases"]
        if rows := parts.get("tensor"):
            lines += ["", "| product | default TFLOP/s | tuned TFLOP/s | PyTorch TFLOP/s | error |"]
            lines.append("|---|---:|---:|---:|---:|")
            for name, r in rows.items():
                speeds = [
                    f"{r['flops'] / r[way] * 1e-12:.0f}" if way in r else "" for way in ("default", "tuned", "torch")
                ]
                lines.append(f"| {name} | {' | '.join(speeds)} | {r['error']:.1e} |")
        if rows := parts.get("long"):
            lines += ["", *long_table("search", rows, len(LONG))]
            rates = [
                sum(r[f"{way}_trials"] for r in rows.values()) / sum(r[f"{way}_seconds"] for r in rows.values())
                for way in ("short", "long")
            ]
            lines += ["", f"Candidates a second: {rates[0]:.0f} of the default search, {rates[1]:.0f} of the storms."]
        if rows := parts.get("models"):
            lines += [
                "",
                "| model | untuned ms | tuned ms | its kernels | eager ms | Inductor ms | with TF32 | speed | error |",
            ]
            lines.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
            for name, r in rows.items():
                peers, loose = (parts.get(part, {}).get(name, {}) for part in ANCHORS)
                times = [r["untuned"], r.get("tuned"), r["kernels"], *map(peers.get, PEERS), loose.get(PEERS[0])]
                shown = [f"{1e3 * s:.3f}" if s is not None else "" for s in times]
                best = r.get("tuned", r["untuned"])
                speed = f"{min(peers[way] for way in PEERS if way in peers) / best:.2f}" if peers else ""
                lines.append(f"| {name} | {' | '.join(shown)} | {speed} | {r['error']:.1e} |")
    return "\n".join(lines)


def commit() -> str:
    """Of this checkout; empty outside one."""
    found = run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("operators", "models", "anchors", "tensor", "long"))
    parser.add_argument(
        "names", nargs="*", help="operators, their cases, models, or precisions and sizes (default: all)"
    )
    parser.add_argument("--trials", type=int, help="also tune operators, with so many candidates each")
    parser.add_argument("--seconds", type=float, help="also tune models, each for so long")
    parser.add_argument("--tf32", action="store_true", help="PyTorch's networks with TF32")
    parser.add_argument("--inductor", action="store_true", help="PyTorch's networks also by Inductor (minutes each)")
    parser.add_argument("--missing", action="store_true", help="only what is not stored yet")
    parser.add_argument("--commit", default=commit(), help="what is measured; by default what git says")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument("--table", action="store_true", help="print what is stored")
    given = parser.parse_args()
    results = stored(given.json)
    if given.table or given.part is None:
        say(table(results))
        return
    part = ANCHORS[1] if given.part == "anchors" and given.tf32 else given.part
    needed = "tuned" if (given.trials or given.seconds) and part != "long" else ("inductor" if given.inductor else "")
    rows = results.setdefault(target_for("cuda").name, {}).setdefault(part, {})

    def kept(key: str, measured: Callable[[], Any]) -> None:
        if given.missing and key in rows and (not needed or needed in rows[key]):
            return
        try:
            rows[key] = measured() | {"commit": given.commit}
        except (StormdropError, MemoryError) as error:
            say(f"{key}: {error}")
            return
        say(f"{key}: {rows[key]}")
        keep(given.json, results)

    match given.part:
        case "operators":
            for name, case in cases(given.names):
                kept(label(name, case), partial(operator_row, name, case, given.trials))
        case "tensor":
            for precision, size in tensor.cases(given.names):
                kept(f"{precision} {size}", partial(tensor.row, precision, size, given.trials))
        case "long":
            for case in (case for case in ONE_EACH if case[0] in (given.names or LONG)):
                kept(label(*case), partial(against_a_storm, target_for("cuda"), case, 0, given.trials or LONG_TRIALS))
        case "models":
            for name in given.names or MODELS:
                kept(name, lambda name=name: model_row(name, given.seconds))
        case _:
            for name in given.names or MODELS:
                kept(name, lambda name=name: torch_network(name, given))


if __name__ == "__main__":
    main()
