"""PTX to machine code by nvJitLink, NVIDIA's assembler as a library: the wheel `nvidia-nvjitlink`, no driver, no GPU.

    cubin = assemble_ptx(ptx, "sm_90")
    cubin.registers                               # of a thread, by function

The driver has an assembler, too: PTX can be loaded unchanged. PTX is used if the wheel is missing, or if the driver is
older than the library. Such a driver might not load the library's machine code (`machine_code`).
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Mapping
from ctypes import byref, c_int, c_size_t, c_uint, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache
from glob import escape, glob
from pathlib import Path
from typing import Any

from stormdrop.base.errors import BuildError, UserError
from stormdrop.device.cuda.driver import driver_version

NAME = "libnvJitLink.so"
INSTALL = "python -m pip install 'stormdrop[cuda]'"
_PTX = 2  # nvJitLinkInputType
_TOOLKITS = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib")


class NoAssembler(UserError):
    """The error for an absent nvJitLink; the message has the command that installs it."""


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code for one architecture, and the assembler's figures of each function in it."""

    code: bytes
    registers: Mapping[str, int]
    """Registers of a thread."""
    spilled_bytes: Mapping[str, int]
    """Stored to and loaded from local memory, for lack of registers."""


class NvJitLink:
    """The library. `library` has the functions as attributes: a `CDLL`, or a substitute."""

    def __init__(self, library: Any, path: str) -> None:
        self._library, self.path = library, path
        major, minor = c_uint(), c_uint()
        library.nvJitLinkVersion(byref(major), byref(minor))
        self.version = major.value, minor.value
        """The version of CUDA to which the library belongs."""

    def assemble(self, ptx: str, architecture: str) -> Cubin:
        """Raises BuildError with the assembler's message."""
        options = [f"-arch={architecture}".encode(), b"-O3", b"-verbose"]
        handle = c_void_p()
        code = self._library.nvJitLinkCreate(
            byref(handle), c_uint32(len(options)), (ctypes.c_char_p * len(options))(*options)
        )
        if code:
            raise BuildError(
                f"nvJitLink {self.version[0]}.{self.version[1]} does not assemble for {architecture} ({code})"
            )
        try:
            data = ptx.encode() + b"\0"
            code = self._library.nvJitLinkAddData(handle, c_int(_PTX), data, c_size_t(len(data)), b"kernel.ptx")
            code = code or self._library.nvJitLinkComplete(handle)
            if code:
                reason = " ".join(self._text("ErrorLog", handle).split())
                raise BuildError(f"nvJitLink refuses the PTX ({code}): {reason}")
            log = self._text("InfoLog", handle)
            return Cubin(self._bytes("LinkedCubin", handle), *_figures(log))
        finally:
            self._library.nvJitLinkDestroy(byref(handle))

    def _bytes(self, what: str, handle: c_void_p) -> bytes:
        size = c_size_t()
        getattr(self._library, f"nvJitLinkGet{what}Size")(handle, byref(size))
        data = ctypes.create_string_buffer(size.value + 1)
        getattr(self._library, f"nvJitLinkGet{what}")(handle, data)
        return data.raw[: size.value]

    def _text(self, what: str, handle: c_void_p) -> str:
        return self._bytes(what, handle).partition(b"\0")[0].decode(errors="replace")


_FUNCTION = re.compile(r"Function properties for (\S+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")


def _figures(log: str) -> tuple[dict[str, int], dict[str, int]]:
    """Returns registers and spilled bytes of each function."""
    registers: dict[str, int] = {}
    spilled: dict[str, int] = {}
    function = ""
    for line in log.splitlines():
        if match := _FUNCTION.search(line):
            function = match[1]
        if match := _SPILLS.search(line):
            spilled[function] = int(match[1]) + int(match[2])
        if match := _USED.search(line):
            registers[function] = int(match[1])
    return registers, spilled


def _library_paths() -> list[str]:
    """Returns libraries of wheels, the newest first, then libraries of toolkits."""
    wheels = {path for root in sys.path for path in glob(f"{escape(root or '.')}/nvidia/*/lib/{NAME}.*")}
    toolkits = {path for folder in _TOOLKITS for path in glob(f"{folder}/{NAME}.[0-9]*")}

    def newest(path: str) -> tuple[int, ...]:
        return tuple(-int(n) for n in re.findall(r"\d+", Path(path).name))

    return [*sorted(wheels, key=newest), *sorted(toolkits, key=newest)]


@cache
def assembler() -> NvJitLink:
    """Returns the library of this installation. Raises NoAssembler."""
    reasons: list[str] = []
    for path in _library_paths():
        try:
            library = ctypes.CDLL(path)
            return NvJitLink(library, path)
        except (OSError, AttributeError) as error:  # of another machine, or without the functions
            reasons.append(f"{path}: {error}")
    why = f" ({reasons[0]})" if reasons else ""
    raise NoAssembler(f"nvJitLink, which turns PTX into machine code, is not installed{why}: {INSTALL}")


def assemble_ptx(ptx: str, architecture: str) -> Cubin:
    """Assembles PTX for an architecture such as "sm_90". Raises NoAssembler, BuildError."""
    return assembler().assemble(ptx, architecture)


def machine_code(ptx: str, architecture: str) -> bytes:
    """Returns code for the driver of a GPU: a cubin, or PTX.

    It is PTX if nvJitLink is missing but a driver is there, or if the driver is of an earlier major version of CUDA
    than nvJitLink.

    Raises NoAssembler if there is neither, and BuildError.
    """
    driver = driver_version()
    try:
        library = assembler()
    except NoAssembler:
        if driver is None:
            raise
        return ptx.encode()
    if driver is not None and library.version[0] > driver[0]:
        return ptx.encode()
    return library.assemble(ptx, architecture).code
