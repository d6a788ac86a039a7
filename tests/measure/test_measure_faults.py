"""A candidate can do its worst: it is named, and the next one is measured."""

import os
import platform
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import HandWritten, Measurer, MeasureSettings
from stormdrop.measure.result import Failure, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target
from tests.support.workers import worker_pids

Write = Callable[..., HandWritten]
IS_X86 = platform.machine() == "x86_64"
KILL, EXIT, EXIT_GROUP, GETPID, WRITE, MMAP, CLOSE_RANGE = (
    (62, 60, 231, 39, 1, 9, 436) if IS_X86 else (129, 93, 94, 172, 64, 222, 436)
)


def syscall(number: int, *arguments: int | str) -> str:
    padded = [*arguments, *[0] * (5 - len(arguments))]
    return f"call i64 @syscall(i64 {number}, {', '.join(f'i64 {a}' for a in padded)})"


def loop(body: str, start: int, end: int) -> str:
    """body for %i from start to end, after the right answer was written."""
    return f"""store float %y, ptr %at
  br label %again1
again1:
  %i = phi i64 [ {start}, %work ], [ %next, %tail ]
  {body}
  br label %tail
tail:
  %next = add i64 %i, 1
  %on = icmp slt i64 %next, {end}
  br i1 %on, label %again1, label %last
last:"""


STOP = f"%pid = {syscall(GETPID)}\n  %r = {syscall(KILL, '%pid', signal.SIGSTOP)}"
EXIT_MAIN = f"""%main = icmp eq i64 %begin, 0
  br i1 %main, label %bad, label %done
bad:
  %r = {syscall(EXIT, 0)}"""
SCRIBBLE = f"%r = {syscall(WRITE, '%i', '%text', 12)}"
TEXT = '@text = internal constant [12 x i8] c"wild kernel!"'
NUMBER_OF_TEXT = "%text = ptrtoint ptr @text to i64\n  "
DIG = """
define void @dig(i64 %n) noinline {
  %room = alloca [4096 x i8]
  store volatile i64 %n, ptr %room
  %m = add i64 %n, 1
  call void @dig(i64 %m)
  %kept = load volatile i64, ptr %room
  ret void
}"""
EAT = f"%block = {syscall(MMAP, 0, 1 << 20, 3, 0x8022, -1)}"  # private anonymous pages, populated

FAULTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "reads address zero": (("%p = inttoptr i64 16 to ptr\n  %v = load volatile i32, ptr %p",), "crash", "SIGSEGV"),
    "traps": (("call void @llvm.trap()", "declare void @llvm.trap()"), "crash", "SIG(ILL|TRAP)"),
    "overflows the stack": (("call void @dig(i64 0)", DIG), "crash", "SIGSEGV"),
    "exits": ((f"%r = {syscall(EXIT_GROUP, 3)}",), "crash", "status 3"),
    "ends its main thread": ((EXIT_MAIN,), "crash", "ended its main thread"),
    "stops itself": ((STOP,), "crash", "stopped itself"),
    "closes every file": ((f"%r = {syscall(CLOSE_RANGE, 3, 1 << 20)}",), "crash", "closed its pipe|exited"),
    "loops for ever": (("br label %forever\nforever:\n  br label %forever\nnever:",), "timeout", "1.5 s"),
    "writes on every file": ((NUMBER_OF_TEXT + loop(SCRIBBLE, 3, 1024), TEXT), "crash", "pipe"),
    "eats memory": ((loop(EAT, 0, 1 << 40),), "memory", "MiB"),
    "writes to its input": (("store float 1.0, ptr %ina",), "crash", "SIGSEGV"),
    "writes nothing": (("",), "wrong", "unwritten"),
    "writes NaN": (("store float 0x7FF8000000000000, ptr %at",), "wrong", "is nan, not"),
    "adds wrongly": (("%d = fsub float %y, 0.5\n  store float %d, ptr %at",), "wrong", "1 of 1 sampled elements"),
    "is right only once": (("%z = select i1 %again, float 77.0, float %y\n  store float %z, ptr %at",), "wrong", "77"),
    "writes before its output": (
        ("store float %y, ptr %at\n  %q = getelementptr i8, ptr %at, i64 -8\n  store i8 1, ptr %q",),
        "wrong",
        "8 bytes before output Y",
    ),
    "writes after its output": (
        ("store float %y, ptr %at\n  %q = getelementptr i8, ptr %at, i64 4\n  store i8 1, ptr %q",),
        "wrong",
        "1 bytes after output Y",
    ),
}
if IS_X86:
    DIVIDE = 'call void asm sideeffect "xorl %ecx, %ecx; divl %ecx", "~{eax},~{ecx},~{edx},~{flags}"()'
    FAULTS["divides by zero"] = ((DIVIDE,), "crash", "SIGFPE")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_that_is_named_when_it(fault: str, measurer: Measurer, tiny: Task, write: Write):
    source, kind, message = FAULTS[fault]
    bad, good = write(*source), write()
    first, second = measurer.measure(tiny, [bad, good])
    assert isinstance(first, Failure)
    assert first.kind == kind, first
    assert pytest.raises(AssertionError, match=message).matches(AssertionError(first.message)), first
    assert isinstance(second, Timing)


def test_a_kernel_that_writes_on_low_files_disturbs_nobody(measurer: Measurer, tiny: Task, write: Write):
    results = measurer.measure(tiny, [write(NUMBER_OF_TEXT + loop(SCRIBBLE, 0, 65), TEXT), write()])
    assert all(isinstance(r, Timing) for r in results), results


def test_a_kernel_that_does_not_suit_its_task_or_wants_too_much_is_refused(
    measurer: Measurer, tiny: Task, write: Write
):
    good = write()
    other_sizes = replace(
        good, like=replace(good.like, buffers=tuple(replace(s, elements=2) for s in good.like.buffers))
    )
    greedy = replace(good, like=replace(good.like, scratch_bytes=1 << 40))
    results = measurer.measure(tiny, [good, other_sizes, greedy, good])
    assert [r.kind if isinstance(r, Failure) else "" for r in results] == ["", "build", "memory", ""]


def test_a_planted_error_in_a_real_kernel_is_wrong(
    measurer: Measurer, draw: Callable[[Task, int], list[Schedule]], target: Target
):
    from stormdrop.builder.building import artifact_of, program_of
    from stormdrop.codegen.emit import emit

    task = build("ADR", [1, 5, 7, 19])
    program = program_of(task, draw(task, 1)[0], target)
    text, like = emit(program, target), artifact_of(program, target)
    assert " fadd " in text
    bad, good = HandWritten(text.replace(" fadd ", " fsub "), like), HandWritten(text, like)
    first, second = measurer.measure(task, [bad, good])
    assert isinstance(first, Failure)
    assert (first.kind, isinstance(second, Timing)) == ("wrong", True)


def test_text_that_llvm_refuses_aborts_on_or_hangs_on_costs_one_candidate(tiny: Task, write: Write, target: Target):
    long = ["%x0 = fadd float %a, 1.0"]
    long += [f"%x{i + 1} = fmul float %x{i}, %x{i // 2}" for i in range(20_000)]  # about 5 s
    sources = [
        write("this is not LLVM IR"),
        write('call void asm sideeffect "nosuchinstruction", ""()'),
        write("\n  ".join([*long, "store float %x20000, ptr %at"])),
        write(),
    ]
    with Measurer(target, MeasureSettings(build_timeout=0.4, min_seconds=0.002), builders=2) as measurer:
        refused, aborted, slow, good = measurer.measure(tiny, sources)
    assert isinstance(refused, Failure)
    assert refused.kind == "build"
    assert "expected instruction opcode" in refused.message
    assert isinstance(aborted, Failure)
    assert aborted.kind in ("crash", "build")
    assert "invalid instruction" in aborted.message
    assert isinstance(slow, Failure)
    assert slow.kind == "timeout"
    assert isinstance(good, Timing)


def test_an_idle_worker_that_is_stopped_or_killed_is_replaced_at_no_candidates_cost(
    measurer: Measurer, tiny: Task, write: Write
):
    measurer.measure(tiny, [write()] * 2)
    before = worker_pids(measurer)
    assert len(before) >= 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert all(isinstance(r, Timing) for r in measurer.measure(tiny, [write()] * 2))  # nobody was at work
    for pid in worker_pids(measurer):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.2)
    assert all(isinstance(r, Timing) for r in measurer.measure(tiny, [write()] * 2))
    assert not set(before) & set(worker_pids(measurer))


def test_a_schedule_of_another_class_is_a_schedule_failure(
    measurer: Measurer, tiny: Task, draw: Callable[[Task, int], list[Schedule]], write: Write
):
    foreign = draw(build("GMM", [1, 8, 8, 8]), 1)[0]
    first, second = measurer.measure(tiny, [foreign, write()])
    assert isinstance(first, Failure)
    assert (first.kind, isinstance(second, Timing)) == ("schedule", True)
