"""The thread pool's native half as LLVM IR text: job hand-over, division of phases, mutex, timing loop.

The control block, in bytes; every word that threads spin on has a line of its own (128: CPUs prefetch lines in pairs):

      0  go        i32 futex, odd while a job is open   4  sleepers on it   8  the job, written before `go` becomes odd
    128  phase     i32 futex, one up per phase        132  sleepers on it
    256  done      i64, iterations of the phase that have been run
    384  mutex     i32 futex, one job at a time       388  stop: workers leave   392  hurry: a timing loop ends early
    512  threads   i64      520  spin ticks i64       528  epoch i64: `phase` without its wrap-around, between jobs
    536  spread    i64: whether workers leave a CPU that they share
    640  seats, 128 bytes a thread: claim i64, the epoch of a phase << 16 | the number of parts that are claimed of the
         thread's share of it; reading i32, set while the thread reads the job or its steps
    then cpus, i32 a thread: the CPU on which it was last seen, plus one

A thread waits for a word to change by spinning for `spin ticks`, then in the kernel. Whoever changes the word wakes the
sleepers if it counts any. No wake-up is lost: the waker writes the word and then reads the count, the sleeper raises
the count and then has the kernel compare the word, and all four are sequentially consistent.

**Phases.** Thread t's share of a phase is [⌈extent·t/T⌉, ⌈extent·(t+1)/T⌉), in up to `PARTS` parts. A thread claims
parts of its own share, one after the other, and then those that others have not claimed. Threads count the iterations
they have run in `done`; who completes the extent resets `done` and raises `phase`, which begins the next one. So a
phase waits for claimed parts only, never for a thread that has claimed none: one that was late or is not running.

A claim is a compare-and-swap of the claim word. An older epoch in it means that no part of this phase is claimed. A
newer one, or all parts claimed, sends the thread on. A phase that is over has all its parts claimed: a late thread can
claim nothing of it.

**CPUs.** The system may put two threads on one CPU and leave them there: beside another program that keeps a CPU busy,
for ever, since a thread that waits sleeps and lets its CPU look half idle. A worker that begins a phase on the CPU of
the caller or of a worker before it therefore moves to one that no thread of the pool uses. Its affinity mask stays as
it was, and the caller, a thread of the user's, is never moved.

**Jobs.** A job is a list of steps, whose memory the caller may free when the job is over. A worker therefore sets
`reading` and then compares `go` with the value it came for, before it reads the job or a step; the caller makes `go`
even when the last phase is over, and then waits for all `reading` to be 0. Both are sequentially consistent: either the
worker sees that the job is closed, or the caller sees that it reads. A worker that holds a part needs no such guard,
since the phase cannot end without it.

Functions call no external symbol. `machine_ir` has those that differ from one machine to another.
"""

from __future__ import annotations

from stormdrop.runtime.machine_ir import MACHINES, SYSTEM_CALLS

SEATS_OFFSET, SEAT_BYTES, BLOCK_ALIGN = 640, 128, 128
STEP_WORDS = 6  # of %step
HURRY_OFFSET, THREADS_OFFSET, SPIN_TICKS_OFFSET, SPREAD_OFFSET = 392, 512, 520, 536
PARTS = 8  # at most, into which a thread's share of a phase is cut
LINGER_TICKS = 1500  # before a thread whose share is done claims parts of others: balanced shares end within this


def block_bytes(threads: int) -> int:
    """The size of the control block."""
    return SEATS_OFFSET + SEAT_BYTES * threads + -(-4 * threads // BLOCK_ALIGN) * BLOCK_ALIGN


_PORTABLE = """
%block = type {
  i32, i32, %job, [72 x i8], i32, i32, [120 x i8], i64, [120 x i8], i32, i32, i32, [116 x i8], i64, i64, i64
}
%job = type { ptr, i64, i64, i64, ptr, ptr }  ; steps, their number, float mode, first epoch, marks, account
%entry = type { i64, i64, i64, i64 }  ; of an account
%step = type { ptr, ptr, ptr, i64, ptr, i64 }  ; entry, buffers, scratch, its stride, extents, phases

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

define internal ptr @seat(ptr %block, i64 %t) nounwind {  ; thread %t's claim word
  %seats = getelementptr i8, ptr %block, i64 $SEATS$
  %at = getelementptr [128 x i8], ptr %seats, i64 %t
  ret ptr %at
}

; Claims the next part of the phase %epoch at a claim word; its number, or -1 if all %parts are claimed.
define internal i64 @claim(ptr %word, i64 %epoch, i64 %parts) nounwind {
  %tag = shl i64 %epoch, 16
  %stop = add i64 %tag, %parts
  %first = load atomic i64, ptr %word monotonic, align 8
  br label %try
try:
  %seen = phi i64 [ %first, %0 ], [ %other, %swap ]
  %is.old = icmp ult i64 %seen, %tag
  %from = select i1 %is.old, i64 %tag, i64 %seen
  %left = icmp ult i64 %from, %stop
  br i1 %left, label %swap, label %none
swap:
  %next = add i64 %from, 1
  %r = cmpxchg ptr %word, i64 %seen, i64 %next acq_rel monotonic, align 8
  %other = extractvalue {i64, i1} %r, 0
  %ok = extractvalue {i64, i1} %r, 1
  br i1 %ok, label %mine, label %try
mine:
  %part = sub i64 %from, %tag
  ret i64 %part
none:
  ret i64 -1
}

; Runs parts of thread %owner's share of a phase, %most at most, and returns the number of iterations.
define internal i64 @take(ptr %block, %step %it, ptr %scratch, i64 %p, i64 %extent, i64 %epoch, i64 %owner,
                          i64 %threads, i64 %most) nounwind {
  %owner.next = add i64 %owner, 1
  %a = mul i64 %extent, %owner
  %b = mul i64 %extent, %owner.next
  %rest = sub i64 %threads, 1
  %a.up = add i64 %a, %rest  ; rounded up: an extent of one belongs to the caller
  %b.up = add i64 %b, %rest
  %begin = udiv i64 %a.up, %threads
  %end = udiv i64 %b.up, %threads
  %length = sub i64 %end, %begin
  %padded = add i64 %length, $PARTS.1$
  %size = udiv i64 %padded, $PARTS$
  %empty = icmp eq i64 %length, 0
  br i1 %empty, label %nothing, label %some
nothing:
  ret i64 0
some:
  %up = add i64 %length, %size
  %up.1 = sub i64 %up, 1
  %parts = udiv i64 %up.1, %size
  %word = call ptr @seat(ptr %block, i64 %owner)
  %entry = extractvalue %step %it, 0
  %buffers = extractvalue %step %it, 1
  br label %next
next:
  %n = phi i64 [ 0, %some ], [ %n.next, %run ]
  %done = phi i64 [ 0, %some ], [ %done.next, %run ]
  %enough = icmp uge i64 %n, %most
  br i1 %enough, label %out, label %ask
ask:
  %part = call i64 @claim(ptr %word, i64 %epoch, i64 %parts)
  %over = icmp slt i64 %part, 0
  br i1 %over, label %out, label %run
run:
  %offset = mul i64 %part, %size
  %low = add i64 %begin, %offset
  %high.up = add i64 %low, %size
  %cut = icmp ult i64 %high.up, %end
  %high = select i1 %cut, i64 %high.up, i64 %end
  call void %entry(ptr %buffers, ptr %scratch, i64 %p, i64 %low, i64 %high)
  %count = sub i64 %high, %low
  %done.next = add i64 %done, %count
  %n.next = add i64 %n, 1
  br label %next
out:
  ret i64 %done
}

define internal i64 @cpu_time() nounwind {  ; nanoseconds that this thread has been on a CPU
  %time = alloca [2 x i64], align 8
  %address = ptrtoint ptr %time to i64
  %r = call i64 @system(i64 $CLOCK_GETTIME$, i64 3, i64 %address, i64 0)
  %seconds = load i64, ptr %time, align 8
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at, align 8
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %rest
  ret i64 %all
}

; As @take, and enters in the account what it took, unless that is null.
define internal i64 @charge(ptr %block, %step %it, ptr %scratch, i64 %p, i64 %extent, i64 %epoch, i64 %owner,
                            i64 %threads, i64 %most, ptr %entry) nounwind {
  %unaccounted = icmp eq ptr %entry, null
  br i1 %unaccounted, label %plain, label %timed
plain:
  %count = call i64 @take(ptr %block, %step %it, ptr %scratch, i64 %p, i64 %extent, i64 %epoch, i64 %owner,
                          i64 %threads, i64 %most)
  ret i64 %count
timed:
  %cpu.0 = call i64 @cpu_time()
  %time.0 = call i64 @ticks()
  %done = call i64 @take(ptr %block, %step %it, ptr %scratch, i64 %p, i64 %extent, i64 %epoch, i64 %owner,
                         i64 %threads, i64 %most)
  %time.1 = call i64 @ticks()
  %cpu.1 = call i64 @cpu_time()
  %none = icmp eq i64 %done, 0
  br i1 %none, label %out, label %enter
enter:
  %old = load %entry, ptr %entry, align 8
  %begin = extractvalue %entry %old, 0
  %busy = extractvalue %entry %old, 2
  %cpu = extractvalue %entry %old, 3
  %is.first = icmp eq i64 %begin, 0
  %begin.new = select i1 %is.first, i64 %time.0, i64 %begin
  %lasted = sub i64 %time.1, %time.0
  %on = sub i64 %cpu.1, %cpu.0
  %busy.new = add i64 %busy, %lasted
  %cpu.new = add i64 %cpu, %on
  %e0 = insertvalue %entry zeroinitializer, i64 %begin.new, 0
  %e1 = insertvalue %entry %e0, i64 %time.1, 1
  %e2 = insertvalue %entry %e1, i64 %busy.new, 2
  %e3 = insertvalue %entry %e2, i64 %cpu.new, 3
  store %entry %e3, ptr %entry, align 8
  br label %out
out:
  ret i64 %done
}

define internal void @mark(ptr %mark) nounwind {  ; the time, unless it is not wanted
  %unwanted = icmp eq ptr %mark, null
  br i1 %unwanted, label %done, label %write
write:
  %now = call i64 @ticks()
  store i64 %now, ptr %mark, align 8
  br label %done
done:
  ret void
}

; Counts iterations of the current phase as done; whether they were the last, in which case the next phase has begun.
define internal i1 @finish(ptr %block, i64 %count, i64 %extent, ptr %mark) nounwind {
  %done.at = getelementptr %block, ptr %block, i64 0, i32 7
  %before = atomicrmw add ptr %done.at, i64 %count acq_rel, align 8
  %done = add i64 %before, %count
  %all = icmp eq i64 %done, %extent
  br i1 %all, label %release, label %early
release:
  store atomic i64 0, ptr %done.at monotonic, align 8
  call void @mark(ptr %mark)
  %phase.at = getelementptr %block, ptr %block, i64 0, i32 4
  call void @raise(ptr %phase.at)
  ret i1 true
early:
  ret i1 false
}

; Thread %t's work on a phase: its own share, then what others have left. Returns whether the phase is over.
define internal i1 @work(ptr %block, %step %it, i64 %p, i64 %extent, i64 %epoch, i64 %t, i64 %threads,
                         ptr %mark, ptr %entry) nounwind {
  %base = extractvalue %step %it, 2
  %stride = extractvalue %step %it, 3
  %offset = mul i64 %stride, %t
  %scratch = getelementptr i8, ptr %base, i64 %offset
  %phase.at = getelementptr %block, ptr %block, i64 0, i32 4
  %phase = trunc i64 %epoch to i32
  %own = call i64 @charge(ptr %block, %step %it, ptr %scratch, i64 %p, i64 %extent, i64 %epoch, i64 %t, i64 %threads,
                          i64 -1, ptr %entry)
  %none = icmp eq i64 %own, 0
  br i1 %none, label %linger, label %count
count:
  %over = call i1 @finish(ptr %block, i64 %own, i64 %extent, ptr %mark)
  br i1 %over, label %yes, label %linger
linger:
  %soon = call i1 @spin(ptr %phase.at, i32 %phase, i64 $LINGER$)
  br i1 %soon, label %yes, label %look
look:
  %d = phi i64 [ 1, %linger ], [ %d.next, %empty ], [ %d, %helped ]
  %more = icmp ult i64 %d, %threads
  br i1 %more, label %victim, label %no
victim:
  %sum = add i64 %t, %d
  %v = urem i64 %sum, %threads
  %got = call i64 @charge(ptr %block, %step %it, ptr %scratch, i64 %p, i64 %extent, i64 %epoch, i64 %v, i64 %threads,
                          i64 1, ptr %entry)
  %nil = icmp eq i64 %got, 0
  br i1 %nil, label %empty, label %helped
empty:
  %d.next = add i64 %d, 1
  br label %look
helped:
  %last = call i1 @finish(ptr %block, i64 %got, i64 %extent, ptr %mark)
  br i1 %last, label %yes, label %look
yes:
  ret i1 true
no:
  ret i1 false
}

; Moves the calling thread to a CPU on which no thread of the pool was seen, if it may use one.
define internal void @hop(ptr %cpus, i64 %threads) nounwind {
  %mask = alloca [16 x i64], align 8
  %free = alloca [16 x i64], align 8
  %mask.address = ptrtoint ptr %mask to i64
  %free.address = ptrtoint ptr %free to i64
  store [16 x i64] zeroinitializer, ptr %mask, align 8
  %size = call i64 @system(i64 $GET_AFFINITY$, i64 0, i64 128, i64 %mask.address)
  %failed = icmp sle i64 %size, 0
  br i1 %failed, label %done, label %copy
copy:
  %all = load [16 x i64], ptr %mask, align 8
  store [16 x i64] %all, ptr %free, align 8
  br label %seen
seen:
  %s = phi i64 [ 0, %copy ], [ %s.next, %seen ]
  %s.at = getelementptr i32, ptr %cpus, i64 %s
  %number = load atomic i32, ptr %s.at monotonic, align 4
  %less = sub i32 %number, 1
  %cpu = and i32 %less, 1023
  %word = lshr i32 %cpu, 6
  %word.at = getelementptr i64, ptr %free, i32 %word
  %place = and i32 %cpu, 63
  %place.64 = zext i32 %place to i64
  %bit = shl i64 1, %place.64
  %others = xor i64 %bit, -1
  %old = load i64, ptr %word.at, align 8
  %new = and i64 %old, %others
  store i64 %new, ptr %word.at, align 8
  %s.next = add i64 %s, 1
  %more = icmp ult i64 %s.next, %threads
  br i1 %more, label %seen, label %check
check:
  %w = phi i64 [ 0, %seen ], [ %w.next, %check ]
  %any = phi i64 [ 0, %seen ], [ %any.next, %check ]
  %w.at = getelementptr i64, ptr %free, i64 %w
  %bits = load i64, ptr %w.at, align 8
  %any.next = or i64 %any, %bits
  %w.next = add i64 %w, 1
  %left = icmp ult i64 %w.next, 16
  br i1 %left, label %check, label %judge
judge:
  %none = icmp eq i64 %any.next, 0
  br i1 %none, label %done, label %move
move:
  %there = call i64 @system(i64 $SET_AFFINITY$, i64 0, i64 128, i64 %free.address)
  %again = call i64 @system(i64 $SET_AFFINITY$, i64 0, i64 128, i64 %mask.address)
  br label %done
done:
  ret void
}

; Notes the CPU of thread %t. A worker that shares the CPU of a thread before it moves to another one.
define internal void @spread(ptr %block, i64 %t, i64 %threads) nounwind {
  %cpus = call ptr @seat(ptr %block, i64 %threads)  ; they follow the seats
  %own.at = getelementptr i32, ptr %cpus, i64 %t
  %cpu = call i32 @cpu()
  %own = load atomic i32, ptr %own.at monotonic, align 4
  %callers = load atomic i32, ptr %cpus monotonic, align 4
  %stayed = icmp eq i32 %own, %cpu
  %apart = icmp ne i32 %callers, %cpu
  %is.caller = icmp eq i64 %t, 0
  %fine = or i1 %apart, %is.caller
  %same = and i1 %stayed, %fine
  br i1 %same, label %done, label %note
note:
  store atomic i32 %cpu, ptr %own.at monotonic, align 4
  br label %look
look:
  %s = phi i64 [ 0, %note ], [ %s.next, %other ]
  %more = icmp ult i64 %s, %t
  br i1 %more, label %other, label %done
other:
  %s.at = getelementptr i32, ptr %cpus, i64 %s
  %there = load atomic i32, ptr %s.at monotonic, align 4
  %s.next = add i64 %s, 1
  %shared = icmp eq i32 %there, %cpu
  br i1 %shared, label %move, label %look
move:
  call void @hop(ptr %cpus, i64 %threads)
  %now = call i32 @cpu()
  store atomic i32 %now, ptr %own.at monotonic, align 4
  br label %done
done:
  ret void
}

; Runs thread %t through the phases of a list of steps. A worker leaves when `go` is no longer %go. Who ends
; step k writes the ticks to %marks[k + 1] unless that is null.
define internal void @share(ptr %block, ptr %steps, i64 %count, i64 %first, i32 %go, i64 %t, i64 %threads, i64 %limit,
                            ptr %marks, ptr %account) nounwind {
  %unaccounted = icmp eq ptr %account, null
  %before = mul i64 %t, %count
  %own = getelementptr %entry, ptr %account, i64 %before
  %wanted = icmp ne ptr %marks, null
  %caller = icmp eq i64 %t, 0
  %phase.at = getelementptr %block, ptr %block, i64 0, i32 4
  %seat = call ptr @seat(ptr %block, i64 %t)
  %reading = getelementptr i8, ptr %seat, i64 8
  br label %head
head:
  %k = phi i64 [ 0, %0 ], [ %k.next, %ended ]
  %e = phi i64 [ %first, %0 ], [ %e.2, %ended ]
  %left = icmp slt i64 %k, %count
  br i1 %left, label %turn, label %done
turn:
  %p = phi i64 [ 0, %head ], [ %p.next, %passed ]
  %e.2 = phi i64 [ %e, %head ], [ %e.next, %passed ]
  %k.next = add i64 %k, 1
  br i1 %caller, label %read, label %guard
guard:
  %x = atomicrmw xchg ptr %reading, i32 1 seq_cst, align 4
  %go.now = load atomic i32, ptr %block seq_cst, align 4
  %same = icmp eq i32 %go.now, %go
  br i1 %same, label %read, label %away
away:
  store atomic i32 0, ptr %reading release, align 4
  ret void
read:
  %step.at = getelementptr %step, ptr %steps, i64 %k
  %it = load %step, ptr %step.at, align 8
  %phases = extractvalue %step %it, 5
  %more = icmp slt i64 %p, %phases
  %extents = extractvalue %step %it, 4
  %q = select i1 %more, i64 %p, i64 0
  %extent.at = getelementptr i64, ptr %extents, i64 %q
  br i1 %more, label %extent.read, label %no.extent
extent.read:
  %extent = load i64, ptr %extent.at, align 8
  br i1 %caller, label %visit, label %unguard
unguard:
  store atomic i32 0, ptr %reading release, align 4
  br label %visit
no.extent:
  br i1 %caller, label %empty, label %unguard.2
empty:
  %no.phase = icmp eq i64 %phases, 0
  %empty.marked = and i1 %no.phase, %wanted
  %empty.at = getelementptr i64, ptr %marks, i64 %k.next
  %empty.mark = select i1 %empty.marked, ptr %empty.at, ptr null
  call void @mark(ptr %empty.mark)
  br label %ended
unguard.2:
  store atomic i32 0, ptr %reading release, align 4
  br label %ended
visit:
  %p.next = add i64 %p, 1
  %e.next = add i64 %e.2, 1
  %phase = trunc i64 %e.2 to i32
  %now = load atomic i32, ptr %phase.at acquire, align 4
  %current = icmp eq i32 %now, %phase
  br i1 %current, label %do, label %passed
do:
  %is.last = icmp eq i64 %p.next, %phases
  %marked = and i1 %is.last, %wanted
  %mark.at = getelementptr i64, ptr %marks, i64 %k.next
  %mark = select i1 %marked, ptr %mark.at, ptr null
  %nothing = icmp eq i64 %extent, 0
  br i1 %nothing, label %skip, label %some
skip:
  br i1 %caller, label %skipped, label %wait
skipped:
  call void @mark(ptr %mark)
  call void @raise(ptr %phase.at)
  br label %passed
some:
  %spread.at = getelementptr i8, ptr %block, i64 $SPREAD$
  %spread = load i64, ptr %spread.at, align 8
  %alone = icmp eq i64 %spread, 0
  br i1 %alone, label %at.work, label %apart
apart:
  call void @spread(ptr %block, i64 %t, i64 %threads)
  br label %at.work
at.work:
  %entry.at = getelementptr %entry, ptr %own, i64 %k
  %entry = select i1 %unaccounted, ptr null, ptr %entry.at
  %over = call i1 @work(ptr %block, %step %it, i64 %p, i64 %extent, i64 %e.2, i64 %t, i64 %threads, ptr %mark,
                        ptr %entry)
  br i1 %over, label %passed, label %wait
wait:
  %final.step = icmp eq i64 %k.next, %count
  %final.phase = icmp eq i64 %p.next, %phases
  %final = and i1 %final.step, %final.phase
  %worker = xor i1 %caller, true
  %leave = and i1 %final, %worker
  br i1 %leave, label %done, label %stay
stay:
  %v = call i32 @await(ptr %phase.at, i32 %phase, i64 %limit)
  br label %passed
passed:
  br label %turn
ended:
  br label %head
done:
  %e.end = phi i64 [ %e, %head ], [ %e.next, %wait ]
  br i1 %caller, label %keep, label %out
keep:
  %epoch.at = getelementptr %block, ptr %block, i64 0, i32 15
  store i64 %e.end, ptr %epoch.at, align 8
  br label %out
out:
  ret void
}

; All phases of all steps by the caller alone.
define internal void @alone(ptr %steps, i64 %count, ptr %marks) nounwind {
  %unmarked = icmp eq ptr %marks, null
  br label %head
head:
  %k = phi i64 [ 0, %0 ], [ %k.next, %ended ], [ %k.next, %mark ]
  %left = icmp slt i64 %k, %count
  br i1 %left, label %step, label %done
step:
  %k.next = add i64 %k, 1
  %step.at = getelementptr %step, ptr %steps, i64 %k
  %it = load %step, ptr %step.at, align 8
  %entry = extractvalue %step %it, 0
  %buffers = extractvalue %step %it, 1
  %scratch = extractvalue %step %it, 2
  %extents = extractvalue %step %it, 4
  %phases = extractvalue %step %it, 5
  br label %turn
turn:
  %p = phi i64 [ 0, %step ], [ %p.next, %phase ], [ %p.next, %call ]
  %more = icmp slt i64 %p, %phases
  br i1 %more, label %phase, label %ended
phase:
  %extent.at = getelementptr i64, ptr %extents, i64 %p
  %extent = load i64, ptr %extent.at, align 8
  %p.next = add i64 %p, 1
  %some = icmp ne i64 %extent, 0
  br i1 %some, label %call, label %turn
call:
  call void %entry(ptr %buffers, ptr %scratch, i64 %p, i64 0, i64 %extent)
  br label %turn
ended:
  br i1 %unmarked, label %head, label %mark
mark:
  %time = call i64 @ticks()
  %mark.at = getelementptr i64, ptr %marks, i64 %k.next
  store i64 %time, ptr %mark.at, align 8
  br label %head
done:
  ret void
}

define void @worker(ptr %block, i64 %t) nounwind {  ; the life of thread %t > 0, until `stop`
  %stop.at = getelementptr %block, ptr %block, i64 0, i32 10
  %threads.at = getelementptr %block, ptr %block, i64 0, i32 13
  %threads = load i64, ptr %threads.at, align 8
  %limit.at = getelementptr %block, ptr %block, i64 0, i32 14
  %limit = load i64, ptr %limit.at, align 8
  %job.at = getelementptr %block, ptr %block, i64 0, i32 2
  %seat = call ptr @seat(ptr %block, i64 %t)
  %reading = getelementptr i8, ptr %seat, i64 8
  br label %idle
idle:
  %seen = phi i32 [ 0, %0 ], [ %go, %awake ], [ %seen, %missed ], [ %go, %begin ], [ %go, %restore ]
  %go = call i32 @await(ptr %block, i32 %seen, i64 %limit)
  %stop = load atomic i32, ptr %stop.at monotonic, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %leave, label %awake
awake:
  %odd = trunc i32 %go to i1
  br i1 %odd, label %guard, label %idle
guard:
  %x = atomicrmw xchg ptr %reading, i32 1 seq_cst, align 4
  %go.now = load atomic i32, ptr %block seq_cst, align 4
  %same = icmp eq i32 %go.now, %go
  br i1 %same, label %open, label %missed
missed:
  store atomic i32 0, ptr %reading release, align 4
  br label %idle
open:
  %job = load %job, ptr %job.at, align 8
  store atomic i32 0, ptr %reading release, align 4
  %steps = extractvalue %job %job, 0
  %count = extractvalue %job %job, 1
  %mode = extractvalue %job %job, 2
  %first = extractvalue %job %job, 3
  %marks = extractvalue %job %job, 4
  %account = extractvalue %job %job, 5
  %own = call i64 @float_mode()
  %alike = icmp eq i64 %mode, %own
  br i1 %alike, label %begin, label %adopt
adopt:
  call void @set_float_mode(i64 %mode)
  br label %begin
begin:
  call void @share(ptr %block, ptr %steps, i64 %count, i64 %first, i32 %go, i64 %t, i64 %threads, i64 %limit,
                   ptr %marks, ptr %account)
  br i1 %alike, label %idle, label %restore
restore:
  call void @set_float_mode(i64 %own)
  br label %idle
leave:
  ret void
}

; One job, by the thread that holds the mutex.
define internal void @once(ptr %block, ptr %steps, i64 %count, ptr %marks, ptr %account) nounwind {
  %is.alone = icmp eq ptr %block, null
  br i1 %is.alone, label %serial, label %parallel
serial:
  call void @alone(ptr %steps, i64 %count, ptr %marks)
  ret void
parallel:
  %threads.at = getelementptr %block, ptr %block, i64 0, i32 13
  %threads = load i64, ptr %threads.at, align 8
  %limit.at = getelementptr %block, ptr %block, i64 0, i32 14
  %limit = load i64, ptr %limit.at, align 8
  %epoch.at = getelementptr %block, ptr %block, i64 0, i32 15
  %epoch = load i64, ptr %epoch.at, align 8
  %job.at = getelementptr %block, ptr %block, i64 0, i32 2
  %mode = call i64 @float_mode()
  %j0 = insertvalue %job zeroinitializer, ptr %steps, 0
  %j1 = insertvalue %job %j0, i64 %count, 1
  %j2 = insertvalue %job %j1, i64 %mode, 2
  %j3 = insertvalue %job %j2, i64 %epoch, 3
  %j4 = insertvalue %job %j3, ptr %marks, 4
  %j5 = insertvalue %job %j4, ptr %account, 5
  store %job %j5, ptr %job.at, align 8
  call void @raise(ptr %block)
  %go = load atomic i32, ptr %block monotonic, align 4
  call void @share(ptr %block, ptr %steps, i64 %count, i64 %epoch, i32 %go, i64 0, i64 %threads, i64 %limit, ptr %marks,
                   ptr %account)
  %closed = add i32 %go, 1
  store atomic i32 %closed, ptr %block seq_cst, align 4
  br label %each
each:
  %t = phi i64 [ 1, %parallel ], [ %t.next, %gone ]
  %more = icmp ult i64 %t, %threads
  br i1 %more, label %look, label %out
look:
  %seat = call ptr @seat(ptr %block, i64 %t)
  %reading.at = getelementptr i8, ptr %seat, i64 8
  %reading = load atomic i32, ptr %reading.at seq_cst, align 4
  %busy = icmp ne i32 %reading, 0
  br i1 %busy, label %hold, label %gone
hold:
  call void @pause()
  br label %look
gone:
  %t.next = add i64 %t, 1
  br label %each
out:
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
  %r = cmpxchg ptr %mutex, i32 0, i32 1 acquire monotonic, align 4
  %ok = extractvalue {i32, i1} %r, 1
  br i1 %ok, label %held, label %contend
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

; Runs the job %repeats times and returns how often it did: none after `stop`, fewer than asked if told to hurry. Unless
; %times is null, each run fills a row of it: the ticks at the run's beginning and end, and with %each, between them, at
; the end of every step but the last. Unless %account is null, each run fills entries of it by thread and step: the
; ticks when the thread began its first part and ended its last, the ticks that it spent in parts, and the nanoseconds
; of these that it was on a CPU. All stay 0 where it ran none.
define i64 @bench(ptr %block, ptr %steps, i64 %count, i64 %repeats, ptr %times, i32 %each, ptr %account) nounwind {
  %unaccounted = icmp eq ptr %account, null
  %many = icmp ne i32 %each, 0
  %ends = select i1 %many, i64 %count, i64 1
  %width = add i64 %ends, 1
  %alone = icmp eq ptr %block, null
  %untimed = icmp eq ptr %times, null
  %stop.at = getelementptr %block, ptr %block, i64 0, i32 10
  %hurry.at = getelementptr %block, ptr %block, i64 0, i32 11
  br i1 %alone, label %head, label %enter
enter:
  call void @lock(ptr %block)
  %threads.at = getelementptr %block, ptr %block, i64 0, i32 13
  %threads = load i64, ptr %threads.at, align 8
  %entries.all = mul i64 %threads, %count
  br label %head
head:
  %entries.run = phi i64 [ 0, %0 ], [ %entries.all, %enter ], [ %entries.run, %plain ], [ %entries.run, %timed ]
  %i = phi i64 [ 0, %0 ], [ 0, %enter ], [ %i.next, %plain ], [ %i.next, %timed ]
  %more = icmp slt i64 %i, %repeats
  br i1 %more, label %check, label %end
check:
  br i1 %alone, label %go, label %flags
flags:
  %stop = load atomic i32, ptr %stop.at monotonic, align 4
  %hurry = load atomic i32, ptr %hurry.at monotonic, align 4
  %first = icmp eq i64 %i, 0
  %hurried = select i1 %first, i32 0, i32 %hurry
  %either = or i32 %stop, %hurried
  %quit = icmp ne i32 %either, 0
  br i1 %quit, label %end, label %go
go:
  %i.next = add i64 %i, 1
  br i1 %untimed, label %plain, label %timed
plain:
  call void @once(ptr %block, ptr %steps, i64 %count, ptr null, ptr null)
  br label %head
timed:
  %place = mul i64 %i, %width
  %row = getelementptr i64, ptr %times, i64 %place
  %marks = select i1 %many, ptr %row, ptr null
  %before.run = mul i64 %i, %entries.run
  %entries.at = getelementptr %entry, ptr %account, i64 %before.run
  %entries = select i1 %unaccounted, ptr null, ptr %entries.at
  %end.at = getelementptr i64, ptr %row, i64 %ends
  %before = call i64 @ticks()
  store i64 %before, ptr %row, align 8
  call void @once(ptr %block, ptr %steps, i64 %count, ptr %marks, ptr %entries)
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

define i64 @run(ptr %block, ptr %steps, i64 %count) nounwind {  ; once; each argument costs Python 0.1 µs
  %r = call i64 @bench(ptr %block, ptr %steps, i64 %count, i64 1, ptr null, i32 0, ptr null)
  ret i64 %r
}
"""


def pool_ir(machine: str) -> str:
    """The native half's text for one of `MACHINES`."""
    numbers = {"SEATS": SEATS_OFFSET, "PARTS": PARTS, "PARTS.1": PARTS - 1, "LINGER": LINGER_TICKS}
    numbers |= {"SPREAD": SPREAD_OFFSET, **SYSTEM_CALLS[machine]}
    text = MACHINES[machine] + _PORTABLE
    for name, value in numbers.items():
        text = text.replace(f"${name}$", str(value))
    return text
