"""The door to LLVM: what it refuses, what it loads, and that it leaves LLVM as it found it."""

from __future__ import annotations

import ctypes
import gc
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import pytest

from stormdrop.base.errors import BuildError
from stormdrop.codegen.llvm import Code, _fast_codegen, assemble, assembly
from stormdrop.device.host import detect
from stormdrop.target.cpu import cross


def constant(value: int, name: str = "k") -> str:
    return f"define i64 @{name}() {{\n  ret i64 {value}\n}}\n"


def call(code: Code, name: str = "k") -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(code.address(name))()


# ---- refusals ---------------------------------------------------------------------------------------------------

REFUSED = {
    "text": ("this is no program", "1:"),
    "an undefined value": ("define i64 @k() {\n  ret i64 %x\n}\n", r"2:.*use of undefined value '%x'"),
    "a type error": ("define i64 @k() {\n  ret i32 0\n}\n", "2:.*value doesn't match function result type"),
    "what the verifier refuses": ("define i64 @k() {\nentry:\n  br label %entry\n}\n", "[Ee]ntry block"),
    "two definitions": (constant(1) + constant(2), "4:.*redefinition of function '@?k'"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("compile", [assemble, assembly])
def test_what_llvm_refuses_is_a_build_error_with_llvms_words_and_the_texts_own_line(what: str, compile: Any) -> None:
    text, message = REFUSED[what]
    with pytest.raises(BuildError, match=message):
        compile(text, detect())


@dataclass(frozen=True)
class Unknown:
    triple: str = "abacus-unknown-linux-gnu"
    cpu: str = ""
    features: str = ""


def test_an_unknown_target_is_a_build_error_that_names_it() -> None:
    with pytest.raises(BuildError, match="abacus"):
        assemble(constant(1), Unknown())


def test_after_a_refusal_the_next_build_works() -> None:
    with pytest.raises(BuildError):
        assemble("nonsense", detect())
    assert call(Code(assemble(constant(7), detect()))) == 7


def test_inline_assembly_of_another_architecture_is_refused_before_llvm_ends_the_process() -> None:
    text = 'define void @k() {\n  call void asm sideeffect "nop", ""()\n  ret void\n}\n'
    there = "sse" if detect().isa in ("neon", "sve512") else "neon"
    with pytest.raises(BuildError, match="inline assembly"):
        assemble(text, cross(there))
    assemble(text, detect())


EXTERNAL = {
    "a function": (
        "malloc",
        "declare ptr @malloc(i64)\ndefine ptr @k() {\n  %p = call ptr @malloc(i64 8)\n  ret ptr %p\n}\n",
    ),
    "a variable": ("environ", "@environ = external global ptr\ndefine ptr @k() {\n  ret ptr @environ\n}\n"),
    "a function of the C library that LLVM brings in": (
        "expf",
        "declare float @llvm.exp.f32(float)\ndefine float @k(float %x) "
        "{\n  %y = call float @llvm.exp.f32(float %x)\n  ret float %y\n}\n",
    ),
}


@pytest.mark.parametrize("what", EXTERNAL)
def test_an_object_that_needs_a_symbol_from_elsewhere_is_refused_by_name(what: str) -> None:
    name, text = EXTERNAL[what]
    with pytest.raises(BuildError, match=f"external symbols.*{name}"):
        Code(assemble(text, detect()))


def test_an_object_of_another_machine_is_refused() -> None:
    there = "sse" if detect().isa in ("neon", "sve512") else "neon"
    with pytest.raises(BuildError, match="ELF machine"):
        Code(assemble(constant(1), cross(there)))


@pytest.mark.parametrize("length", [0, 3, 63, 64, 200, -200])
def test_damaged_objects_are_refused(length: int) -> None:
    whole = assemble(constant(1), detect())
    with pytest.raises(BuildError):
        Code(whole[:length] if length else b"no object at all")


def test_an_unknown_symbol_is_refused_beside_those_there_are() -> None:
    code = Code(assemble(constant(1, "one") + constant(2, "two"), detect()))
    assert sorted(code.symbols) == ["one", "two"]
    with pytest.raises(BuildError, match=r"no 'three'.*one.*two|no 'three'.*two.*one"):
        code.address("three")


def test_closed_code_has_no_address() -> None:
    code = Code(assemble(constant(1), detect()))
    code.close()
    code.close()
    with pytest.raises(BuildError, match="closed"):
        code.address("k")


# ---- loading ----------------------------------------------------------------------------------------------------


def test_many_objects_may_define_the_same_symbol() -> None:
    codes = [Code(assemble(constant(k), detect())) for k in range(150)]  # more than one linker holds
    assert [call(c) for c in codes] == list(range(150))
    del codes[::2]
    gc.collect()
    assert [call(c) for c in codes] == list(range(1, 150, 2))
    assert call(Code(assemble(constant(-1), detect()))) == -1


def test_the_same_object_may_be_loaded_twice_and_each_has_its_own_variables() -> None:
    count = "%a = load i64, ptr @n\n  %b = add i64 %a, 1\n  store i64 %b, ptr @n\n  ret i64 %b"
    data = assemble(f"@n = internal global i64 0\ndefine i64 @k() {{\n  {count}\n}}\n", detect())
    one, two = Code(data), Code(data)
    assert [call(one), call(one), call(two)] == [1, 2, 1]


def test_objects_hold_no_address_and_can_be_loaded_by_another_process() -> None:
    data = assemble(constant(42), detect())
    assert data == assemble(constant(42), detect())
    code = (
        "import ctypes, pickle, sys; from stormdrop.codegen.llvm import Code; code = "
        "Code(pickle.load(sys.stdin.buffer))\n"
    )
    code += "print(ctypes.CFUNCTYPE(ctypes.c_int64)(code.address('k'))())"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(data), capture_output=True, timeout=60)
    assert done.stdout.strip() == b"42", done.stderr


def test_several_threads_build_and_load_at_once() -> None:
    found: list[tuple[int, int]] = []

    def work(k: int) -> None:
        found.extend((n, call(Code(assemble(constant(n), detect())))) for n in range(k, 80, 4))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert sorted(found) == [(n, n) for n in range(80)]


# ---- LLVM's own state -------------------------------------------------------------------------------------------

# Loop-strength reduction turns the three products into running sums; codegen-prepare sinks the comparison.
LOOP = """
define void @loop(ptr %x, ptr %y, i64 %n, i64 %a, i64 %b) {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %head ]
  %p = mul i64 %i, %a
  %q = mul i64 %i, %b
  %from = getelementptr double, ptr %x, i64 %p
  %to = getelementptr double, ptr %y, i64 %q
  %v = load double, ptr %from
  store double %v, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %head, label %done
done:
  ret void
}
"""


def as_somebody_else() -> str:
    """The loop in assembly, through llvmlite alone."""
    assemble(constant(0), detect())  # LLVM is initialised
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=3)
    with llvm.parse_assembly(LOOP) as module:
        return str(machine.emit_assembly(module))


def test_llvms_options_are_put_back_after_a_build_and_after_a_refusal() -> None:
    code = "import llvmlite.binding as llvm; llvm.initialize_all_targets(); llvm.initialize_all_asmprinters()\n"
    code += "machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=3)\n"
    code += f"print(machine.emit_assembly(llvm.parse_assembly({LOOP!r})))"
    never = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()
    assert as_somebody_else().strip() == never
    with pytest.raises(BuildError):
        assemble("nonsense", detect())
    assert as_somebody_else().strip() == never
    _fast_codegen(True)
    try:
        with llvm.parse_assembly(LOOP) as module:
            machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=3)
            assert machine.emit_assembly(module).strip() != never  # so that the comparisons above mean something
    finally:
        _fast_codegen(False)
