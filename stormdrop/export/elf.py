"""Relocatable ELF objects: new names for an object's symbols, and an object that holds only data.

A linker needs kernels under names of their own, and weights that need not pass through a compiler. The reader supports
only the format that LLVM writes for 64-bit little-endian machines.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from stormdrop.base.errors import BuildError
from stormdrop.target import ALIGN_BYTES, whole_lines

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_IDENT = b"\x7fELF\x02\x01\x01"
_RELOCATABLE = 1
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_ALLOC = 2
_LOCAL, _GLOBAL, _OBJECT = 0, 1, 1
_HIDDEN = 2
MACHINES = {"x86_64": 62, "aarch64": 183}


def renamed(data: bytes, names: Mapping[str, str]) -> bytes:
    """Returns the object with its global symbols renamed and hidden: a library that contains the object does not export
    the symbols.

    Raises BuildError for a damaged object, and for an object with a global symbol that is not in `names`.
    """
    if data[:7] != _IDENT:
        raise BuildError("not a 64-bit little-endian ELF object")
    changed = bytearray(data)
    try:
        header = _HEADER.unpack_from(data)
        table, entry_bytes, count = header[6], header[11], header[12]
        places = [table + i * entry_bytes for i in range(count)]
        sections = [list(_SECTION.unpack_from(data, at)) for at in places]
        symbols = [s for s in sections if s[1] == _SYMTAB]
        if len(symbols) != 1:
            raise BuildError(f"an object with {len(symbols)} symbol tables")
        offset, size, link = symbols[0][4], symbols[0][5], symbols[0][6]
        strings = sections[link]
        text = data[strings[4] : strings[4] + strings[5]]
        # The new names follow the old names in a copy of the string table at the end of the file: names may share their
        # bytes.
        added = bytearray(text)
        for at in range(offset, offset + size, _SYMBOL.size):
            name, info, other, section, value, extent = _SYMBOL.unpack_from(data, at)
            if info >> 4 == _LOCAL:
                continue
            old = text[name : text.index(b"\0", name)].decode()
            if old not in names:
                raise BuildError(f"an object with the symbol {old!r}")
            _SYMBOL.pack_into(changed, at, len(added), info, other & ~3 | _HIDDEN, section, value, extent)
            added += names[old].encode() + b"\0"
        strings[4], strings[5] = len(changed), len(added)
        _SECTION.pack_into(changed, places[link], *strings)
    except (struct.error, IndexError, ValueError) as error:
        raise BuildError(f"a damaged ELF object: {error}") from error
    return bytes(changed + added)


def data_object(machine: str, symbol: str, nbytes: int, room: int) -> tuple[bytes, bytes]:
    """Returns the parts of an object file before and after its data. The object holds `nbytes` read-only bytes at the
    hidden `symbol`, then zeros up to `room` bytes.

    The caller writes the data between the two parts.
    """
    section_names = b"\0.rodata\0.note.GNU-stack\0.symtab\0.strtab\0.shstrtab\0"
    symbol_names = b"\0" + symbol.encode() + b"\0"
    symbols = bytes(_SYMBOL.size) + _SYMBOL.pack(1, _GLOBAL << 4 | _OBJECT, _HIDDEN, 1, 0, room)
    begin = whole_lines(_HEADER.size)
    tail = bytearray(room - nbytes)
    end = begin + nbytes  # of the data, in the file

    def append(content: bytes) -> int:
        tail.extend(bytes(-(end + len(tail)) % 8))
        at = end + len(tail)
        tail.extend(content)
        return at

    rows = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (_name(section_names, b".rodata"), _PROGBITS, _ALLOC, 0, begin, room, 0, 0, ALIGN_BYTES, 0),
        # Declares that no code in here needs an executable stack.
        (_name(section_names, b".note.GNU-stack"), _PROGBITS, 0, 0, begin + room, 0, 0, 0, 1, 0),
        (_name(section_names, b".symtab"), _SYMTAB, 0, 0, append(symbols), len(symbols), 4, 1, 8, _SYMBOL.size),
        (_name(section_names, b".strtab"), _STRTAB, 0, 0, append(symbol_names), len(symbol_names), 0, 0, 1, 0),
        (_name(section_names, b".shstrtab"), _STRTAB, 0, 0, append(section_names), len(section_names), 0, 0, 1, 0),
    ]
    table = append(b"".join(_SECTION.pack(*row) for row in rows))
    kind = (_IDENT.ljust(16, b"\0"), _RELOCATABLE, MACHINES[machine], 1)
    header = _HEADER.pack(*kind, 0, 0, table, 0, _HEADER.size, 0, 0, _SECTION.size, len(rows), len(rows) - 1)
    return header.ljust(begin, b"\0"), bytes(tail)


def _name(names: bytes, name: bytes) -> int:
    return names.index(b"\0" + name + b"\0") + 1
