"""The thread pool's native half as LLVM IR text: job hand-over, division of groups, mutex, timing loop.

The control block, in bytes; every word that threads spin on has a line of its own (128: CPUs prefetch lines in pairs):

      0  go        i32 futex, odd while a job is open   4  sleepers on it   8  the job, written before `go` becomes odd
    128  phase     i32 futex, one up per group        132  sleepers on it
    256  done      i64, iterations of the group that have been run, of sets of threads whose shares are done
    384  mutex     i32 futex, one job at a time       388  stop: workers leave   392  hurry: a timing loop ends early
    512  threads   i64      520  spin ticks i64       528  epoch i64: `phase` without its wrap-around, between jobs
    536  spread    i64: whether workers leave a CPU that they share
    544  home      i64: the CPU that the caller of a job goes to, plus one; 0: it stays where it is
    640  seats, 128 bytes a thread: claim i64, the epoch of a group << 16 | the number of parts that are claimed of the
         thread's share of it; reading i32, set while the thread reads the job or its steps; the thread's number i32;
         working i32, set while it is in a group; i32, the group in which it was last moved by another thread; in the
         second half of every fourth seat, i64: iterations that have been run of the shares of four threads
    then cpus, i32 a thread: the CPU on which it was last seen, plus one

A thread waits for a word to change by spinning for `spin ticks`, then in the kernel. The thread that changes the word
wakes the sleepers if it counts any. No wake-up is lost: the waker writes the word and then reads the count. The sleeper
raises the count and then has the kernel compare the word. All four are sequentially consistent.

**Groups.** A job is a list of steps, each a phase of a kernel, and consecutive steps form groups (`device.artifact`); a
barrier follows each group. Iterations [a, b) of a group of n run iterations [⌈extent·a/n⌉, ⌈extent·b/n⌉) of each of its
steps, one step after the other on one thread.

Thread t's share of a group is [⌈extent·t/T⌉, ⌈extent·(t+1)/T⌉), in up to `PARTS` parts. It is the same fraction of
every group, so that a thread's caches hold its results of the group before. A thread claims parts of its own share, one
after the other, and then unclaimed parts of other shares. Threads count the iterations they have run. A counter for
each four shares limits the number of writers to one line; completed counters are added to `done`. The thread that
completes the extent raises `phase`, which begins the next group. A count is reset by the thread that completes it. So a
group waits for claimed parts only, never for a thread without a claim, such as a thread that was late or is not
running.

A claim is a compare-and-swap of the claim word. An older epoch in it means that no part of this group is claimed. A
newer epoch, or all parts claimed, sends the thread on. A group that is over has all its parts claimed: a late thread
can claim nothing of it.

**CPUs.** The system may put two threads on one CPU and leave them there. Beside another program that keeps a CPU busy
it may do so for ever, since a thread that waits sleeps and lets its CPU look half idle. Therefore a worker that begins
a group on the CPU of the caller or of an earlier worker moves to a CPU without threads of the pool. Its affinity mask
stays unchanged, and the caller, a thread of the user's, does not do so. A thread that loses its CPU while it holds a
part is moved to the CPU of a thread that waits for it (`rescue_ir`). If workers are bound to CPUs, none of them could
make room for the caller. The caller therefore moves to its own CPU, `home`, when it begins a job elsewhere, if its mask
allows that.

**Jobs.** A job is a list of steps, whose memory the caller may free when the job is over. A worker therefore sets
`reading` and then compares `go` with the value it came for, before it reads the job or a step; the caller makes `go`
even when the last group is over, and then waits for all `reading` to be 0. Both are sequentially consistent: either the
worker sees that the job is closed, or the caller sees that it reads. A worker that holds a part needs no such guard,
since the group cannot end without it.

Functions call no external symbol. This module has the types and the waiting of threads for each other; `phases_ir` has
groups and CPUs, `rescue_ir` the handling of lost CPUs, `jobs_ir` jobs and their timing, `machine_ir` the differences
between machines.

The machine-dependent part of the thread pool as LLVM IR text: pause, tick counter, system calls, CPU number,
floating-point mode.

Linux is reached by inline assembly: no function calls an external symbol.
"""

from __future__ import annotations

from stormdrop.device.pool.jobs_ir import JOBS
from stormdrop.device.pool.phases_ir import CPUS, PHASES
from stormdrop.device.pool.rescue_ir import RESCUE

_X86_64 = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal void @pause() nounwind {
  call void asm sideeffect "pause", "~{memory},~{dirflag},~{fpsr},~{flags}"()
  ret void
}

define i64 @ticks() nounwind {  ; lfence: not before what precedes has been done
  %r = call {i64, i64} asm sideeffect "lfence; rdtsc", "={rax},={rdx},~{memory},~{dirflag},~{fpsr},~{flags}"()
  %low = extractvalue {i64, i64} %r, 0
  %high = extractvalue {i64, i64} %r, 1
  %top = shl i64 %high, 32
  %t = or i64 %top, %low
  ret i64 %t
}

define internal i64 @system(i64 %number, i64 %a, i64 %b, i64 %c) nounwind {  ; a fourth argument is 0
  %r = call i64 asm sideeffect "syscall",
    "={rax},{rax},{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}"
    (i64 %number, i64 %a, i64 %b, i64 %c, i64 0)
  ret i64 %r
}

define internal i32 @cpu() nounwind {  ; the number of this CPU, plus one; 0 where it is not known
  %r = call {i64, i64, i64} asm sideeffect "rdtscp", "={rax},={rdx},={rcx},~{dirflag},~{fpsr},~{flags}"()
  %aux = extractvalue {i64, i64, i64} %r, 2
  %low = and i64 %aux, 4095  ; Linux keeps the NUMA node above
  %number = trunc i64 %low to i32
  %next = add i32 %number, 1
  ret i32 %next
}

define i64 @float_mode() nounwind {  ; MXCSR without the sticky exception flags
  %slot = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %v = load i32, ptr %slot, align 4
  %m = and i32 %v, -64
  %r = zext i32 %m to i64
  ret i64 %r
}

define void @set_float_mode(i64 %mode) nounwind {
  %slot = alloca i32, align 4
  %v = trunc i64 %mode to i32
  store i32 %v, ptr %slot, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  ret void
}
"""

_AARCH64 = """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
declare void @llvm.aarch64.isb(i32)
declare i64 @llvm.read_volatile_register.i64(metadata)
!0 = !{!"cntvct_el0"}  ; llvm.readsteadycounter gives 0 here, without a word (LLVM 22)

define internal void @pause() nounwind {  ; `yield` does nothing on most cores
  call void @llvm.aarch64.isb(i32 15)
  ret void
}

define i64 @ticks() nounwind {
  call void @llvm.aarch64.isb(i32 15)
  %t = call i64 @llvm.read_volatile_register.i64(metadata !0)
  ret i64 %t
}

define internal i64 @system(i64 %number, i64 %a, i64 %b, i64 %c) nounwind {  ; a fourth argument is 0
  %r = call i64 asm sideeffect "svc #0", "={x0},{x8},{x0},{x1},{x2},{x3},~{memory}"
    (i64 %number, i64 %a, i64 %b, i64 %c, i64 0)
  ret i64 %r
}

define internal i32 @cpu() nounwind {  ; not known without a system call
  ret i32 0
}

define i64 @float_mode() nounwind {
  %m = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %m
}

define void @set_float_mode(i64 %mode) nounwind {
  call void @llvm.aarch64.set.fpcr(i64 %mode)
  ret void
}
"""

MACHINES = {"x86_64": _X86_64, "aarch64": _AARCH64}  # by platform.machine() on Linux
SYSTEM_CALLS = {
    "x86_64": {"FUTEX": 202, "SET_AFFINITY": 203, "GET_AFFINITY": 204, "CLOCK_GETTIME": 228, "GETTID": 186},
    "aarch64": {"FUTEX": 98, "SET_AFFINITY": 122, "GET_AFFINITY": 123, "CLOCK_GETTIME": 113, "GETTID": 178},
}


SEATS_OFFSET, SEAT_BYTES, BLOCK_ALIGN = 640, 128, 128
STEP_WORDS = 8  # of %step
HURRY_OFFSET, THREADS_OFFSET, SPIN_TICKS_OFFSET, SPREAD_OFFSET, HOME_OFFSET = 392, 512, 520, 536, 544
PARTS = 8  # at most, into which a thread's share of a group is cut
LINGER_TICKS = 1500  # before a thread with a finished share claims other parts: balanced shares end within this


def block_bytes(threads: int) -> int:
    """Returns the size of the control block."""
    return SEATS_OFFSET + SEAT_BYTES * threads + -(-4 * threads // BLOCK_ALIGN) * BLOCK_ALIGN


_WAITING = """
%block = type {
  i32, i32, %job, [72 x i8], i32, i32, [120 x i8], i64, [120 x i8], i32, i32, i32, [116 x i8], i64, i64, i64
}
%job = type { ptr, i64, i64, i64, ptr, ptr }  ; steps, their number, float mode, first epoch, marks, account
%entry = type { i64, i64, i64 }  ; of an account
; entry, buffers, scratch, its stride, phase, extent, that of its group, steps of the group that it begins
%step = type { ptr, ptr, ptr, i64, i64, i64, i64, i64 }

define internal void @sleep_while(ptr %word, i32 %value) nounwind {
  %v = zext i32 %value to i64  ; FUTEX_WAIT | FUTEX_PRIVATE_FLAG; a signal or a changed word ends it
  call void @futex(ptr %word, i64 128, i64 %v)
  ret void
}
define internal void @futex(ptr %word, i64 %op, i64 %value) nounwind {
  %address = ptrtoint ptr %word to i64
  %r = call i64 @system(i64 $FUTEX$, i64 %address, i64 %op, i64 %value)
  ret void
}
define internal void @raise(ptr %word) nounwind {  ; one up, and wake who sleeps on it
  %old = load atomic i32, ptr %word monotonic, align 4
  %new = add i32 %old, 1
  store atomic i32 %new, ptr %word seq_cst, align 4
  %sleepers.at = getelementptr i8, ptr %word, i64 4
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %none = icmp eq i32 %sleepers, 0
  br i1 %none, label %done, label %wake
wake:
  call void @futex(ptr %word, i64 129, i64 2147483647)  ; FUTEX_WAKE | FUTEX_PRIVATE_FLAG, all of them
  br label %done
done:
  ret void
}

define internal i1 @spin(ptr %word, i32 %seen, i64 %limit) nounwind {  ; whether the word changed within %limit ticks
  %start = call i64 @ticks()
  br label %look
look:
  %n = phi i32 [ 0, %0 ], [ %n.next, %again ], [ %n.next, %clock ]
  %v = load atomic i32, ptr %word acquire, align 4
  %changed = icmp ne i32 %v, %seen
  br i1 %changed, label %out, label %again
again:
  call void @pause()
  %n.next = add i32 %n, 1
  %sixteenth = and i32 %n.next, 15
  %due = icmp eq i32 %sixteenth, 0
  br i1 %due, label %clock, label %look
clock:
  %now = call i64 @ticks()
  %spent = sub i64 %now, %start
  %more = icmp ult i64 %spent, %limit
  br i1 %more, label %look, label %out
out:
  ret i1 %changed
}

define internal i32 @await(ptr %word, i32 %seen, i64 %limit) nounwind {  ; a value of the word that is not %seen
  %soon = call i1 @spin(ptr %word, i32 %seen, i64 %limit)
  br i1 %soon, label %awake, label %bed
awake:
  %v = load atomic i32, ptr %word acquire, align 4
  ret i32 %v
bed:
  %sleepers = getelementptr i8, ptr %word, i64 4
  %in = atomicrmw add ptr %sleepers, i32 1 seq_cst, align 4
  br label %doze
doze:
  %w = load atomic i32, ptr %word seq_cst, align 4
  %woken = icmp ne i32 %w, %seen
  br i1 %woken, label %up, label %sleep
sleep:
  call void @sleep_while(ptr %word, i32 %seen)
  br label %doze
up:
  %left = atomicrmw sub ptr %sleepers, i32 1 seq_cst, align 4
  ret i32 %w
}

define i32 @try_lock(ptr %block) nounwind {
  %mutex = getelementptr %block, ptr %block, i64 0, i32 9
  %r = cmpxchg ptr %mutex, i32 0, i32 1 acquire monotonic, align 4
  %ok = extractvalue {i32, i1} %r, 1
  %i = zext i1 %ok to i32
  ret i32 %i
}

define internal void @lock(ptr %block) nounwind {  ; 0 free, 1 held, 2 held and somebody may be asleep
  %mutex = getelementptr %block, ptr %block, i64 0, i32 9
  %ok = call i32 @try_lock(ptr %block)
  %at.once = icmp ne i32 %ok, 0
  br i1 %at.once, label %held, label %contend
contend:
  %old = atomicrmw xchg ptr %mutex, i32 2 acquire, align 4
  %free = icmp eq i32 %old, 0
  br i1 %free, label %held, label %sleep
sleep:
  call void @sleep_while(ptr %mutex, i32 2)
  br label %contend
held:
  ret void
}

define internal void @unlock(ptr %block) nounwind {
  %mutex = getelementptr %block, ptr %block, i64 0, i32 9
  %old = atomicrmw xchg ptr %mutex, i32 0 release, align 4
  %asleep = icmp eq i32 %old, 2
  br i1 %asleep, label %wake, label %done
wake:
  call void @futex(ptr %mutex, i64 129, i64 1)
  br label %done
done:
  ret void
}
"""


def pool_ir(machine: str) -> str:
    """Returns the native half's text for a machine of `MACHINES`."""
    numbers = {"SEATS": SEATS_OFFSET, "PARTS": PARTS, "PARTS.1": PARTS - 1, "LINGER": LINGER_TICKS}
    numbers |= {"SPREAD": SPREAD_OFFSET, "HOME": HOME_OFFSET, **SYSTEM_CALLS[machine]}
    text = MACHINES[machine] + _WAITING + PHASES + CPUS + RESCUE + JOBS
    for name, value in numbers.items():
        text = text.replace(f"${name}$", str(value))
    return text
