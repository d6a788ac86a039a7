"""The thread pool's jobs as LLVM IR text: the way of a thread through the steps, workers, opening and closing a job,
and the timing loop.

`pool_ir` explains the protocol and has the control block.
"""

JOBS = """
; Whether the job that was opened with %go is still open. Then the caller of the job waits until %reading is 0 again.
define internal i1 @enter(ptr %block, ptr %reading, i32 %go) nounwind {
  %x = atomicrmw xchg ptr %reading, i32 1 seq_cst, align 4
  %now = load atomic i32, ptr %block seq_cst, align 4
  %is.open = icmp eq i32 %now, %go
  br i1 %is.open, label %yes, label %no
yes:
  ret i1 true
no:
  store atomic i32 0, ptr %reading release, align 4
  ret i1 false
}

; Runs thread %t through the groups of a list of steps. A worker leaves when `go` is no longer %go. Who ends
; the group before step k writes the ticks to %marks[k] unless that is null.
define internal void @share(ptr %block, ptr %steps, i64 %count, i64 %first, i32 %go, i64 %t, i64 %threads, i64 %limit,
                            ptr %marks, ptr %account) nounwind {
  %unaccounted = icmp eq ptr %account, null
  %before = mul i64 %t, %count
  %own = getelementptr %entry, ptr %account, i64 %before
  %unmarked = icmp eq ptr %marks, null
  %caller = icmp eq i64 %t, 0
  %phase.at = getelementptr %block, ptr %block, i64 0, i32 4
  %seat = call ptr @seat(ptr %block, i64 %t)
  %reading = getelementptr i8, ptr %seat, i64 8
  %working = getelementptr i8, ptr %seat, i64 16
  br label %head
head:
  %k = phi i64 [ 0, %0 ], [ %k.next, %passed ]
  %e = phi i64 [ %first, %0 ], [ %e.next, %passed ]
  %left = icmp slt i64 %k, %count
  br i1 %left, label %turn, label %done
turn:
  %step = getelementptr %step, ptr %steps, i64 %k
  br i1 %caller, label %read, label %guard
guard:
  %is.open = call i1 @enter(ptr %block, ptr %reading, i32 %go)
  br i1 %is.open, label %read, label %out
read:
  %size.at = getelementptr %step, ptr %step, i64 0, i32 7
  %size = load i64, ptr %size.at, align 8
  %extent.at = getelementptr %step, ptr %step, i64 0, i32 6
  %extent = load i64, ptr %extent.at, align 8
  br i1 %caller, label %visit, label %unguard
unguard:
  store atomic i32 0, ptr %reading release, align 4
  br label %visit
visit:
  %k.next = add i64 %k, %size
  %e.next = add i64 %e, 1
  %phase = trunc i64 %e to i32
  %now = load atomic i32, ptr %phase.at acquire, align 4
  %current = icmp eq i32 %now, %phase
  br i1 %current, label %do, label %passed
do:
  %spread.at = getelementptr i8, ptr %block, i64 $SPREAD$
  %spread = load i64, ptr %spread.at, align 8
  %alone = icmp eq i64 %spread, 0
  br i1 %alone, label %at.work, label %apart
apart:
  call void @spread(ptr %block, i64 %t, i64 %threads)
  br label %at.work
at.work:
  %mark.at = getelementptr i64, ptr %marks, i64 %k.next
  %mark = select i1 %unmarked, ptr null, ptr %mark.at
  %entries.at = getelementptr %entry, ptr %own, i64 %k
  %entries = select i1 %unaccounted, ptr null, ptr %entries.at
  store atomic i32 1, ptr %working monotonic, align 4
  %over = call i1 @work(ptr %block, ptr %step, i64 %extent, i64 %e, i64 %t, i64 %threads, ptr %mark, ptr %entries)
  store atomic i32 0, ptr %working monotonic, align 4
  br i1 %over, label %passed, label %wait
wait:
  %final = icmp eq i64 %k.next, %count
  %worker = xor i1 %caller, true
  %leave = and i1 %final, %worker
  br i1 %leave, label %out, label %stay
stay:
  %rest = call i64 @rescue(ptr %block, ptr %phase.at, i32 %phase, i64 %t, i64 %threads, i64 %limit)
  %v = call i32 @await(ptr %phase.at, i32 %phase, i64 %rest)
  br label %passed
passed:
  br label %head
done:
  br i1 %caller, label %keep, label %out
keep:
  %epoch.at = getelementptr %block, ptr %block, i64 0, i32 15
  store i64 %e, ptr %epoch.at, align 8
  br label %out
out:
  ret void
}

; All steps by the caller alone.
define internal void @alone(ptr %steps, i64 %count, ptr %marks, ptr %account) nounwind {
  %unmarked = icmp eq ptr %marks, null
  %unaccounted = icmp eq ptr %account, null
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
  %p = extractvalue %step %it, 4
  %extent = extractvalue %step %it, 5
  br i1 %unaccounted, label %plain, label %timed
plain:
  call void %entry(ptr %buffers, ptr %scratch, i64 %p, i64 0, i64 %extent)
  br label %ended
timed:
  %cpu.0 = call i64 @cpu_time()
  %time.0 = call i64 @ticks()
  call void %entry(ptr %buffers, ptr %scratch, i64 %p, i64 0, i64 %extent)
  %time.1 = call i64 @ticks()
  %cpu.1 = call i64 @cpu_time()
  %lasted = sub i64 %time.1, %time.0
  %on = sub i64 %cpu.1, %cpu.0
  %e0 = insertvalue %entry zeroinitializer, i64 %time.0, 0
  %e1 = insertvalue %entry %e0, i64 %lasted, 1
  %e2 = insertvalue %entry %e1, i64 %on, 2
  %entry.at = getelementptr %entry, ptr %account, i64 %k
  store %entry %e2, ptr %entry.at, align 8
  br label %ended
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
  call void @sign(ptr %block, i64 %t)
  br label %idle
idle:
  %seen = phi i32 [ 0, %0 ], [ %go, %awake ], [ %seen, %guard ], [ %go, %begin ], [ %go, %restore ]
  %go = call i32 @await(ptr %block, i32 %seen, i64 %limit)
  %stop = load atomic i32, ptr %stop.at monotonic, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %leave, label %awake
awake:
  %odd = trunc i32 %go to i1
  br i1 %odd, label %guard, label %idle
guard:
  %is.open = call i1 @enter(ptr %block, ptr %reading, i32 %go)
  br i1 %is.open, label %open, label %idle
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
  call void @alone(ptr %steps, i64 %count, ptr %marks, ptr %account)
  ret void
parallel:
  call void @settle(ptr %block)
  call void @sign(ptr %block, i64 0)
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

define void @stop(ptr %block) nounwind {  ; after the job that runs, send the workers home
  %stop = getelementptr %block, ptr %block, i64 0, i32 10
  call void @lock(ptr %block)
  store atomic i32 1, ptr %stop monotonic, align 4
  call void @raise(ptr %block)
  call void @unlock(ptr %block)
  ret void
}

; Runs the job %repeats times and returns how often it did: fewer than asked if told to hurry. Unless
; %times is null, each run fills a row of it: the ticks at the run's beginning and end, and with %each, between them, at
; the end of every group but the last, in the place of the group's last step. Unless %account is null, each run fills
; entries of it by thread and step: the ticks when the thread began its first part of the group that the step begins,
; the ticks that it spent in the step, and the nanoseconds on a CPU in parts of the group. All stay 0 where it ran none.
define i64 @bench(ptr %block, ptr %steps, i64 %count, i64 %repeats, ptr %times, i32 %each, ptr %account) nounwind {
  %unaccounted = icmp eq ptr %account, null
  %many = icmp ne i32 %each, 0
  %ends = select i1 %many, i64 %count, i64 1
  %width = add i64 %ends, 1
  %alone = icmp eq ptr %block, null
  %untimed = icmp eq ptr %times, null
  %hurry.at = getelementptr %block, ptr %block, i64 0, i32 11
  br i1 %alone, label %head, label %enter
enter:
  call void @lock(ptr %block)
  %threads.at = getelementptr %block, ptr %block, i64 0, i32 13
  %threads = load i64, ptr %threads.at, align 8
  %entries.all = mul i64 %threads, %count
  br label %head
head:
  %entries.run = phi i64 [ %count, %0 ], [ %entries.all, %enter ], [ %entries.run, %plain ], [ %entries.run, %timed ]
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

define void @run(ptr %block, ptr %steps, i64 %count) nounwind {  ; once; each argument costs Python 0.1 µs
  %r = call i64 @bench(ptr %block, ptr %steps, i64 %count, i64 1, ptr null, i32 0, ptr null)
  ret void
}
"""
