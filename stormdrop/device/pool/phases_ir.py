"""The division of a group of phases by the thread pool, and the separation of its workers, as LLVM IR text.

`pool_ir` explains the protocol and has the control block; numbers between dollar signs are filled in there.
"""

PHASES = """
declare i64 @llvm.umin.i64(i64, i64)
define internal ptr @seat(ptr %block, i64 %t) nounwind {  ; thread %t's claim word
  %seats = getelementptr i8, ptr %block, i64 $SEATS$
  %at = getelementptr [128 x i8], ptr %seats, i64 %t
  ret ptr %at
}

; Claims the next part of the group %epoch at a claim word; its number, or -1 if all %parts are claimed.
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

; Runs iterations [%low, %high) of the group that begins at %first, as thread %t: those of each of its steps, in order.
; Enters in the account the ticks that each step took, unless that is null.
define internal void @run_steps(ptr %first, i64 %t, i64 %low, i64 %high, ptr %entries) nounwind {
  %unaccounted = icmp eq ptr %entries, null
  %size.at = getelementptr %step, ptr %first, i64 0, i32 7
  %size = load i64, ptr %size.at, align 8
  br label %head
head:
  %j = phi i64 [ 0, %0 ], [ %j.next, %next ]
  %left = icmp ult i64 %j, %size
  br i1 %left, label %each, label %out
each:
  %at = getelementptr %step, ptr %first, i64 %j
  %it = load %step, ptr %at, align 8
  %entry = extractvalue %step %it, 0
  %buffers = extractvalue %step %it, 1
  %base = extractvalue %step %it, 2
  %stride = extractvalue %step %it, 3
  %p = extractvalue %step %it, 4
  %extent = extractvalue %step %it, 5
  %group = extractvalue %step %it, 6
  %begin = call i64 @place(i64 %low, i64 %extent, i64 %group)
  %end = call i64 @place(i64 %high, i64 %extent, i64 %group)
  %some = icmp ult i64 %begin, %end
  br i1 %some, label %ready, label %next
ready:
  %distance = mul i64 %stride, %t
  %scratch = getelementptr i8, ptr %base, i64 %distance
  br i1 %unaccounted, label %plain, label %timed
plain:
  call void %entry(ptr %buffers, ptr %scratch, i64 %p, i64 %begin, i64 %end)
  br label %next
timed:
  %before = call i64 @ticks()
  call void %entry(ptr %buffers, ptr %scratch, i64 %p, i64 %begin, i64 %end)
  %after = call i64 @ticks()
  %lasted = sub i64 %after, %before
  %busy.at = getelementptr %entry, ptr %entries, i64 %j, i32 1
  %busy = load i64, ptr %busy.at, align 8
  %busy.new = add i64 %busy, %lasted
  store i64 %busy.new, ptr %busy.at, align 8
  br label %next
next:
  %j.next = add i64 %j, 1
  br label %head
out:
  ret void
}

; Where iteration %x of a group of %group iterations is in the range of a step of %extent.
define internal i64 @place(i64 %x, i64 %extent, i64 %group) nounwind {
  %is.same = icmp eq i64 %extent, %group
  br i1 %is.same, label %same, label %scaled
same:
  ret i64 %x
scaled:
  %place = call i64 @begin(i64 %extent, i64 %x, i64 %group)
  ret i64 %place
}

; Runs parts of thread %owner's share of a group as thread %t, %most at most, and returns the number of iterations.
define internal i64 @take(ptr %block, ptr %step, i64 %extent, i64 %epoch, i64 %owner, i64 %t, i64 %threads, i64 %most,
                          ptr %entries) nounwind {
  %owner.next = add i64 %owner, 1
  %begin = call i64 @begin(i64 %extent, i64 %owner, i64 %threads)
  %end = call i64 @begin(i64 %extent, i64 %owner.next, i64 %threads)
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
  %high = call i64 @llvm.umin.i64(i64 %high.up, i64 %end)
  call void @run_steps(ptr %step, i64 %t, i64 %low, i64 %high, ptr %entries)
  %count = sub i64 %high, %low
  %done.next = add i64 %done, %count
  %n.next = add i64 %n, 1
  br label %next
out:
  ret i64 %done
}

define internal i64 @cpu_time() nounwind {  ; nanoseconds that this thread has been on a CPU
  %all = call i64 @cpu_time_by(i64 3)
  ret i64 %all
}

define internal i64 @cpu_time_by(i64 %clock) nounwind {  ; nanoseconds of a clock; if it has gone, never the same twice
  %time = alloca [2 x i64], align 8
  %address = ptrtoint ptr %time to i64
  %r = call i64 @system(i64 $CLOCK_GETTIME$, i64 %clock, i64 %address, i64 0)
  %failed = icmp ne i64 %r, 0
  br i1 %failed, label %gone, label %read
gone:
  %ticks = call i64 @ticks()
  ret i64 %ticks
read:
  %seconds = load i64, ptr %time, align 8
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at, align 8
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %rest
  ret i64 %all
}

; As @take, and enters in the account of the group's first step when the thread began and how long it had a CPU, unless
; that is null.
define internal i64 @charge(ptr %block, ptr %step, i64 %extent, i64 %epoch, i64 %owner, i64 %t, i64 %threads, i64 %most,
                            ptr %entries) nounwind {
  %unaccounted = icmp eq ptr %entries, null
  br i1 %unaccounted, label %plain, label %timed
plain:
  %count = call i64 @take(ptr %block, ptr %step, i64 %extent, i64 %epoch, i64 %owner, i64 %t, i64 %threads, i64 %most,
                          ptr null)
  ret i64 %count
timed:
  %cpu.0 = call i64 @cpu_time()
  %time.0 = call i64 @ticks()
  %done = call i64 @take(ptr %block, ptr %step, i64 %extent, i64 %epoch, i64 %owner, i64 %t, i64 %threads, i64 %most,
                         ptr %entries)
  %cpu.1 = call i64 @cpu_time()
  %none = icmp eq i64 %done, 0
  br i1 %none, label %out, label %enter
enter:
  %begin = load i64, ptr %entries, align 8
  %is.first = icmp eq i64 %begin, 0
  %begin.new = select i1 %is.first, i64 %time.0, i64 %begin
  store i64 %begin.new, ptr %entries, align 8
  %cpu.at = getelementptr %entry, ptr %entries, i64 0, i32 2
  %cpu = load i64, ptr %cpu.at, align 8
  %on = sub i64 %cpu.1, %cpu.0
  %cpu.new = add i64 %cpu, %on
  store i64 %cpu.new, ptr %cpu.at, align 8
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

define internal i64 @begin(i64 %extent, i64 %t, i64 %threads) nounwind {  ; where the share of thread %t begins
  %whole = mul i64 %extent, %t
  %rest = sub i64 %threads, 1
  %up = add i64 %whole, %rest  ; rounded up: an extent of one belongs to the caller
  %begin = udiv i64 %up, %threads
  ret i64 %begin
}

; Counts iterations of %owner's share of the current group as done; whether they were the last of the group, in which
; case the next one has begun.
define internal i1 @finish(ptr %block, i64 %count, i64 %extent, i64 %owner, i64 %threads, ptr %mark) nounwind {
  %first = and i64 %owner, -4
  %four = add i64 %first, 4
  %next = call i64 @llvm.umin.i64(i64 %four, i64 %threads)
  %low = call i64 @begin(i64 %extent, i64 %first, i64 %threads)
  %high = call i64 @begin(i64 %extent, i64 %next, i64 %threads)
  %size = sub i64 %high, %low
  %seat = call ptr @seat(ptr %block, i64 %first)
  %group.at = getelementptr i8, ptr %seat, i64 64
  %group.before = atomicrmw add ptr %group.at, i64 %count acq_rel, align 8
  %group = add i64 %group.before, %count
  %is.full = icmp eq i64 %group, %size
  br i1 %is.full, label %full, label %early
full:
  store atomic i64 0, ptr %group.at monotonic, align 8
  %done.at = getelementptr %block, ptr %block, i64 0, i32 7
  %before = atomicrmw add ptr %done.at, i64 %size acq_rel, align 8
  %done = add i64 %before, %size
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

; Thread %t's work on a group: its own share, then what others have left. Returns whether the group is over.
define internal i1 @work(ptr %block, ptr %step, i64 %extent, i64 %epoch, i64 %t, i64 %threads, ptr %mark,
                         ptr %entries) nounwind {
  %phase.at = getelementptr %block, ptr %block, i64 0, i32 4
  %phase = trunc i64 %epoch to i32
  %own = call i64 @charge(ptr %block, ptr %step, i64 %extent, i64 %epoch, i64 %t, i64 %t, i64 %threads, i64 -1,
                          ptr %entries)
  %none = icmp eq i64 %own, 0
  br i1 %none, label %linger, label %count
count:
  %over = call i1 @finish(ptr %block, i64 %own, i64 %extent, i64 %t, i64 %threads, ptr %mark)
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
  %got = call i64 @charge(ptr %block, ptr %step, i64 %extent, i64 %epoch, i64 %v, i64 %t, i64 %threads, i64 1,
                          ptr %entries)
  %nil = icmp eq i64 %got, 0
  br i1 %nil, label %empty, label %helped
empty:
  %d.next = add i64 %d, 1
  br label %look
helped:
  %last = call i1 @finish(ptr %block, i64 %got, i64 %extent, i64 %v, i64 %threads, ptr %mark)
  br i1 %last, label %yes, label %look
yes:
  ret i1 true
no:
  ret i1 false
}
"""

CPUS = """
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
  %unknown = icmp eq i32 %cpu, 0
  br i1 %unknown, label %done, label %compare
compare:
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
"""
