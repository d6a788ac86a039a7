"""The native text of a C library's entry points, with `$NAME$` for every number that depends on the model: see
`entry_ir`.

Unlike the pool, which it is compiled with, it calls libc: for memory, threads, the clock and the CPUs there are.
"""

from __future__ import annotations

TYPES = """
; crew, crew members started, control block (null: alone), busy
%handle = type { i64, i64, ptr, i32 }
%word = type { ptr, i64, i64 }  ; base, offset, whether the base is the handle instead
%bind = type { i64, i64, i64, i64, i64 }  ; pointer, number of the array, offset, low bits that must be 0, is an input
%size = type { i64, i64, i64, i64 }  ; first bind, end of the binds, where the steps are, how many
%member = type { i64, ptr, i64 }  ; thread, control block, number
"""
FUNCTIONS = """
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare i32 @madvise(ptr, i64, i32)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @clock_gettime(i32, ptr)
declare i1024 @llvm.ctpop.i1024(i1024)

define internal i64 @cpus() nounwind {  ; that this process may run on
  %set = alloca i1024, align 8
  %failed = call i32 @sched_getaffinity(i32 0, i64 128, ptr %set)
  %known = icmp eq i32 %failed, 0
  br i1 %known, label %count, label %unknown
unknown:  ; more than 1024 of them
  ret i64 $THREADS$
count:
  %word = load i1024, ptr %set, align 8
  %ones = call i1024 @llvm.ctpop.i1024(i1024 %word)
  %n = trunc i1024 %ones to i64
  ret i64 %n
}

define internal i64 @nanoseconds() nounwind {
  %time = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 1, ptr %time)  ; CLOCK_MONOTONIC
  %s = load i64, ptr %time, align 8
  %ns.at = getelementptr i64, ptr %time, i64 1
  %ns = load i64, ptr %ns.at, align 8
  %whole = mul i64 %s, 1000000000
  %t = add i64 %whole, %ns
  ret i64 %t
}

define internal i64 @ticks_in(i64 %span) nounwind {  ; of the processor's counter, measured over half a millisecond
  %before = call i64 @nanoseconds()
  %first = call i64 @ticks()
  br label %wait
wait:
  %now = call i64 @nanoseconds()
  %passed = sub i64 %now, %before
  %soon = icmp ult i64 %passed, 500000
  br i1 %soon, label %wait, label %done
done:
  %last = call i64 @ticks()
  %counted = sub i64 %last, %first
  %scaled = mul i64 %counted, %span
  %r = udiv i64 %scaled, %passed
  ret i64 %r
}

define internal ptr @crew_member(ptr %member) nounwind {
  %block.at = getelementptr %member, ptr %member, i64 0, i32 1
  %block = load ptr, ptr %block.at, align 8
  %t.at = getelementptr %member, ptr %member, i64 0, i32 2
  %t = load i64, ptr %t.at, align 8
  call void @worker(ptr %block, i64 %t)
  ret ptr null
}

; Start all threads but the caller's; false: not all could be started.
define internal i1 @gather(ptr %handle, i64 %threads) nounwind {
  %all = alloca [16 x i64], align 8
  %before = alloca [16 x i64], align 8
  %block = getelementptr i8, ptr %handle, i64 $BLOCK_AT$
  %threads.at = getelementptr i8, ptr %block, i64 $THREADS_OFFSET$
  store i64 %threads, ptr %threads.at, align 8
  %cpus = call i64 @cpus()
  %crowded = icmp ugt i64 %threads, %cpus
  %span = select i1 %crowded, i64 $CROWDED_SPIN$, i64 $SPIN$
  %roomy = xor i1 %crowded, true
  %spread = zext i1 %roomy to i64
  %spread.at = getelementptr i8, ptr %block, i64 $SPREAD_OFFSET$
  store i64 %spread, ptr %spread.at, align 8
  %spin = call i64 @ticks_in(i64 %span)
  %spin.at = getelementptr i8, ptr %block, i64 $SPIN_OFFSET$
  store i64 %spin, ptr %spin.at, align 8
  %block.at = getelementptr %handle, ptr %handle, i64 0, i32 2
  store ptr %block, ptr %block.at, align 8
  %crew.at = getelementptr %handle, ptr %handle, i64 0, i32 0
  %crew = load i64, ptr %crew.at, align 8
  %members = getelementptr i8, ptr %handle, i64 %crew
  %started.at = getelementptr %handle, ptr %handle, i64 0, i32 1
  %s0 = call i32 @sigfillset(ptr %all)
  %s1 = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %before)  ; SIG_SETMASK: signals are for the program
  br label %head
head:
  %t = phi i64 [ 1, %0 ], [ %t.next, %again ]
  %more = icmp ult i64 %t, %threads
  br i1 %more, label %start, label %done
start:
  %k = sub i64 %t, 1
  %member = getelementptr %member, ptr %members, i64 %k
  %m.block = getelementptr %member, ptr %member, i64 0, i32 1
  store ptr %block, ptr %m.block, align 8
  %m.t = getelementptr %member, ptr %member, i64 0, i32 2
  store i64 %t, ptr %m.t, align 8
  %failed = call i32 @pthread_create(ptr %member, ptr null, ptr @crew_member, ptr %member)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %again, label %done
again:
  store i64 %t, ptr %started.at, align 8
  %t.next = add i64 %t, 1
  br label %head
done:
  %whole = phi i1 [ true, %head ], [ false, %start ]
  %s2 = call i32 @pthread_sigmask(i32 2, ptr %before, ptr null)
  ret i1 %whole
}

define internal void @fill(ptr %handle) nounwind {  ; the tables, but for the caller's arrays
  %tables = getelementptr i8, ptr %handle, i64 $POINTERS_AT$
  br label %head
head:
  %k = phi i64 [ 0, %0 ], [ %k.next, %set ]
  %more = icmp ult i64 %k, $WORDS$
  br i1 %more, label %set, label %done
set:
  %word.at = getelementptr [0 x %word], ptr @words, i64 0, i64 %k
  %word = load %word, ptr %word.at, align 8
  %fixed = extractvalue %word %word, 0
  %offset = extractvalue %word %word, 1
  %relative = extractvalue %word %word, 2
  %is.relative = icmp ne i64 %relative, 0
  %base = select i1 %is.relative, ptr %handle, ptr %fixed
  %value = getelementptr i8, ptr %base, i64 %offset
  %place = getelementptr ptr, ptr %tables, i64 %k
  store ptr %value, ptr %place, align 8
  %k.next = add i64 %k, 1
  br label %head
done:
  ret void
}

define ptr @$PREFIX$_open(i32 %asked) nounwind {
  %fits = call i1 @fits()
  br i1 %fits, label %count, label %no
count:
  %cpus = call i64 @cpus()
  %few = icmp ult i64 %cpus, $THREADS$
  %usual = select i1 %few, i64 %cpus, i64 $THREADS$
  %given = icmp sgt i32 %asked, 0
  %wide = sext i32 %asked to i64
  %wanted = select i1 %given, i64 %wide, i64 %usual
  %threads = call i64 @llvm.umax.i64(i64 %wanted, i64 1)
  %many = icmp ugt i64 %threads, $MOST_THREADS$
  br i1 %many, label %no, label %allocate
allocate:
  %scratch.bytes = mul i64 %threads, $STRIDE$
  %crew = add i64 %scratch.bytes, $SCRATCH_AT$
  %crew.bytes = mul i64 %threads, $CREW_BYTES$
  %bytes = add i64 %crew, %crew.bytes
  %large = icmp uge i64 %bytes, $HUGE_FROM$
  %page = select i1 %large, i64 $HUGE$, i64 4096
  %page.last = sub i64 %page, 1
  %page.mask = sub i64 0, %page
  %raised = add i64 %bytes, %page.last
  %whole = and i64 %raised, %page.mask
  %handle = call ptr @aligned_alloc(i64 %page, i64 %whole)
  %failed = icmp eq ptr %handle, null
  br i1 %failed, label %no, label %allocated
allocated:
  br i1 %large, label %advise, label %write
advise:
  %a = call i32 @madvise(ptr %handle, i64 %whole, i32 14)  ; MADV_HUGEPAGE; without them it works as well
  br label %write
write:
  call void @llvm.memset.p0.i64(ptr %handle, i8 0, i64 %whole, i1 false)
  store i64 %crew, ptr %handle, align 8
  call void @fill(ptr %handle)
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %done, label %gather
gather:
  %complete = call i1 @gather(ptr %handle, i64 %threads)
  br i1 %complete, label %done, label %undo
undo:
  call void @$PREFIX$_close(ptr %handle)
  br label %no
no:
  ret ptr null
done:
  ret ptr %handle
}

define internal i32 @run_at(ptr %handle, i32 %chosen, ptr %inputs, ptr %outputs) nounwind {
  %absent = icmp eq ptr %handle, null
  br i1 %absent, label %is.null, label %choose
choose:
  %known = icmp ult i32 %chosen, $SIZES$
  br i1 %known, label %enter, label %is.unknown
enter:
  %wide = zext i32 %chosen to i64
  %size.at = getelementptr [0 x %size], ptr @sizes, i64 0, i64 %wide
  %size = load %size, ptr %size.at, align 8
  %first = extractvalue %size %size, 0
  %end = extractvalue %size %size, 1
  %steps.at = extractvalue %size %size, 2
  %count = extractvalue %size %size, 3
  %busy.at = getelementptr %handle, ptr %handle, i64 0, i32 3
  %swap = cmpxchg ptr %busy.at, i32 0, i32 1 acquire monotonic, align 4
  %mine = extractvalue {i32, i1} %swap, 1
  br i1 %mine, label %bind, label %is.busy
bind:
  %pointers = getelementptr i8, ptr %handle, i64 $POINTERS_AT$
  br label %head
head:
  %k = phi i64 [ %first, %bind ], [ %k.next, %set ]
  %more = icmp ult i64 %k, %end
  br i1 %more, label %look, label %go
look:
  %bind.at = getelementptr [0 x %bind], ptr @binds, i64 0, i64 %k
  %it = load %bind, ptr %bind.at, align 8
  %index = extractvalue %bind %it, 1
  %is.input = extractvalue %bind %it, 4
  %from.inputs = icmp ne i64 %is.input, 0
  %arrays = select i1 %from.inputs, ptr %inputs, ptr %outputs
  %no.arrays = icmp eq ptr %arrays, null
  br i1 %no.arrays, label %leave, label %fetch
fetch:
  %array.at = getelementptr ptr, ptr %arrays, i64 %index
  %array = load ptr, ptr %array.at, align 8
  %no.array = icmp eq ptr %array, null
  br i1 %no.array, label %leave, label %check
check:
  %number = ptrtoint ptr %array to i64
  %mask = extractvalue %bind %it, 3
  %low = and i64 %number, %mask
  %aligned = icmp eq i64 %low, 0
  br i1 %aligned, label %set, label %leave
set:
  %offset = extractvalue %bind %it, 2
  %address = getelementptr i8, ptr %array, i64 %offset
  %which = extractvalue %bind %it, 0
  %pointer = getelementptr ptr, ptr %pointers, i64 %which
  store ptr %address, ptr %pointer, align 8
  %k.next = add i64 %k, 1
  br label %head
go:
  %block.at = getelementptr %handle, ptr %handle, i64 0, i32 2
  %block = load ptr, ptr %block.at, align 8
  %steps = getelementptr i8, ptr %handle, i64 %steps.at
  call void @run(ptr %block, ptr %steps, i64 %count)
  br label %leave
leave:
  %r = phi i32 [ 0, %go ], [ 1, %look ], [ 1, %fetch ], [ 2, %check ]
  store atomic i32 0, ptr %busy.at release, align 4
  ret i32 %r
is.null:
  ret i32 1
is.busy:
  ret i32 3
is.unknown:
  ret i32 4
}

define void @$PREFIX$_close(ptr %handle) nounwind {
  %absent = icmp eq ptr %handle, null
  br i1 %absent, label %done, label %look
look:
  %it = load %handle, ptr %handle, align 8
  %crew = extractvalue %handle %it, 0
  %started = extractvalue %handle %it, 1
  %block = extractvalue %handle %it, 2
  %alone = icmp eq ptr %block, null
  br i1 %alone, label %free, label %dismiss
dismiss:
  call void @stop(ptr %block)
  %members = getelementptr i8, ptr %handle, i64 %crew
  br label %head
head:
  %k = phi i64 [ 0, %dismiss ], [ %k.next, %join ]
  %more = icmp ult i64 %k, %started
  br i1 %more, label %join, label %free
join:
  %member = getelementptr %member, ptr %members, i64 %k
  %thread = load i64, ptr %member, align 8
  %j = call i32 @pthread_join(i64 %thread, ptr null)
  %k.next = add i64 %k, 1
  br label %head
free:
  call void @free(ptr %handle)
  br label %done
done:
  ret void
}
declare i64 @llvm.umax.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

RUN = """
define i32 @$PREFIX$_run(ptr %handle, ptr %inputs, ptr %outputs) nounwind {
  %r = call i32 @run_at(ptr %handle, i32 0, ptr %inputs, ptr %outputs)
  ret i32 %r
}
"""
RUN_AT_SIZE = """
define i32 @$PREFIX$_run(ptr %handle, i32 %number, ptr %inputs, ptr %outputs) nounwind {
  %r = call i32 @run_at(ptr %handle, i32 %number, ptr %inputs, ptr %outputs)
  ret i32 %r
}
"""
