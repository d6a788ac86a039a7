"""The thread pool's native half as LLVM IR text: job hand-over, barrier, mutex, timing loop.

The control block, in bytes; every word that threads spin on has a line of its own (128: CPUs prefetch lines in pairs):

      0  go        i32 futex, one up per job      4  sleepers on it      8  the job, written before `go` goes up
    128  phase     i32 futex, one up per barrier  132  sleepers on it
    256  arrived   i32, threads at the barrier
    384  mutex     i32 futex, one job at a time   388  stop: workers leave   392  hurry: a timing loop ends early
    512  threads   i64                            520  spin ticks i64

A thread waits for a word to change by spinning for `spin ticks`, then in the kernel. Whoever changes the word wakes the
sleepers if it counts any. No wake-up is lost: the waker writes the word and then reads the count, the sleeper raises
the count and then has the kernel compare the word, and all four are sequentially consistent.

A job is a list of steps, which the workers go through without coming back to `go` in between. Each phase ends in a
barrier, a thread without a part in it included. A barrier's last arrival resets `arrived` and raises `phase`. At the
last one of a job only the caller waits; workers return to `go`. A worker that is late for `go` cannot miss a job, since
no job ends without it.

Functions call no external symbol. `machine_ir` has those that differ from one machine to another.
"""

from __future__ import annotations

from stormdrop.runtime.machine_ir import MACHINES

BLOCK_BYTES, BLOCK_ALIGN = 640, 128
STEP_WORDS = 6  # of %step
HURRY_OFFSET, THREADS_OFFSET, SPIN_TICKS_OFFSET = 392, 512, 520

_PORTABLE = """
%block = type { i32, i32, %job, [96 x i8], i32, i32, [120 x i8], i32, [124 x i8], i32, i32, i32, [116 x i8], i64, i64 }
%job = type { ptr, i64, i64 }  ; steps, their number, float mode: one line together with `go`
%step = type { ptr, ptr, ptr, i64, ptr, i64 }  ; entry, buffers, scratch, its stride, extents, phases

define internal void @sleep_while(ptr %word, i32 %value) nounwind {
  %v = zext i32 %value to i64  ; FUTEX_WAIT | FUTEX_PRIVATE_FLAG; a signal or a changed word ends it
  call void @futex(ptr %word, i64 128, i64 %v)
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

define internal i32 @await(ptr %word, i32 %seen, i64 %spin) nounwind {  ; the first value of the word that is not %seen
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
  %more = icmp ult i64 %spent, %spin
  br i1 %more, label %look, label %bed
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
  br label %out
out:
  %r = phi i32 [ %v, %look ], [ %w, %up ]
  ret i32 %r
}

define internal void @barrier(ptr %block, i64 %threads, i64 %spin, i1 %wait) nounwind {
  %phase.at = getelementptr %block, ptr %block, i64 0, i32 4
  %arrived.at = getelementptr %block, ptr %block, i64 0, i32 7
  %phase = load atomic i32, ptr %phase.at monotonic, align 4  ; it cannot rise before this thread arrives
  %before = atomicrmw add ptr %arrived.at, i32 1 acq_rel, align 4
  %arrived = add i32 %before, 1
  %all = trunc i64 %threads to i32
  %last = icmp eq i32 %arrived, %all
  br i1 %last, label %release, label %early
release:
  store atomic i32 0, ptr %arrived.at monotonic, align 4
  call void @raise(ptr %phase.at)
  br label %done
early:
  br i1 %wait, label %linger, label %done
linger:
  %now = call i32 @await(ptr %phase.at, i32 %phase, i64 %spin)
  br label %done
done:
  ret void
}

; Thread %t's part of every phase of every step; %block is null for a thread that works alone. Writes the ticks at the
; end of step k to %marks[k + 1] unless that is null.
define internal void @share(ptr %block, ptr %steps, i64 %count, i64 %t, i64 %threads, i64 %spin, ptr %marks) nounwind {
  %alone = icmp eq ptr %block, null
  %unmarked = icmp eq ptr %marks, null
  %caller = icmp eq i64 %t, 0
  %t.next = add i64 %t, 1
  br label %head
head:
  %k = phi i64 [ 0, %0 ], [ %k.next, %ended ], [ %k.next, %mark ]
  %left = icmp slt i64 %k, %count
  br i1 %left, label %step, label %end
step:
  %k.next = add i64 %k, 1
  %final = icmp eq i64 %k.next, %count
  %step.at = getelementptr %step, ptr %steps, i64 %k
  %it = load %step, ptr %step.at, align 8
  %entry = extractvalue %step %it, 0
  %buffers = extractvalue %step %it, 1
  %base = extractvalue %step %it, 2
  %stride = extractvalue %step %it, 3
  %extents = extractvalue %step %it, 4
  %phases = extractvalue %step %it, 5
  %offset = mul i64 %stride, %t
  %scratch = getelementptr i8, ptr %base, i64 %offset
  br label %turn
turn:
  %p = phi i64 [ 0, %step ], [ %p.next, %met ], [ %p.next, %meet ]
  %more = icmp slt i64 %p, %phases
  br i1 %more, label %phase, label %ended
phase:
  %extent.at = getelementptr i64, ptr %extents, i64 %p
  %extent = load i64, ptr %extent.at, align 8
  %a = mul i64 %extent, %t
  %b = mul i64 %extent, %t.next
  %begin = udiv i64 %a, %threads
  %end.at = udiv i64 %b, %threads
  %some = icmp slt i64 %begin, %end.at
  br i1 %some, label %call, label %met
call:
  call void %entry(ptr %buffers, ptr %scratch, i64 %p, i64 %begin, i64 %end.at)
  br label %met
met:
  %p.next = add i64 %p, 1
  %outer = icmp sge i64 %p.next, %phases
  %last = and i1 %final, %outer
  %free = or i1 %alone, %last
  br i1 %free, label %turn, label %meet
meet:
  call void @barrier(ptr %block, i64 %threads, i64 %spin, i1 true)
  br label %turn
ended:
  br i1 %unmarked, label %head, label %mark
mark:
  %now = call i64 @ticks()
  %mark.at = getelementptr i64, ptr %marks, i64 %k.next
  store i64 %now, ptr %mark.at, align 8
  br label %head
end:
  br i1 %alone, label %done, label %part
part:
  call void @barrier(ptr %block, i64 %threads, i64 %spin, i1 %caller)
  br label %done
done:
  ret void
}

define void @worker(ptr %block, i64 %t) nounwind {  ; the life of thread %t > 0, until `stop`
  %stop.at = getelementptr %block, ptr %block, i64 0, i32 10
  %threads.at = getelementptr %block, ptr %block, i64 0, i32 13
  %threads = load i64, ptr %threads.at, align 8
  %spin.at = getelementptr %block, ptr %block, i64 0, i32 14
  %spin = load i64, ptr %spin.at, align 8
  %job.at = getelementptr %block, ptr %block, i64 0, i32 2
  br label %idle
idle:
  %seen = phi i32 [ 0, %0 ], [ %go, %begin ], [ %go, %restore ]
  %go = call i32 @await(ptr %block, i32 %seen, i64 %spin)
  %stop = load atomic i32, ptr %stop.at monotonic, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %leave, label %work
work:
  %job = load %job, ptr %job.at, align 8
  %steps = extractvalue %job %job, 0
  %count = extractvalue %job %job, 1
  %mode = extractvalue %job %job, 2
  %own = call i64 @float_mode()
  %same = icmp eq i64 %mode, %own
  br i1 %same, label %begin, label %adopt
adopt:
  call void @set_float_mode(i64 %mode)
  br label %begin
begin:
  call void @share(ptr %block, ptr %steps, i64 %count, i64 %t, i64 %threads, i64 %spin, ptr null)
  br i1 %same, label %idle, label %restore
restore:
  call void @set_float_mode(i64 %own)
  br label %idle
leave:
  ret void
}

; One job, by the thread that holds the mutex.
define internal void @once(ptr %block, ptr %steps, i64 %count, ptr %marks) nounwind {
  %alone = icmp eq ptr %block, null
  br i1 %alone, label %serial, label %parallel
serial:
  call void @share(ptr null, ptr %steps, i64 %count, i64 0, i64 1, i64 0, ptr %marks)
  ret void
parallel:
  %threads.at = getelementptr %block, ptr %block, i64 0, i32 13
  %threads = load i64, ptr %threads.at, align 8
  %spin.at = getelementptr %block, ptr %block, i64 0, i32 14
  %spin = load i64, ptr %spin.at, align 8
  %job.at = getelementptr %block, ptr %block, i64 0, i32 2
  %mode = call i64 @float_mode()
  %j0 = insertvalue %job zeroinitializer, ptr %steps, 0
  %j1 = insertvalue %job %j0, i64 %count, 1
  %j2 = insertvalue %job %j1, i64 %mode, 2
  store %job %j2, ptr %job.at, align 8
  call void @raise(ptr %block)
  call void @share(ptr %block, ptr %steps, i64 %count, i64 0, i64 %threads, i64 %spin, ptr %marks)
  ret void
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

define void @stop(ptr %block) nounwind {  ; after the job that runs, send the workers home
  %stop = getelementptr %block, ptr %block, i64 0, i32 10
  call void @lock(ptr %block)
  store atomic i32 1, ptr %stop monotonic, align 4
  call void @raise(ptr %block)
  call void @unlock(ptr %block)
  ret void
}

; Runs the job %repeats times and returns how often it did: fewer than asked if told to hurry. Unless %times is null,
; each run fills a row of it: the ticks at the run's beginning and end, and with %each, between them, at the end of
; every step but the last.
define i64 @bench(ptr %block, ptr %steps, i64 %count, i64 %repeats, ptr %times, i32 %each) nounwind {
  %many = icmp ne i32 %each, 0
  %ends = select i1 %many, i64 %count, i64 1
  %width = add i64 %ends, 1
  %alone = icmp eq ptr %block, null
  %untimed = icmp eq ptr %times, null
  %hurry.at = getelementptr %block, ptr %block, i64 0, i32 11
  br i1 %alone, label %head, label %enter
enter:
  call void @lock(ptr %block)
  br label %head
head:
  %i = phi i64 [ 0, %0 ], [ 0, %enter ], [ %i.next, %plain ], [ %i.next, %timed ]
  %more = icmp slt i64 %i, %repeats
  br i1 %more, label %check, label %end
check:
  %first = icmp eq i64 %i, 0
  %patient = or i1 %alone, %first
  br i1 %patient, label %go, label %look
look:
  %hurry = load atomic i32, ptr %hurry.at monotonic, align 4
  %hurried = icmp ne i32 %hurry, 0
  br i1 %hurried, label %end, label %go
go:
  %i.next = add i64 %i, 1
  br i1 %untimed, label %plain, label %timed
plain:
  call void @once(ptr %block, ptr %steps, i64 %count, ptr null)
  br label %head
timed:
  %place = mul i64 %i, %width
  %row = getelementptr i64, ptr %times, i64 %place
  %marks = select i1 %many, ptr %row, ptr null
  %end.at = getelementptr i64, ptr %row, i64 %ends
  %before = call i64 @ticks()
  store i64 %before, ptr %row, align 8
  call void @once(ptr %block, ptr %steps, i64 %count, ptr %marks)
  %after = call i64 @ticks()
  store i64 %after, ptr %end.at, align 8
  br label %head
end:
  br i1 %alone, label %done, label %leave
leave:
  call void @unlock(ptr %block)
  br label %done
done:
  ret i64 %i
}

define void @run(ptr %block, ptr %steps, i64 %count) nounwind {  ; once; each argument costs Python 0.1 µs
  %r = call i64 @bench(ptr %block, ptr %steps, i64 %count, i64 1, ptr null, i32 0)
  ret void
}
"""


def pool_ir(machine: str) -> str:
    """The native half's text for one of `MACHINES`."""
    return MACHINES[machine] + _PORTABLE
