"""Measuring on a GPU, with a fake driver: the runner's checks and faults, and building beside timing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import stormdrop as sd
from stormdrop.base.codec import encode
from stormdrop.builder.building import BuiltKernel, build_artifact
from stormdrop.codegen import ENTRY
from stormdrop.codegen.llvm import assemble
from stormdrop.device.artifact import Artifact, BufferSpec
from stormdrop.device.host import detect
from stormdrop.measure import worker
from stormdrop.measure.measurer import HandWritten, Measurer
from stormdrop.measure.result import Failure, Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.measure.wire import BuildReply
from stormdrop.measure.worker import RunnerRole, answer
from stormdrop.target.gpu import gpu
from stormdrop.target.structures import Scope
from tests.support.fake_cuda import FakeCudaDevice, as_launched
from tests.support.workers import MemoryLink

N = 64
QUICK = MeasureSettings(min_seconds=1e-4, sample_points=16)


def doubling() -> sd.Task:
    X, i = sd.tensor("X", (N,)), sd.axis(N)
    return sd.Task([sd.compute("Y", (i,), X[i] + X[i])], name="doubling")


def layer() -> sd.Task:
    X, W = sd.tensor("X", (4, 8)), sd.tensor("W", (8, 16), constant=True)
    i, j, k = sd.axis(4), sd.axis(16), sd.reduce_axis(8)
    return sd.Task([sd.compute("Y", (i, j), sd.sum(X[i, k] * W[k, j], k))], name="layer")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeCudaDevice:
    made = FakeCudaDevice()
    monkeypatch.setattr(worker, "device_for", lambda target: made)  # pyright: ignore[reportUnknownLambdaType]
    return made


def asked(role: RunnerRole, task: sd.Task, artifact: Artifact, op: str = "time", **more: Any) -> dict[str, Any]:
    answer(role, {"op": "task", "number": hash(task.digest), "task": task.to_json()})
    return answer(role, {"op": op, "artifact": encode(as_launched(artifact)), "variant": None, **more})


def stores(text: str) -> Artifact:
    """A kernel X -> Y whose body is given."""
    body = f"""
define void @{ENTRY}(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) {{
  %at = getelementptr ptr, ptr %buffers, i64 1
  %x = load ptr, ptr %buffers
  %y = load ptr, ptr %at
  {text}
  ret void
}}"""
    buffers = BufferSpec("X", "f32", Scope.INPUT, N), BufferSpec("Y", "f32", Scope.OUTPUT, N)
    return Artifact(assemble(body, detect(1)), buffers, (1,))


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("task", [doubling(), layer()])
def test_a_right_kernel_is_timed_with_warm_and_with_cold_weights(
    device: FakeCudaDevice, task: sd.Task, cold: bool
) -> None:
    role = RunnerRole(replace(gpu(), l2_bytes=4096).with_cold_weights(cold), QUICK)
    artifact = build_artifact(task, None, detect(1))
    for _ in range(2):
        reply = asked(role, task, artifact, best=None)
        assert reply.get("failure") is None
        assert reply["seconds"] > 0
    assert asked(role, task, artifact, op="round")["runs"] > 0
    proved = asked(role, task, artifact, op="prove", witness=None)
    assert proved["seconds"] > 0


def test_a_kernel_that_writes_nothing_is_wrong_though_one_before_it_was_right(device: FakeCudaDevice) -> None:
    role, task = RunnerRole(gpu(), QUICK), doubling()
    asked(role, task, build_artifact(task, None, detect(1)), best=None)
    failure = asked(role, task, stores(""), best=None)["failure"]
    assert failure["kind"] == "wrong"
    assert f"left {N} of {N} elements" in failure["message"]


def test_a_kernel_that_writes_beside_its_output_is_wrong(device: FakeCudaDevice) -> None:
    role, task = RunnerRole(gpu(), QUICK), doubling()
    beside = f"%p = getelementptr float, ptr %y, i64 {N}\n  store float 1.0, ptr %p"
    assert "wrote 1 bytes after output Y" in asked(role, task, stores(beside), best=None)["failure"]["message"]
    assert "seconds" in asked(role, task, build_artifact(task, None, detect(1)), best=None)


def test_an_input_that_a_wrong_kernel_changed_is_told_of_and_put_back(device: FakeCudaDevice) -> None:
    role, task = RunnerRole(gpu(), QUICK), doubling()
    failure = asked(role, task, stores("store float 7.0, ptr %x"), best=None)["failure"]
    assert failure["message"].endswith("it changed input X")
    assert "seconds" in asked(role, task, build_artifact(task, None, detect(1)), best=None)


def test_a_fault_of_the_gpu_ends_the_process_and_other_errors_do_not(device: FakeCudaDevice) -> None:
    role, task = RunnerRole(gpu(), QUICK), doubling()
    artifact = build_artifact(task, None, detect(1))
    device.library.fail("cuGraphLaunch", 1)
    reply = asked(role, task, artifact, best=None)
    assert (reply["failure"]["kind"], reply["is_lost"]) == ("crash", False)
    device.library.fail("cuStreamSynchronize", 700)
    reply = asked(role, task, artifact, best=None)
    assert (reply["failure"]["kind"], reply["is_lost"]) == ("crash", True)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in reply["failure"]["message"]


# ---- the measurer, with scripted workers ----------------------------------------------------------------------------


def test_candidates_for_a_gpu_are_timed_in_their_order_while_others_are_built() -> None:
    bests: list[float | None] = []

    def scripted(request: dict[str, Any]) -> dict[str, Any]:
        """Builds any text but one, and times a kernel as its text says."""
        match request:
            case {"op": "build", "request": {"text": "broken"}}:
                return {"failure": {"kind": "build", "message": "broken"}}
            case {"op": "build", "request": {"text": text}}:
                return encode(BuildReply(BuiltKernel(Artifact(text.encode(), (), ())), 0.0))
            case {"op": "time", "artifact": {"code": code}, "best": best}:
                bests.append(best)
                return {
                    "seconds": float(code),
                    "spread": 0.0,
                    "runs": 1,
                    "stopped_early": False,
                    "samples": [float(code)],
                }
            case _:
                return {}

    like = Artifact(b"", (), ())
    texts = ["3", "2", "broken", "5", "1", "4"]
    with Measurer(gpu(), builders=2, connect=lambda: MemoryLink(scripted)) as measurer:
        results = measurer.measure(doubling(), [HandWritten(text, like) for text in texts])
        assert measurer.measure(doubling(), []) == []
    seconds = [r.seconds if isinstance(r, Timing) else None for r in results]
    assert seconds == [3, 2, None, 5, 1, 4]
    assert isinstance(results[2], Failure)
    assert bests == [None, 3, 2, 2, 1]
