"""The rescue of a thread that was preempted in the middle of its work, by the thread pool, as LLVM IR text.

If another program preempts a thread that has claimed a part of a group, all other threads wait for that part and fall
asleep. The scheduler is slow to move the preempted thread to an idle CPU, since its caches are warm on the old CPU.

So a thread that has waited for most of its spinning time reads the CPU-time clocks of the threads that hold work. A
thread whose clock stands still is not running: it is moved to the CPU of the waiting thread, which is about to sleep.
Affinity masks are the same afterwards.

`pool_ir` explains the protocol and has the layout of the control block. It also replaces the names between dollar
signs, which stand for offsets in the block and numbers of system calls.
"""

RESCUE = """
; Stores the calling thread's Linux thread id in the seat of thread %t, if the pool may move threads (`spread`).
define internal void @sign(ptr %block, i64 %t) nounwind {
  %spread.at = getelementptr i8, ptr %block, i64 $SPREAD$
  %spread = load i64, ptr %spread.at, align 8
  %stays = icmp eq i64 %spread, 0
  br i1 %stays, label %done, label %note
note:
  %number = call i64 @system(i64 $GETTID$, i64 0, i64 0, i64 0)
  %tid = trunc i64 %number to i32
  %seat = call ptr @seat(ptr %block, i64 %t)
  %tid.at = getelementptr i8, ptr %seat, i64 12
  store atomic i32 %tid, ptr %tid.at monotonic, align 4
  br label %done
done:
  ret void
}

; Moves a thread (0: the calling one) to a CPU, if its affinity mask allows that: narrows the mask to that CPU, which
; makes Linux migrate the thread, and restores the mask.
define internal void @bring(i64 %tid, i64 %cpu) nounwind {
  %mask = alloca [16 x i64], align 8
  %one = alloca [16 x i64], align 8
  %mask.address = ptrtoint ptr %mask to i64
  %one.address = ptrtoint ptr %one to i64
  store [16 x i64] zeroinitializer, ptr %mask, align 8
  store [16 x i64] zeroinitializer, ptr %one, align 8
  %beyond = icmp ugt i64 %cpu, 1023
  br i1 %beyond, label %done, label %ask
ask:
  %size = call i64 @system(i64 $GET_AFFINITY$, i64 %tid, i64 128, i64 %mask.address)
  %failed = icmp sle i64 %size, 0
  br i1 %failed, label %done, label %check
check:
  %word = lshr i64 %cpu, 6
  %place = and i64 %cpu, 63
  %bit = shl i64 1, %place
  %mask.at = getelementptr i64, ptr %mask, i64 %word
  %one.at = getelementptr i64, ptr %one, i64 %word
  %bits = load i64, ptr %mask.at, align 8
  %allowed = and i64 %bits, %bit
  %forbidden = icmp eq i64 %allowed, 0
  br i1 %forbidden, label %done, label %move
move:
  store i64 %bit, ptr %one.at, align 8
  %there = call i64 @system(i64 $SET_AFFINITY$, i64 %tid, i64 128, i64 %one.address)
  %again = call i64 @system(i64 $SET_AFFINITY$, i64 %tid, i64 128, i64 %mask.address)
  br label %done
done:
  ret void
}

; Moves the caller of a job to its CPU, `home`, if it has one and is on another.
define internal void @settle(ptr %block) nounwind {
  %home.at = getelementptr i8, ptr %block, i64 $HOME$
  %home = load i64, ptr %home.at, align 8
  %anywhere = icmp eq i64 %home, 0
  br i1 %anywhere, label %done, label %look
look:
  %here = call i32 @cpu()
  %unknown = icmp eq i32 %here, 0
  %here.64 = zext i32 %here to i64
  %is.home = icmp eq i64 %here.64, %home
  %stays = or i1 %unknown, %is.home
  br i1 %stays, label %done, label %go
go:
  %cpu = sub i64 %home, 1
  call void @bring(i64 0, i64 %cpu)
  br label %done
done:
  ret void
}

; What waiting thread %t does before it sleeps. Spins for three quarters of %limit ticks. Then watches the CPU time of
; each other thread at work, one by one, for a quarter of %limit each. Moves the first whose CPU time stands still to
; this CPU. Stops when %word changes from %seen. Returns the ticks to go on spinning: %limit if the pool may not move
; threads; 0 after a move, which leaves this CPU to the moved thread; else a quarter of %limit.
define internal i64 @rescue(ptr %block, ptr %word, i32 %seen, i64 %t, i64 %threads, i64 %limit) nounwind {
  %spread.at = getelementptr i8, ptr %block, i64 $SPREAD$
  %spread = load i64, ptr %spread.at, align 8
  %stay = icmp eq i64 %spread, 0
  br i1 %stay, label %all, label %wait
all:
  ret i64 %limit
wait:
  %quarter = lshr i64 %limit, 2
  %first = sub i64 %limit, %quarter
  %soon = call i1 @spin(ptr %word, i32 %seen, i64 %first)
  br i1 %soon, label %rest, label %each
each:
  %d = phi i64 [ 1, %wait ], [ %d.next, %next ]
  %more = icmp ult i64 %d, %threads
  br i1 %more, label %other, label %rest
other:
  %d.next = add i64 %d, 1
  %sum = add i64 %t, %d
  %v = urem i64 %sum, %threads
  %seat = call ptr @seat(ptr %block, i64 %v)
  %working.at = getelementptr i8, ptr %seat, i64 16
  %working = load atomic i32, ptr %working.at monotonic, align 4
  %tid.at = getelementptr i8, ptr %seat, i64 12
  %tid = load atomic i32, ptr %tid.at monotonic, align 4
  %is.idle = icmp eq i32 %working, 0
  %is.unknown = icmp eq i32 %tid, 0
  %skipped = or i1 %is.idle, %is.unknown
  br i1 %skipped, label %next, label %watch
watch:
  %inverse = xor i32 %tid, -1  ; (~tid << 3) | 6: the clock id of a thread's CPU time in Linux
  %shifted = shl i32 %inverse, 3
  %clock.32 = or i32 %shifted, 6
  %clock = sext i32 %clock.32 to i64
  %before = call i64 @cpu_time_by(i64 %clock)
  %over = call i1 @spin(ptr %word, i32 %seen, i64 %quarter)
  br i1 %over, label %rest, label %look
look:
  %after = call i64 @cpu_time_by(i64 %clock)
  %stands = icmp eq i64 %before, %after
  %here = call i32 @cpu()
  %known = icmp ne i32 %here, 0
  %pull = and i1 %stands, %known
  br i1 %pull, label %claim, label %next
claim:
  %pulled.at = getelementptr i8, ptr %seat, i64 20  ; of several waiting threads, one moves it, once in a group
  %pulled = atomicrmw xchg ptr %pulled.at, i32 %seen monotonic, align 4
  %late = icmp eq i32 %pulled, %seen
  br i1 %late, label %next, label %move
move:
  %number = sext i32 %tid to i64
  %less = sub i32 %here, 1
  %cpu = zext i32 %less to i64
  call void @bring(i64 %number, i64 %cpu)
  ret i64 0
next:
  br label %each
rest:
  ret i64 %quarter
}
"""
