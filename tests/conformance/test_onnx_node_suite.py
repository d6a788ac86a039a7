"""ONNX's backend node suite on compiled kernels: no failure, and exactly the cases listed in `node_suite.json` pass.

    pytest tests/conformance -s --update-golden      rewrites the list and prints a table per operator

The list may only grow. It is for one version of onnx; with another one, cases that the list names and that still exist
must pass.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.onnx_suite import all_cases, outcomes

onnx = pytest.importorskip("onnx")
HERE = Path(__file__).parent
EXPECTED = HERE / "node_suite.json"
PROCESSES = 2


def _run(tmp_path: Path) -> list[dict[str, Any]]:
    environment = {**os.environ, "ONNX_HOME": str(tmp_path)}
    files = [
        (tmp_path / f"{k}.out").open("w+") for k in range(PROCESSES)
    ]  # pipes would fill while another process is waited for
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.onnx_suite", str(k), str(PROCESSES)],
            cwd=HERE.parent.parent,
            env=environment,
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k, file in enumerate(files)
    ]
    found: list[dict[str, Any]] = []
    for process, file in zip(started, files):
        _, err = process.communicate()
        assert process.returncode == 0, err[-2000:]
        file.seek(0)
        found += [json.loads(line) for line in file]
        file.close()
    return found


def _table(found: list[dict[str, Any]]) -> str:
    rows: dict[str, Counter[str]] = {}
    for case in found:
        if "expanded" not in case["name"]:
            for op in case["operators"]:
                rows.setdefault(op, Counter())[case["result"]] += 1
    lines = [
        f"{op:28} {c['passed']:4} passed {c['bound']:4} bound {c['skipped']:4} skipped"
        for op, c in sorted(rows.items())
    ]
    return "\n".join(lines)


@pytest.mark.timeout(1200)
def test_exactly_the_listed_cases_pass_and_none_fails(tmp_path: Path, update_golden: bool) -> None:
    found = _run(tmp_path)
    failed = [f"{c['name']}: {c['why']}" for c in found if c["result"] == "failed"]
    assert not failed, "\n".join(failed)
    names = {kind: sorted(c["name"] for c in found if c["result"] == kind) for kind in ("passed", "bound")}
    summary = {
        "onnx": onnx.__version__,
        "cases": len(found),
        "passed": len(names["passed"]),
        "passed with an input bound as a constant": len(names["bound"]),
        "of these, without a kernel (views and constants)": sum(
            c["result"] in ("passed", "bound") and not c["kernels"] for c in found
        ),
        "skipped": sum(c["result"] == "skipped" for c in found),
    }
    print(_table(found), json.dumps(summary, indent=1), sep="\n")
    if update_golden:
        EXPECTED.write_text(json.dumps({**summary, "names": names}, indent=1) + "\n")
    expected = json.loads(EXPECTED.read_text())
    passing = {*names["passed"], *names["bound"]}
    lost = {*expected["names"]["passed"], *expected["names"]["bound"]} & {c["name"] for c in found} - passing
    assert not lost, f"these passed once: {sorted(lost)}"
    if expected["onnx"] == onnx.__version__:
        assert summary == {k: v for k, v in expected.items() if k != "names"}
        assert names == expected["names"], "more pass than before: run with --update-golden"


def test_a_wrong_result_is_a_failure_not_a_skip() -> None:
    case = copy.copy(next(c for c in all_cases() if c.name == "test_add"))
    inputs, outputs = case.data_sets[0]
    case.data_sets = [(inputs, [outputs[0] + 1])]
    (outcome,) = outcomes([case])
    assert outcome.result == "failed"
    assert outcome.kernels == 1
