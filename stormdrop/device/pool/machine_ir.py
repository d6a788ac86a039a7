"""The machine-dependent part of the thread pool as LLVM IR text: pause, tick counter, system calls, CPU number,
floating-point mode.

Linux is reached by inline assembly: no function calls an external symbol.
"""

from __future__ import annotations

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
