"""A target says the truth about the code LLVM emits for it, and stays sensible where the machine says nothing."""

import json
import re
from dataclasses import fields, replace

import pytest

from stormdrop.base.errors import UserError
from stormdrop.codegen.llvm import assemble, assembly, host
from stormdrop.device.host import detect
from stormdrop.target.cpu import ISAS, cross
from stormdrop.target.gpu import gpu
from stormdrop.target.machine import Target, target_from_json

X86 = [name for name, isa in ISAS.items() if isa.family == "x86"]


def axpy(target: Target, lanes: int) -> str:
    vector = f"<{lanes} x float>"
    return f"""
define void @axpy(ptr %x, ptr %y) {target.function_attributes} {{
  %a = load {vector}, ptr %x, align 4
  %b = load {vector}, ptr %y, align 4
  %c = call {vector} @llvm.fmuladd.v{lanes}f32({vector} %a, {vector} %b, {vector} %a)
  store {vector} %c, ptr %y, align 4
  ret void
}}
declare {vector} @llvm.fmuladd.v{lanes}f32({vector}, {vector}, {vector})
"""


def masked_store(target: Target) -> str:
    n = target.lanes("f32")
    return f"""
define void @keep(ptr %x, ptr %y, <{n} x i1> %m) {target.function_attributes} {{
  %a = load <{n} x float>, ptr %x, align 4
  call void @llvm.masked.store.v{n}f32.p0(<{n} x float> %a, ptr %y, i32 4, <{n} x i1> %m)
  ret void
}}
declare void @llvm.masked.store.v{n}f32.p0(<{n} x float>, ptr, i32, <{n} x i1>)
"""


def x86_targets() -> list[Target]:
    """Every x86 target there is here: generic ones, known cores, this machine, and each of them narrowed."""
    roots = [cross("avx512"), cross("avx2"), cross("sse")]
    if detect().isa in X86:
        roots.append(detect())
    widths = {name: ISAS[name].vector_bytes for name in X86}
    return [root.with_isa(isa) for root in roots for isa in X86 if widths[isa] <= root.vector_bytes]


def test_this_machine_has_only_positive_numbers_and_a_name() -> None:
    target = detect()
    for field in fields(target):
        value = getattr(target, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert value > 0, field.name
    assert target.cpu in target.name
    assert (target.triple, target.cpu) == host()[:2]
    assert 0.5 < target.ghz < 10


def test_detection_is_cached_and_the_thread_count_can_be_given() -> None:
    assert detect() is detect()
    assert detect(3).threads == 3
    assert detect(3).key() != detect(5).key()


def test_the_caches_grow_with_their_level() -> None:
    target = detect()
    assert target.line_bytes < target.l1_bytes < target.l2_bytes <= target.l3_bytes


@pytest.mark.parametrize("target", x86_targets(), ids=lambda t: f"{t.cpu}-{t.isa}")
def test_a_forced_isa_uses_its_own_registers_and_none_wider(target: Target) -> None:
    register = {64: "zmm", 32: "ymm", 16: "xmm"}
    text = assembly(axpy(target, 16), target)
    for size, name in register.items():
        assert (name in text) == (size == target.vector_bytes), f"{name} for {target.isa}\n{text}"
    assert ("vfmadd" in text) == target.has_fma


@pytest.mark.parametrize("target", x86_targets(), ids=lambda t: f"{t.cpu}-{t.isa}")
def test_masked_stores_are_instructions_but_on_sse(target: Target) -> None:
    branches = re.findall(r"\tj[a-z]+\t", assembly(masked_store(target), target))
    assert (not branches) == (target.isa != "sse")


@pytest.mark.parametrize("cpu", ["znver4", "znver5", "skylake-avx512", "sapphirerapids", "graniterapids"])
def test_sixteen_floats_are_one_register_on_cores_that_prefer_narrower_ones(cpu: str) -> None:
    target = replace(cross("avx512"), cpu=cpu)
    text = assembly(axpy(target, 16), target)
    assert "zmm" in text
    assert "ymm" not in text


@pytest.mark.parametrize("isa", ISAS)
def test_cross_targets_assemble(isa: str) -> None:
    target = cross(isa)
    assert assemble(axpy(target, target.lanes("f32")), target).startswith(b"\x7fELF")


@pytest.mark.parametrize(("isa", "is_sve"), [("sve512", True), ("neon", False)])
def test_sve_vectors_are_one_register_and_narrowed_ones_use_none(isa: str, is_sve: bool) -> None:
    target = cross("sve512").with_isa(isa)
    text = assembly(axpy(target, 16), target)
    assert bool(re.search(r"\bz0\.s", text)) == is_sve
    assert bool(re.search(r"\bv0\.4s", text)) != is_sve


def test_lanes_are_at_least_four_bytes_wide() -> None:
    target = cross("avx512")
    assert [target.lanes(t) for t in ("f32", "i32", "bool", "f64", "i64")] == [16, 16, 16, 8, 8]


def test_a_narrowed_target_keeps_its_core_and_caches_but_not_its_key() -> None:
    wide = cross("avx512")
    narrow = wide.with_isa("avx2")
    assert (narrow.cpu, narrow.l2_bytes, narrow.threads) == (wide.cpu, wide.l2_bytes, wide.threads)
    assert (narrow.vector_bytes, narrow.vector_registers) == (32, 16)
    assert narrow.key() != wide.key()
    assert wide.with_cold_weights(True).with_isa("avx2").is_cold
    assert wide.with_isa("avx512") is wide


def test_what_a_target_does_not_have_is_the_users_error() -> None:
    for isa in ("avx512", "neon"):
        with pytest.raises(UserError, match="cannot be narrowed"):
            cross("avx2").with_isa(isa)
    with pytest.raises(UserError, match="unknown instruction set"):
        cross("mmx")
    with pytest.raises(UserError, match="at least one thread"):
        cross("avx2").with_threads(0)


# ---- JSON --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [cross("neon"), cross("avx512").with_cold_weights(True)], ids=["warm", "cold"])
def test_a_target_read_back_is_equal(target: Target) -> None:
    written = json.loads(json.dumps(target.to_json()))
    assert written["kind"] == "cpu"
    assert target_from_json(written) == target


def test_a_target_of_another_version_is_read() -> None:
    """Older files have neither a kind nor every field of today; newer ones have fields that are unknown here."""
    written = cross("avx2").to_json()
    older = {name: value for name, value in written.items() if name not in ("kind", "cold")}
    assert target_from_json(older) == target_from_json({**written, "color": "red"}) == cross("avx2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "abacus"}, "unknown kind 'abacus'"),
        ({"isa": "mmx"}, "unknown instruction set 'mmx'"),
        ({"l2_bytes": None}, "l2_bytes: None"),
        ({"l2_bytes": 0}, "l2_bytes: 0"),
        ({"threads": True}, "threads: True"),
        ({"dram_gbs": 10**400}, "dram_gbs: 1000"),
        ({"cold": 1}, "cold: 1"),
    ],
)
def test_what_is_no_target_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        target_from_json({**cross("avx2").to_json(), **change})
    with pytest.raises(UserError, match="no JSON object"):
        target_from_json([change])


@pytest.mark.parametrize("target", [cross("neon"), gpu("sm_80")], ids=["cpu", "gpu"])
def test_weights_are_cold_if_they_exceed_the_last_cache(target: Target) -> None:
    for at in (target, target.with_cold_weights(True)):
        assert at.with_weights(target.l3_bytes) == target
        assert at.with_weights(target.l3_bytes + 1) == target.with_cold_weights(True)
