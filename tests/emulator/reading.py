"""Reads LLVM text: functions of basic blocks of instructions, and constants in memory.

The part of the language that `stormdrop.codegen` and hand-written kernels use; anything else is `Unsupported`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.emulator.faults import Unsupported
from tests.emulator.llvm_types import FLOATS, Type, float_of_hex

_TOKEN = re.compile(
    r'[%@!](?:"[^"]*"|[\w.$-]+)|![{]|"[^"]*"|0x[0-9A-Fa-f]+|-?\d+\.\d*(?:[eE][+-]?\d+)?|-?\d+|[A-Za-z_][\w.]*|[^\s]'
)
_LABEL = re.compile(r'^("[^"]*"|[\w.$-]+):')
_FLAGS = frozenset(
    re.findall(
        r"\w+",
        "nuw nsw exact inbounds nusw disjoint nneg samesign fast nnan ninf nsz arcp contract afn reassoc "
        "volatile tail musttail notail",
    )
)
BINARY = frozenset(
    re.findall(r"\w+", "add sub mul udiv sdiv urem srem shl lshr ashr and or xor fadd fsub fmul fdiv frem")
)
CASTS = frozenset(
    re.findall(
        r"\w+", "trunc zext sext fptrunc fpext fptoui fptosi uitofp sitofp ptrtoint inttoptr bitcast addrspacecast"
    )
)
VOID = Type("void")


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: a register or symbol by name, else a constant."""

    type: Type
    name: str = ""
    constant: Any = None


@dataclass(slots=True)
class Instruction:
    text: str
    line: int
    """In the module's text, from 1."""
    opcode: str
    result: str = ""
    type: Type = VOID
    """Of the result; of the stored value."""
    operands: tuple[Value, ...] = ()
    name: str = ""
    """The predicate of a comparison, the callee of a call."""
    labels: tuple[str, ...] = ()
    """Where branches go and where the operands of a phi come from."""
    align: int = 1
    source: Type = VOID
    """The element type of a getelementptr, the pointer type of a load or store."""
    is_invariant: bool = False

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(slots=True)
class Block:
    label: str
    instructions: list[Instruction] = field(default_factory=list[Instruction])


@dataclass(slots=True)
class Function:
    name: str
    result: Type
    parameters: tuple[Value, ...]
    attributes: str
    blocks: list[Block]

    def attribute(self, name: str) -> int | None:
        """The number of an attribute like "nvvm.maxntid"."""
        found = re.search(rf'"{re.escape(name)}"="(\d+)"', self.attributes)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Global:
    """A constant in memory; without data, the shared memory of a block."""

    name: str
    space: int
    align: int
    data: bytes | None


@dataclass(slots=True)
class Module:
    functions: dict[str, Function]
    constants: dict[str, Global]


def read(text: str) -> Module:
    """Raises Unsupported."""
    module = Module({}, {})
    groups = dict(re.findall(r"^attributes (#\d+) = \{(.*)\}", text, re.MULTILINE))
    function: Function | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition(";")[0].strip() if ";" in raw else raw.strip()
        if not line:
            continue
        if function is not None:
            if line == "}":
                function = None
                continue
            label = _LABEL.match(line)
            if label:
                function.blocks.append(Block(label[1]))
                continue
            if not function.blocks:
                function.blocks.append(Block("entry"))
            function.blocks[-1].instructions.append(_Line(line, number).instruction())
        elif line.startswith("define"):
            function = _Line(line, number).header(groups)
            module.functions[function.name] = function
        elif line.startswith("@"):
            constant = _Line(line, number).constant()
            module.constants[constant.name] = constant
        elif not line.startswith(("declare", "target", "attributes", "source_filename", "!")):
            raise Unsupported(f"line {number}: {line}")
    return module


class _Line:
    """One line while it is read."""

    def __init__(self, text: str, number: int) -> None:
        self.text, self.number = text, number
        self.tokens: list[str] = _TOKEN.findall(text)
        self.at = 0

    def unknown(self) -> Unsupported:
        return Unsupported(f"line {self.number}, at token {self.at}: {self.text}")

    # Tokens

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.next
        if not token or (expected and token != expected):
            raise self.unknown()
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.next != token:
            return False
        self.at += 1
        return True

    def flags(self) -> None:
        while self.next in _FLAGS:
            self.at += 1

    # Types and values

    def type(self) -> Type:
        token = self.take()
        if token == "<":
            lanes = int(self.take())
            self.take("x")
            element = self.type()
            self.take(">")
            return Type(element.element, lanes, element.space)
        if token == "[":
            count = int(self.take())
            self.take("x")
            item = self.type()
            self.take("]")
            return Type("array", fields=(item,) * count)
        if token == "{":
            fields = [self.type()]
            while self.accept(","):
                fields.append(self.type())
            self.take("}")
            return Type("struct", fields=tuple(fields))
        if token == "ptr":
            return Type("ptr", space=self.address_space())
        if token == "void":
            return VOID
        if token not in FLOATS and not re.fullmatch(r"i\d+", token):
            raise self.unknown()
        return Type(token)

    def address_space(self) -> int:
        if not self.accept("addrspace"):
            return 0
        self.take("(")
        space = int(self.take())
        self.take(")")
        return space

    def value(self, type: Type) -> Value:
        """Of a known type."""
        token = self.next
        if token[:1] in "%@" and token:
            self.at += 1
            return Value(type, token)
        if token == "getelementptr":
            return Value(type, self._symbol_offset())
        return Value(type, constant=self.literal(type))

    def _symbol_offset(self) -> str:
        """The constant expression `getelementptr (i8, ptr @symbol, i32 8)`, as `@symbol+8`."""
        self.take("getelementptr")
        self.flags()
        self.take("(")
        size = self.type().nbytes
        self.take(",")
        self.type()
        name = self.take()
        self.take(",")
        index = self.typed()
        self.take(")")
        return f"{name}+{int(index.constant) * size}"

    def literal(self, type: Type) -> Any:
        token = self.take()
        if token in ("poison", "undef"):
            return type.garbage()
        if token in ("zeroinitializer", "null"):
            return type.zero()
        if token == "splat":
            self.take("(")
            item = self.literal(self.type())
            self.take(")")
            return np.full(type.lanes, item, type.dtype)
        if token == "<":
            items = [self.literal(self.type())]
            while self.accept(","):
                items.append(self.literal(self.type()))
            self.take(">")
            return np.array(items, type.dtype)
        if token in ("true", "false"):
            return type.constant(token == "true")
        if token.startswith("0x"):
            return type.constant(float_of_hex(token))
        if re.fullmatch(r"-?\d+", token):
            return type.constant(int(token))
        if re.fullmatch(r"-?\d+\..*", token):
            return type.constant(float(token))
        raise self.unknown()

    def typed(self) -> Value:
        type = self.type()
        return self.value(type)

    # Lines outside functions

    def skip_group(self) -> None:
        """The rest of a bracket that was just opened."""
        depth = 1
        while depth:
            token = self.take()
            depth += (token == "(") - (token == ")")

    def header(self, groups: dict[str, str]) -> Function:
        self.take("define")
        while self.next in ("internal", "private", "ptx_kernel", "dso_local", "linkonce_odr"):
            self.at += 1
        result = self.type()
        name = self.take()[1:]
        self.take("(")
        parameters: list[Value] = []
        while not self.accept(")"):
            type = self.type()
            while not self.next.startswith("%"):
                if self.take() == "(":
                    self.skip_group()
            parameters.append(Value(type, self.take()))
            self.accept(",")
        rest = " ".join(self.tokens[self.at :]).replace("# ", "#").replace(" = ", "=")
        rest += " ".join(groups.get(group, "") for group in re.findall(r"#\d+", rest))
        return Function(name, result, tuple(parameters), rest, [])

    def constant(self) -> Global:
        name = self.take()
        self.take("=")
        space = 0
        while (word := self.take()) not in ("constant", "global"):
            if word == "addrspace":
                self.at -= 1
                space = self.address_space()
        type = self.type()
        data = None if self.next in ("", ",", "undef") else self._initial(type)
        found = re.search(r"align (\d+)", self.text)
        return Global(name, space, int(found[1]) if found else 1, data)

    def _initial(self, type: Type) -> bytes:
        if type.element != "array":
            return np.asarray(self.literal(type)).tobytes()
        if self.accept("zeroinitializer"):
            return bytes(type.nbytes)
        self.take("[")
        data = bytearray()
        for k in range(len(type.fields)):
            if k:
                self.take(",")
            data += self._initial(self.type())
        self.take("]")
        return bytes(data)

    # Instructions

    def instruction(self) -> Instruction:
        result = ""
        if self.next.startswith("%"):
            result = self.take()
            self.take("=")
        self.flags()
        opcode = self.take()
        made = Instruction(self.text, self.number, opcode, result)
        self.flags()
        if opcode in BINARY:
            made.type = self.type()
            first = self.value(made.type)
            self.take(",")
            made.operands = (first, self.value(made.type))
        elif opcode in CASTS:
            source = self.typed()
            self.take("to")
            made.type, made.operands = self.type(), (source,)
        else:
            self._other(made)
        return made

    def _other(self, made: Instruction) -> None:
        match made.opcode:
            case "fneg" | "freeze":
                made.operands = (self.typed(),)
                made.type = made.operands[0].type
            case "icmp" | "fcmp":
                made.name = self.take()
                first = self.typed()
                self.take(",")
                made.operands = (first, self.value(first.type))
                made.type = Type("i1", first.type.lanes)
            case "select" | "insertelement" | "shufflevector" | "extractelement":
                made.operands = tuple(self._list())
                made.type = self._result(made)
            case "getelementptr":
                made.source = self.type()
                self.take(",")
                made.operands = tuple(self._list())
                vector = max(made.operands, key=lambda operand: operand.type.lanes).type
                made.type = Type("ptr", vector.lanes, made.operands[0].type.space)
            case "load":
                made.type = self.type()
                self.take(",")
                made.operands = (self.typed(),)
                self._memory(made)
            case "store":
                made.operands = tuple(self._list(2))
                made.type = made.operands[0].type
                self._memory(made)
            case "phi":
                made.type = self.type()
                self._incoming(made)
            case "br":
                self._branch(made)
            case "ret":
                if not self.accept("void"):
                    made.operands = (self.typed(),)
            case "unreachable":
                pass
            case "call":
                self._call(made)
            case "extractvalue":
                source = self.typed()
                self.take(",")
                made.operands = (source,)
                made.align = int(self.take())  # the field's number
                made.type = source.type.fields[made.align]
            case _:
                raise self.unknown()

    def _list(self, count: int = 100) -> list[Value]:
        values = [self.typed()]
        while len(values) < count and self.accept(","):
            values.append(self.typed())
        return values

    def _result(self, made: Instruction) -> Type:
        first = made.operands[0].type
        match made.opcode:
            case "select":
                return made.operands[1].type
            case "shufflevector":
                return Type(first.element, made.operands[2].type.lanes, first.space)
            case "extractelement":
                return first.scalar
            case _:
                return first

    def _memory(self, made: Instruction) -> None:
        found = re.search(r", align (\d+)", self.text)
        made.align = int(found[1]) if found else made.type.item_bytes
        made.is_invariant = "!invariant.load" in self.text

    def _incoming(self, made: Instruction) -> None:
        operands: list[Value] = []
        labels: list[str] = []
        while True:
            self.take("[")
            operands.append(self.value(made.type))
            self.take(",")
            labels.append(self.take()[1:])
            self.take("]")
            if not self.accept(","):
                break
        made.operands, made.labels = tuple(operands), tuple(labels)

    def _branch(self, made: Instruction) -> None:
        if self.accept("label"):
            made.labels = (self.take()[1:],)
            return
        made.operands = (self.typed(),)
        labels: list[str] = []
        for _ in range(2):
            self.take(",")
            self.take("label")
            labels.append(self.take()[1:])
        made.labels = tuple(labels)

    def _call(self, made: Instruction) -> None:
        made.type = self.type()
        made.name = self.take()[1:]
        self.take("(")
        operands: list[Value] = []
        while not self.accept(")"):
            type = self.type()
            while re.fullmatch(r"[a-z_]+", self.next) and self.next not in (
                "poison",
                "undef",
                "zeroinitializer",
                "null",
                "splat",
                "true",
                "false",
            ):
                if self.take() == "align":
                    self.take()
                elif self.accept("("):
                    self.skip_group()
            operands.append(self.value(type))
            self.accept(",")
        made.operands = tuple(operands)
