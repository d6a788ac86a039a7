"""The keys that `--json` of each command prints, for one small model."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from click.testing import CliRunner

from stormdrop.cli.main import main
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.device import peak
from stormdrop.doctor import calibrate
from stormdrop.measure.stopwatch import Runs, race
from stormdrop.tuning import in_model
from tests.support.tiny_onnx import conv

QUICK = "--trials 4 --search random --threads 1"
COMMANDS: dict[str, str] = {
    "zoo ls": "zoo ls",
    "zoo build": "zoo build squeezenet1_0 -o {folder}/squeezenet.onnx",
    "info": "info {model} --threads 1",
    "compile": "compile {model} -o {folder}/model.sd --threads 1",
    "info of a compiled file": "info {folder}/model.sd",
    "run": "run {model} --threads 1",
    "check": "check {model} --threads 1",
    "bench": "bench {model} --against onnxruntime --threads 1 --time 0.1 --profile",
    "show": "show {model} --threads 1",
    "show one task": "show {model} t0 --as schedule --as sketch --threads 1",
    "peak": "peak --threads 1",
    "calibrate": "calibrate {model} --threads 1",
    "doctor": "doctor --threads 1",
    "tune": "tune {model} " + QUICK,
    "tune two models": "tune {model} {model} " + QUICK,
    "op": "op GMM 1 16 16 16 --trials 4 --threads 1 --search random",
    "op with two searches": "op GMM 1 16 16 16 --trials 4 --threads 1 --search random --search storm",
    "store path": "store path",
    "store size": "store size",
    "store ls": "store ls",
    "store best": "store best {task}",
    "store export": "store export {folder}/trials.jsonl",
    "store import": "store import {folder}/trials.jsonl",
    "store donors": "store donors {model} --threads 1",
    "store prune": "store prune --max-size 100MB",
    "store forget": "store forget {task}",
}
"""The arguments by command, in the order of the calls: later commands read what earlier ones write."""
CLOSED = ("schedule", "against", "text", "files", "operators")
"""Objects whose keys depend on the task, on the folder or on the question."""
RACE_SECONDS = 0.05


def json_keys(commands: Mapping[str, str] = COMMANDS) -> dict[str, str]:
    """Returns the keys that each command prints, as paths; `tasks[].id` is the key `id` of each element of `tasks`."""
    results: dict[str, str] = {}
    with TemporaryDirectory() as name, quick_measurements(Path(name)):
        model = conv(Path(name))
        digest = tasks_of(read_graph(str(model))).tasks[0].task.digest
        for command, arguments in commands.items():
            given = arguments.format(folder=name, model=model, task=digest).split()
            done = CliRunner().invoke(main, [*given, "--json"])
            if done.exit_code:
                results[command] = f"exit code {done.exit_code}: {done.stderr}"
            else:
                paths = sorted(set(key_paths(json.loads(done.stdout))))
                results |= {f"{command}: {path}": "a key" for path in paths}
    return results


@contextmanager
def quick_measurements(folder: Path) -> Generator[None]:
    """Begins with an empty cache directory, and measures the rates of the machine briefly."""
    with (
        patch.dict("os.environ", {"STORMDROP_CACHE_DIR": str(folder / "cache")}),
        patch.object(peak, "_STREAM_SECONDS", 0.0),
        patch.object(peak, "_BYTES_PER_TIMING", 1 << 20),
        patch.object(peak, "_SHORT_SECONDS", 1e-5),
        patch.object(calibrate, "RACE_SECONDS", RACE_SECONDS),
        patch.object(in_model, "race", brief_race),
    ):
        yield


def brief_race(sides: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, Runs]:
    """Times each side, whatever the wish, for `RACE_SECONDS`."""
    return race(sides, RACE_SECONDS)


def key_paths(tree: object, at: str = "") -> Iterator[str]:
    """Yields the path of each key of a tree."""
    match tree:
        case dict():
            for key, value in tree.items():
                path = f"{at}.{key}" if at else str(key)
                yield path
                if key not in CLOSED:
                    yield from key_paths(value, path)
        case list():
            for element in tree:
                yield from key_paths(element, f"{at}[]")
        case _:
            return
