"""LLVM, from IR text to machine code in this process: the only module that imports llvmlite.

    text ──assemble──▶ relocatable ELF bytes ──Code──▶ addresses of functions

No optimiser pass runs: the emitter writes good SSA, the code generator does the rest. Objects contain no absolute
addresses and no external symbols, which `Code` rejects. Therefore the bytes can be shipped to another process or to
disk.

LLVM ends the process on some faults that the verifier cannot see (an intrinsic the target cannot select, malformed
inline assembly). Candidates are therefore built in worker processes, never in the user's process.
"""

from __future__ import annotations

import os
import platform
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count
from typing import Any, Protocol

import llvmlite.binding as llvm

from stormdrop.base.errors import BuildError


class TargetLike(Protocol):
    """The description of a machine for LLVM, in LLVM's own strings."""

    @property
    def triple(self) -> str: ...
    @property
    def cpu(self) -> str: ...
    @property
    def features(self) -> str: ...


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A target that every machine of its architecture is: for code that needs nothing special."""

    triple: str
    cpu: str = ""
    features: str = ""


# llvmlite already serialises every call into LLVM; this lock makes each of our operations whole as well, so that a fork
# (which waits for it) never leaves a child with a half-built module, or with llvmlite's lock held by a thread that is
# gone.
_lock = threading.RLock()


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # inline assembly is parsed by the target's own assembler
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@cache
def _machine(triple: str, cpu: str, features: str) -> tuple[Any, str]:
    """Returns the target machine, and the lines that describe it to the parser of a module."""
    _initialise()
    try:
        machine = llvm.Target.from_triple(triple).create_target_machine(
            cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default"
        )
    except RuntimeError as error:
        raise BuildError(f"LLVM has no target {triple!r} (cpu {cpu!r}): {error}") from error
    return machine, f'target datalayout = "{machine.target_data}" target triple = "{triple}" '


def _compile(text: str, target: TargetLike, *, as_object: bool) -> Any:
    if " asm " in text and not target.triple.startswith(llvm.get_process_triple().partition("-")[0] + "-"):
        # LLVM would end the process: llvmlite links every target's code generator but only this machine's assembler.
        raise BuildError(f"inline assembly for {target.triple} can only be compiled on such a machine")
    with _lock:
        machine, preamble = _machine(target.triple, target.cpu, target.features)
        # A context of its own: the global one would keep every constant and type of every module ever parsed.
        with llvm.create_context() as context:
            _fast_codegen(True)
            try:
                # The preamble shares the text's first line, so that LLVM's messages give the text's own line numbers.
                with llvm.parse_assembly(preamble + text, context) as module:
                    module.verify()
                    return machine.emit_object(module) if as_object else machine.emit_assembly(module)
            except RuntimeError as error:
                raise BuildError(f"LLVM refuses the program: {str(error).strip()}") from error
            finally:
                _fast_codegen(False)


def _fast_codegen(on: bool) -> None:
    """Leaves out the two slowest passes over our code, which comes with its addresses already reduced and placed.

    Without the passes code generation takes half the time, and no kernel is slower (measured on convolutions, products,
    softmax, depthwise). The options are globals of LLVM. They are restored after each build, for other users of
    llvmlite in this process.
    """
    for name in ("disable-lsr", "disable-cgp"):
        llvm.set_option("stormdrop", f"-{name}={int(on)}")


def assemble(text: str, target: TargetLike) -> bytes:
    """Compiles LLVM IR text to the bytes of a relocatable, position-independent object.

    Raises BuildError with LLVM's message if the text does not parse or verify, or if LLVM lacks the target.
    """
    return _compile(text, target, as_object=True)


def assembly(text: str, target: TargetLike) -> str:
    """Compiles LLVM IR text to readable assembly, otherwise as `assemble`."""
    return _compile(text, target, as_object=False)


def llvm_version() -> str:
    """Returns the version of the LLVM that generates code in this process."""
    return ".".join(map(str, llvm.llvm_version_info))


def host() -> tuple[str, str, str]:
    """Returns LLVM's triple, cpu name and feature string for the machine this runs on."""
    with _lock:
        return llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


# ---- loading ----------------------------------------------------------------------------------------------------

_ELF_MACHINES = {"x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183}  # platform.machine() → e_machine
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_SYMTAB = 2
_STB_LOCAL = 0


def _global_symbols(data: bytes) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Returns the names that a 64-bit ELF object defines, and the names that it needs. A defined name has its offset in
    its section and the section's size.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise BuildError("not a 64-bit little-endian ELF object")
    defined: dict[str, tuple[int, int]] = {}
    needed: list[str] = []
    try:
        header = _HEADER.unpack_from(data)
        machine, section_offset, section_size, section_count = header[2], header[6], header[11], header[12]
        here = _ELF_MACHINES.get(platform.machine().lower())
        if machine != here:
            raise BuildError(f"the object is for ELF machine {machine}, this machine is {here} ({platform.machine()})")
        sections = [_SECTION.unpack_from(data, section_offset + i * section_size) for i in range(section_count)]
        for _, kind, _, _, offset, size, link, first_global, _, entry_size in sections:
            if kind != _SHT_SYMTAB:
                continue
            names = sections[link][4]
            for at in range(offset + first_global * entry_size, offset + size, entry_size):
                name, info, _, section, value, _ = _SYMBOL.unpack_from(data, at)
                if info >> 4 == _STB_LOCAL:
                    continue
                text = data[names + name : data.index(b"\0", names + name)].decode()
                if section:
                    defined[text] = value, sections[section][5]
                else:
                    needed.append(text)
    except (struct.error, IndexError, ValueError) as error:
        raise BuildError(f"a damaged ELF object: {error}") from error
    return defined, needed


_serial = count()
_OBJECTS_PER_LINKER = 64  # a linker keeps 8 kB for every object it ever saw; making one takes 0.6 ms


@lru_cache(maxsize=1)
def _linker(generation: int) -> Any:
    """Returns the linker of this generation. Every object becomes a library of its own in the linker, so names never
    collide.

    The linker is JITLink, which is as fast as RuntimeDyld (about 0.12 ms an object; MCJIT takes 0.7). JITLink also puts
    an object's sections into one block, which AArch64's ±4 GiB page addressing needs. Libraries keep the linker of
    their generation alive (in C++), so that replacing it here frees it with the last of them.
    """
    _initialise()
    return llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)


def _link(builder: Any) -> Any:
    with _lock:
        serial = next(_serial)
        try:
            return builder.link(_linker(serial // _OBJECTS_PER_LINKER), f"stormdrop.{serial}")
        except RuntimeError as error:
            raise BuildError(f"LLVM cannot load the object: {error}") from error


class Code:
    """The object's code in this process; its addresses live until `close` or until the `Code` is collected.

        Code(assemble(text, target)).address("k")

    Raises BuildError if the bytes are no object of this machine, or if they need a symbol that they do not define.
    Without this check LLVM would take the symbol from any library that the process has loaded.
    """

    _library: Any = None

    def __init__(self, object_bytes: bytes) -> None:
        defined, needed = _global_symbols(object_bytes)
        if needed:
            raise BuildError(f"the object needs external symbols, which are not allowed: {', '.join(needed)}")
        builder = llvm.JITLibraryBuilder().add_object_img(object_bytes)
        for name in defined:
            builder.export_symbol(name)
        self._library = _link(builder)
        self._defined, self.symbols = defined, tuple(defined)

    def address(self, symbol: str) -> int:
        """Returns the address of `symbol` in memory.

        Raises BuildError if the object does not define it or has been closed.
        """
        if self._library is None:
            raise BuildError("this code has been closed")
        if symbol not in self.symbols:
            raise BuildError(f"the object defines no {symbol!r}; it defines {', '.join(self.symbols) or 'nothing'}")
        return self._library[symbol]

    def section(self, symbol: str) -> tuple[int, int]:
        """Returns the address and the size in bytes of the section that holds `symbol`. Raises as `address`."""
        address = self.address(symbol)
        offset, nbytes = self._defined[symbol]
        return address - offset, nbytes

    def close(self) -> None:
        """Frees the code now; no thread may be running it."""
        library, self._library = self._library, None
        if library is not None:
            with _lock:
                library.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit the code stays: a daemon thread may still be running it. (llvmlite's own finaliser thinks likewise.)
        if not is_finalizing():
            self.close()
