"""The kinds of target, as one type; and the measured limits of a machine."""

from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias, cast

from stormdrop.base.codec import Count, Malformed, Rate, Size, decode
from stormdrop.base.errors import UserError
from stormdrop.target.coefficients import UNWRITTEN_VERSION
from stormdrop.target.cpu import ISAS, Cpu
from stormdrop.target.gpu import ARCHITECTURES, Gpu

Target: TypeAlias = Cpu | Gpu


def target_from_json(data: Any) -> Target:
    """Returns the target of its JSON of any version, the inverse of its `to_json`.

    Unknown fields are ignored, missing fields have their default; files older than the kinds describe CPUs. Raises
    UserError if a field without a default is missing, or if a value is invalid.
    """
    if not isinstance(data, dict):
        raise UserError("not a target: no JSON object")
    tree = cast("dict[str, Any]", data)
    try:
        if type(is_cold := tree.get("cold", False)) is not bool:
            raise Malformed(f"{is_cold!r:.60} is not a bool", "cold")
        tree = tree | {"temperature": "cold" if is_cold else "warm"}
        match tree.get("kind", "cpu"):
            case "cpu":
                target = decode(Cpu, {"coefficients": {"version": UNWRITTEN_VERSION}} | tree)
                if target.isa not in ISAS or ISAS[target.isa].vector_bytes != target.vector_bytes:
                    raise Malformed(f"unknown instruction set {target.isa!r:.60} of {target.vector_bytes} bytes")
            case "gpu":
                target = decode(Gpu, tree)
                if target.architecture not in ARCHITECTURES:
                    raise Malformed(f"unknown architecture {target.architecture!r:.60}")
            case kind:
                raise Malformed(f"unknown kind {kind!r:.60}")
    except Malformed as error:
        raise UserError(f"not a target: {error}") from error
    return target


LEVELS = ("L1", "L2", "L3", "DRAM")


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The bandwidth of `threads` threads together, each on its own share of `footprint_bytes`."""

    level: str
    threads: Count
    footprint_bytes: Size
    read_gbs: Rate
    triad_gbs: Rate


@dataclass(frozen=True, slots=True)
class Peak:
    """The measured limits of one machine; gflops are f32."""

    key: str
    threads: Count
    thread_gflops: Rate
    gflops: Rate
    bandwidths: tuple[Bandwidth, ...]

    def __post_init__(self) -> None:
        if {(row.level, row.threads) for row in self.bandwidths} != set(product(LEVELS, (1, self.threads))):
            raise ValueError("a peak needs a bandwidth of each level, for one thread and for all threads")

    def bandwidth(self, level: str, threads: int) -> Bandwidth:
        """Returns a row of the table, which has rows for one thread and for all threads."""
        return next(b for b in self.bandwidths if (b.level, b.threads) == (level, threads))
