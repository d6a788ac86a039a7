"""Kernels written by hand, small and of every kind: the emulator's own tests run them, whole and with bugs planted."""

from __future__ import annotations

_HEAD = """\
target triple = "nvptx64-nvidia-cuda"
@shared = external addrspace(3) global [0 x i8], align 128
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3), ptr addrspace(1))
declare void @llvm.nvvm.cp.async.ca.shared.global.4.s(ptr addrspace(3), ptr addrspace(1), i32)
declare void @llvm.nvvm.cp.async.commit.group()
declare void @llvm.nvvm.cp.async.wait.group(i32)
declare float @llvm.nvvm.shfl.sync.bfly.f32(i32, float, i32, i32)
declare float @llvm.fma.f32(float, float, float)
"""
_TAIL = """
attributes #0 = { nounwind "nvvm.maxntid"="256" }
!0 = !{}
"""
_BARRIER = "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"


def _kernel(parameters: str, body: str) -> str:
    buffers = parameters.split()
    casts = "".join(f"  %{b} = addrspacecast ptr %{b}.given to ptr addrspace(1)\n" for b in buffers)
    given = ", ".join(f"ptr %{b}.given" for b in buffers)
    threads = (
        "  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n  %cta = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()\n"
    )
    return f"{_HEAD}define ptx_kernel void @phase0({given}) #0 {{\nentry:\n{casts}{threads}{body}}}\n{_TAIL}"


def vector_add(n: int, lanes: int = 4) -> str:
    """z = x + y in vectors of 4, 64 threads a block; the tail of fewer than 4 elements one by one."""
    return _kernel(
        "x y z",
        f"""\
  %b = mul i32 %cta, 64
  %t = add i32 %b, %tid
  %k = mul i32 %t, {lanes}
  %left = sub i32 {n}, %k
  %px = getelementptr float, ptr addrspace(1) %x, i32 %k
  %py = getelementptr float, ptr addrspace(1) %y, i32 %k
  %pz = getelementptr float, ptr addrspace(1) %z, i32 %k
  %whole = icmp sge i32 %left, {lanes}
  br i1 %whole, label %vectors, label %check
vectors:
  %vx = load <{lanes} x float>, ptr addrspace(1) %px, align {4 * lanes}, !invariant.load !0
  %vy = load <{lanes} x float>, ptr addrspace(1) %py, align {4 * lanes}, !invariant.load !0
  %vz = fadd <{lanes} x float> %vx, %vy
  store <{lanes} x float> %vz, ptr addrspace(1) %pz, align {4 * lanes}
  br label %done
check:
  %some = icmp sgt i32 %left, 0
  br i1 %some, label %tail, label %done
tail:
  %i = phi i32 [ 0, %check ], [ %next, %tail ]
  %qx = getelementptr float, ptr addrspace(1) %px, i32 %i
  %qy = getelementptr float, ptr addrspace(1) %py, i32 %i
  %qz = getelementptr float, ptr addrspace(1) %pz, i32 %i
  %ax = load float, ptr addrspace(1) %qx, align 4
  %ay = load float, ptr addrspace(1) %qy, align 4
  %az = fadd float %ax, %ay
  store float %az, ptr addrspace(1) %qz, align 4
  %next = add i32 %i, 1
  %again = icmp slt i32 %next, %left
  br i1 %again, label %tail, label %done
done:
  ret void
""",
    )


TILE = 8


def gemm_shared_bytes(stages: int) -> int:
    return stages * 2 * TILE * TILE * 4


def gemm(m: int, n: int, k: int, stages: int) -> str:
    """C = A B by tiles of 8 x 8, a thread per element, through a ring of `stages` tiles filled by cp.async.

        for t < stages - 1: issue(t); commit
        for t < tiles: wait(stages - 2); barrier; issue(t + stages - 1); commit; multiply tile t

    The barrier after the wait orders a tile's copies before its reads, and the reads of tile t - 1 before the copies
    that replace it.
    """
    tiles, columns = -(-k // TILE), -(-n // TILE)
    stage_bytes, half = 2 * TILE * TILE * 4, TILE * TILE * 4
    lines: list[str] = []

    def copy(to: str, source: str, size: str) -> str:
        pointers = f"ptr addrspace(3) {to}, ptr addrspace(1) {source}"
        return f"call void @llvm.nvvm.cp.async.ca.shared.global.4.s({pointers}, i32 {size})"

    def issue(t: str, name: str) -> None:
        """The thread's element of tile t of A and of B; zeros outside."""
        lines.append(
            f"""\
  %{name}.s = urem i32 {t}, {stages}
  %{name}.to = mul i32 %{name}.s, {stage_bytes}
  %{name}.k0 = mul i32 {t}, {TILE}
  %{name}.ak = add i32 %{name}.k0, %col
  %{name}.bk = add i32 %{name}.k0, %row
  %{name}.ain = icmp slt i32 %{name}.ak, {k}
  %{name}.aok = and i1 %{name}.ain, %row.ok
  %{name}.asize = select i1 %{name}.aok, i32 4, i32 0
  %{name}.arow = mul i32 %i, {k}
  %{name}.aat = add i32 %{name}.arow, %{name}.ak
  %{name}.asrc = getelementptr float, ptr addrspace(1) %a, i32 %{name}.aat
  %{name}.adst = getelementptr i8, ptr addrspace(3) %mine, i32 %{name}.to
  {copy(f"%{name}.adst", f"%{name}.asrc", f"%{name}.asize")}
  %{name}.bin = icmp slt i32 %{name}.bk, {k}
  %{name}.bok = and i1 %{name}.bin, %col.ok
  %{name}.bsize = select i1 %{name}.bok, i32 4, i32 0
  %{name}.brow = mul i32 %{name}.bk, {n}
  %{name}.bat = add i32 %{name}.brow, %j
  %{name}.bsrc = getelementptr float, ptr addrspace(1) %b, i32 %{name}.bat
  %{name}.bdst = getelementptr i8, ptr addrspace(3) %{name}.adst, i32 {half}
  {copy(f"%{name}.bdst", f"%{name}.bsrc", f"%{name}.bsize")}
"""
        )

    lines.append(
        f"""\
  %by = udiv i32 %cta, {columns}
  %bx = urem i32 %cta, {columns}
  %row = udiv i32 %tid, {TILE}
  %col = urem i32 %tid, {TILE}
  %i0 = mul i32 %by, {TILE}
  %j0 = mul i32 %bx, {TILE}
  %i = add i32 %i0, %row
  %j = add i32 %j0, %col
  %row.ok = icmp slt i32 %i, {m}
  %col.ok = icmp slt i32 %j, {n}
  %mine = getelementptr float, ptr addrspace(3) @shared, i32 %tid
  %arow = mul i32 %row, {4 * TILE}
  %bcol = mul i32 %col, 4
  %ashare = getelementptr i8, ptr addrspace(3) @shared, i32 %arow
  %bhalf = getelementptr i8, ptr addrspace(3) @shared, i32 {half}
  %bshare = getelementptr i8, ptr addrspace(3) %bhalf, i32 %bcol
"""
    )
    for t in range(stages - 1):
        issue(str(t), f"first{t}")
        lines.append("  call void @llvm.nvvm.cp.async.commit.group()\n")
    lines.append(
        f"""\
  br label %loop
loop:
  %t = phi i32 [ 0, %entry ], [ %t.next, %issued ]
  %sum = phi float [ 0.0, %entry ], [ %sum.{TILE}, %issued ]
  call void @llvm.nvvm.cp.async.wait.group(i32 {stages - 2})
  {_BARRIER}
  %later = add i32 %t, {stages - 1}
  %any = icmp slt i32 %later, {tiles}
  br i1 %any, label %more, label %issued
more:
"""
    )
    issue("%later", "next")
    lines.append(
        f"""\
  br label %issued
issued:
  call void @llvm.nvvm.cp.async.commit.group()
  %s = urem i32 %t, {stages}
  %from = mul i32 %s, {stage_bytes}
  %pa = getelementptr i8, ptr addrspace(3) %ashare, i32 %from
  %pb = getelementptr i8, ptr addrspace(3) %bshare, i32 %from
  %sum.0 = fadd float %sum, 0.0
"""
    )
    for r in range(TILE):
        lines.append(
            f"""\
  %pa.{r} = getelementptr i8, ptr addrspace(3) %pa, i32 {4 * r}
  %pb.{r} = getelementptr i8, ptr addrspace(3) %pb, i32 {4 * r * TILE}
  %va.{r} = load float, ptr addrspace(3) %pa.{r}, align 4
  %vb.{r} = load float, ptr addrspace(3) %pb.{r}, align 4
  %sum.{r + 1} = call float @llvm.fma.f32(float %va.{r}, float %vb.{r}, float %sum.{r})
"""
        )
    lines.append(
        f"""\
  %t.next = add i32 %t, 1
  %again = icmp slt i32 %t.next, {tiles}
  br i1 %again, label %loop, label %end
end:
  %inside = and i1 %row.ok, %col.ok
  br i1 %inside, label %write, label %done
write:
  %c.row = mul i32 %i, {n}
  %c.at = add i32 %c.row, %j
  %pc = getelementptr float, ptr addrspace(1) %c, i32 %c.at
  store float %sum.{TILE}, ptr addrspace(1) %pc, align 4
  br label %done
done:
  ret void
"""
    )
    return _kernel("a b c", "".join(lines))


def row_sums(rows: int, columns: int) -> str:
    """y[r] = sum of x[r]: a block per row, its warps sum parts by shuffles, the first warp adds the parts."""
    warps = 4
    steps = "".join(
        f"""\
  %got{w} = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %sum{w}, i32 {1 << w}, i32 31)
  %sum{w + 1} = fadd float %sum{w}, %got{w}
"""
        for w in range(5)
    )
    return _kernel(
        "x y",
        f"""\
  %row = mul i32 %cta, {columns}
  %lane = and i32 %tid, 31
  %warp = lshr i32 %tid, 5
  br label %loop
loop:
  %k = phi i32 [ %tid, %entry ], [ %k.next, %join ]
  %acc = phi float [ 0.0, %entry ], [ %acc.next, %join ]
  %inside = icmp slt i32 %k, {columns}
  br i1 %inside, label %read, label %join
read:
  %at = add i32 %row, %k
  %p = getelementptr float, ptr addrspace(1) %x, i32 %at
  %v = load float, ptr addrspace(1) %p, align 4
  %more = fadd float %acc, %v
  br label %join
join:
  %acc.next = phi float [ %acc, %loop ], [ %more, %read ]
  %k.next = add i32 %k, {32 * warps}
  %again = icmp slt i32 %k.next, {columns + 32 * warps - 1}
  br i1 %again, label %loop, label %reduce
reduce:
  %sum0 = fadd float %acc.next, 0.0
{steps}  %first = icmp eq i32 %lane, 0
  %part = getelementptr float, ptr addrspace(3) @shared, i32 %warp
  br i1 %first, label %put, label %meet
put:
  store float %sum5, ptr addrspace(3) %part, align 4
  br label %meet
meet:
  {_BARRIER}
  %one = icmp eq i32 %tid, 0
  br i1 %one, label %last, label %done
last:
  %all = load <4 x float>, ptr addrspace(3) @shared, align 16
  %p0 = extractelement <4 x float> %all, i32 0
  %p1 = extractelement <4 x float> %all, i32 1
  %p2 = extractelement <4 x float> %all, i32 2
  %p3 = extractelement <4 x float> %all, i32 3
  %s0 = fadd float %p0, %p1
  %s1 = fadd float %p2, %p3
  %s = fadd float %s0, %s1
  %py = getelementptr float, ptr addrspace(1) %y, i32 %cta
  store float %s, ptr addrspace(1) %py, align 4
  br label %done
done:
  ret void
""",
    )


def row_maxima(n: int) -> str:
    """y[i] = max(x[i-1], x[i], x[i+1]) inside 0..n, 64 elements a block: its 66 inputs go through shared memory, those
    outside as minus infinity.
    """
    return _kernel(
        "x y",
        f"""\
  %base = mul i32 %cta, 64
  br label %copy
copy:
  %e = phi i32 [ %tid, %entry ], [ %e.next, %copied ]
  %g0 = add i32 %base, %e
  %g = sub i32 %g0, 1
  %dst = getelementptr float, ptr addrspace(3) @shared, i32 %e
  %src = getelementptr float, ptr addrspace(1) %x, i32 %g
  %inside = icmp ult i32 %g, {n}
  br i1 %inside, label %fetch, label %border
fetch:
  call void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3) %dst, ptr addrspace(1) %src)
  br label %copied
border:
  store float 0xFFF0000000000000, ptr addrspace(3) %dst, align 4
  br label %copied
copied:
  %e.next = add i32 %e, 64
  %again = icmp slt i32 %e.next, 66
  br i1 %again, label %copy, label %wait
wait:
  call void @llvm.nvvm.cp.async.commit.group()
  call void @llvm.nvvm.cp.async.wait.group(i32 0)
  {_BARRIER}
  %p = getelementptr float, ptr addrspace(3) @shared, i32 %tid
  %q = getelementptr float, ptr addrspace(3) %p, i32 1
  %r = getelementptr float, ptr addrspace(3) %p, i32 2
  %a = load float, ptr addrspace(3) %p, align 4
  %b = load float, ptr addrspace(3) %q, align 4
  %c = load float, ptr addrspace(3) %r, align 4
  %ab = fcmp ogt float %a, %b
  %m = select i1 %ab, float %a, float %b
  %mc = fcmp ogt float %m, %c
  %max = select i1 %mc, float %m, float %c
  %i = add i32 %base, %tid
  %live = icmp slt i32 %i, {n}
  br i1 %live, label %write, label %done
write:
  %py = getelementptr float, ptr addrspace(1) %y, i32 %i
  store float %max, ptr addrspace(1) %py, align 4
  br label %done
done:
  ret void
""",
    )
