"""Operators and models on a GPU, beside PyTorch on the same GPU in the same run.

    python -m benchmarks.gpu operators                         # every case, by default schedules and PyTorch's
    python -m benchmarks.gpu operators --trials 100 GMM C2D    # and tuned, some operators
    python -m benchmarks.gpu models resnet50 --seconds 60      # untuned, and after so many seconds of tuning
    python -m benchmarks.gpu tensor --trials 100 bf16 4096     # matrix products by matrix instructions
    python -m benchmarks.gpu --table                           # print what is stored

Operators and models are f32 without TF32, batch 1. Our operators are timed by events around graphs; PyTorch's are ten
calls in a CUDA graph with `cudnn.benchmark`, the better of NCHW and NHWC; only matrix products and convolutions have a
PyTorch twin here. PyTorch's figures for models are stored by `anchors`: torchvision's networks, eager in a CUDA graph,
with TF32 or (`--no-tf32`) without.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import stormdrop as sd
from benchmarks import tensor
from benchmarks.core import geometric_mean, say
from benchmarks.models import keep, stored
from benchmarks.torch_timing import torch_seconds
from stormdrop import zoo
from stormdrop.driver.stored import Schedules
from stormdrop.errors import StormdropError
from stormdrop.ops.catalogue import build
from stormdrop.runtime.targets import target_for
from stormdrop.space.schedule import Schedule
from tests.support.inputs import inputs_for

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gpu.json"
CASES = HERE / "operators.json"
REPEATS = 50
MODELS = ("resnet50", "mobilenet_v2", "squeezenet1_0", "densenet121", "vgg16", "bert_base_seq128")
ANCHORS = ("anchors", "anchors with TF32")


def cases(names: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    operators: dict[str, list[list[int]]] = json.loads(CASES.read_text())
    listed = [(name, tuple(case)) for name, found in operators.items() for case in found]
    listed.append(("GMM", (1, 4096, 4096, 4096)))
    return [case for case in listed if not names or case[0] in names]


# ---- ours ------------------------------------------------------------------------------------------------------------


def kernel_seconds(task: sd.Task, schedule: Schedule | None) -> float:
    """The median of one kernel, its arrays on the GPU."""
    rng = np.random.default_rng(0)
    arrays = {t.name: (0.5 * rng.standard_normal(t.shape)).astype(np.float32) for t in task.inputs}
    kernel = sd.build(task, {t.name: arrays[t.name] for t in task.constants}, schedule, target="cuda")
    recording = kernel._record()
    recording.bind([arrays[t.name] for t in task.runtime_inputs], [np.empty(t.shape, np.float32) for t in task.outputs])
    recording.run()
    return float(np.median(recording.bench(REPEATS)))  # pyright: ignore


def operator_row(name: str, case: tuple[int, ...], trials: int | None) -> dict[str, Any]:
    task = build(name, case)
    row: dict[str, Any] = {"default": kernel_seconds(task, None), "flops": task.flops}
    if trials is not None:
        tuned = sd.tune(task, target="cuda", trials=trials)
        row |= {"tuned": min(row["default"], kernel_seconds(task, tuned.best)), "trials": tuned.trials}
    if (peer := torch_operator(name, case)) is not None:
        row["torch"] = peer
    return row


def _defaults(task: sd.Task) -> None:
    """Schedules of a model that nobody tuned."""


def model_row(name: str, seconds: float | None) -> dict[str, Any]:
    proto = zoo.build(name)
    inputs = list(inputs_for(proto).values())

    def timed(schedules: Schedules) -> tuple[float, float, Any]:
        model = sd.compile(proto, target="cuda", schedules=schedules)
        got = model(*inputs)
        alone = float(np.median(model.bench(*inputs, repeats=200)))
        profile = model.profile(*inputs, repeats=REPEATS)
        return alone, sum(r.seconds for r in profile.rows), got

    expected = sd.compile(proto, schedules=_defaults)(*inputs)
    untuned, kernels, got = timed(_defaults)
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (got, expected)))
    error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    row: dict[str, Any] = {"untuned": untuned, "kernels": kernels, "error": error}
    if seconds is not None:
        tuned = sd.tune(proto, target="cuda", seconds=seconds)
        row |= {"tuned": timed(tuned.schedules)[0], "tuning": seconds}
    return row


# ---- PyTorch's -------------------------------------------------------------------------------------------------------


def torch_operator(name: str, case: tuple[int, ...]) -> float | None:
    """A matrix product or a convolution by cuBLAS or cuDNN; None for others, and without PyTorch."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.no_grad():
        if name in ("GMM", "DEN"):
            batch, n, m, k = case
            a, b = (torch.randn(batch, *size, device="cuda") for size in ((n, k), (k, m)))
            return torch_seconds(partial(torch.matmul, a, b))
        if name in ("C1D", "C2D", "C3D", "DIL", "GRP", "DEP"):
            return torch_convolution(name, case)
    return None


def torch_convolution(name: str, case: tuple[int, ...]) -> float:
    import torch  # pyright: ignore[reportMissingImports]

    rank = {"C1D": 1, "C3D": 3}.get(name, 2)
    sizes, rest = case[1 : 1 + rank], list(case[1 + rank :])
    channels = rest[:1] * 2 if name == "DEP" else rest[:2]
    kernel, stride, pad, *last = rest[1 if name == "DEP" else 2 :]
    more = {"GRP": {"groups": last[-1:]}, "DIL": {"dilation": last[-1:]}, "DEP": {"groups": channels[:1]}}.get(name, {})
    kind = getattr(torch.nn, f"Conv{rank}d")
    formats = [torch.contiguous_format]
    formats += {2: [torch.channels_last], 3: [torch.channels_last_3d]}.get(rank, [])
    found: list[float] = []
    for order in formats:
        options = {option: value[0] for option, value in more.items()}
        layer = kind(*channels, kernel, stride, pad, bias=False, **options).cuda().to(memory_format=order)
        x = torch.randn(case[0], channels[0], *sizes, device="cuda").to(memory_format=order)
        found.append(torch_seconds(partial(layer, x)))
    return min(found)


def torch_model(name: str, tf32: bool) -> float:
    """A network of torchvision, eager in a CUDA graph, the better of NCHW and NHWC."""
    import torch  # pyright: ignore[reportMissingImports]
    import torchvision  # pyright: ignore[reportMissingImports]

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    found: list[float] = []
    for order in (torch.contiguous_format, torch.channels_last):
        network = getattr(torchvision.models, name)(weights=None).eval().cuda().to(memory_format=order)
        x = torch.randn(1, 3, 224, 224, device="cuda").to(memory_format=order)
        with torch.no_grad():
            found.append(torch_seconds(partial(network, x), calls=1))
    return min(found)


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
        if rows := parts.get("models"):
            lines += ["", "| model | untuned ms | tuned ms | its kernels | PyTorch ms | with TF32 | error |"]
            lines.append("|---|---:|---:|---:|---:|---:|---:|")
            for name, r in rows.items():
                peers = [parts.get(part, {}).get(name) for part in ANCHORS]
                cells = [r["untuned"], r.get("tuned"), r["kernels"], *peers]
                shown = [f"{1e3 * s:.3f}" if s is not None else "" for s in cells]
                lines.append(f"| {name} | {' | '.join(shown)} | {r['error']:.1e} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("operators", "models", "anchors", "tensor"))
    parser.add_argument(
        "names", nargs="*", help="operators, models, or precisions and sizes; all of them if none is named"
    )
    parser.add_argument("--trials", type=int, help="also tune operators, with so many candidates each")
    parser.add_argument("--seconds", type=float, help="also tune models, each for so long")
    parser.add_argument("--no-tf32", action="store_true", help="PyTorch's networks in f32 alone")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument("--table", action="store_true", help="print what is stored")
    given = parser.parse_args()
    results = stored(given.json)
    if given.table or given.part is None:
        say(table(results))
        return
    part = ANCHORS[1] if given.part == "anchors" and not given.no_tf32 else given.part
    rows = results.setdefault(target_for("cuda").name, {}).setdefault(part, {})

    def kept(label: str, measured: Callable[[], Any]) -> None:
        try:
            rows[label] = measured()
        except (StormdropError, MemoryError) as error:
            say(f"{label}: {error}")
            return
        say(f"{label}: {rows[label]}")
        keep(given.json, results)

    match given.part:
        case "operators":
            for name, case in cases(given.names):
                label = f"{name} {' '.join(map(str, case))}"
                kept(label, lambda name=name, case=case: operator_row(name, case, given.trials))
        case "tensor":
            for precision, size in tensor.cases(given.names):
                kept(f"{precision} {size}", partial(tensor.row, precision, size, given.trials))
        case "models":
            for name in given.names or MODELS:
                kept(name, lambda name=name: model_row(name, given.seconds))
        case _:
            for name in given.names or MODELS:
                if not name.startswith("bert"):
                    kept(name, lambda name=name: torch_model(name, not given.no_tf32))


if __name__ == "__main__":
    main()
