"""The kinds of target, as one type; and the measured limits of a machine."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, TypeAlias, cast

from stormdrop.base.errors import UserError
from stormdrop.target.cpu import Cpu
from stormdrop.target.gpu import Gpu

Target: TypeAlias = Cpu | Gpu


def target_from_json(data: Any) -> Target:
    """Returns the target of its JSON, the inverse of its `to_json`; files older than the kinds describe CPUs.

    Raises UserError if `data` is not a target of a known kind.
    """
    if not isinstance(data, Mapping):
        raise UserError("not a target: no JSON object")
    values = cast(Mapping[str, Any], data)
    match values.get("kind", "cpu"):
        case "cpu":
            return Cpu.from_json(values)
        case "gpu":
            return Gpu.from_json(values)
        case kind:
            raise UserError(f"not a target: unknown kind {kind!r:.60}")


LEVELS = ("L1", "L2", "L3", "DRAM")


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The bandwidth of `threads` threads together, each on its own share of `footprint_bytes`."""

    level: str
    threads: int
    footprint_bytes: int
    read_gbs: float
    triad_gbs: float


@dataclass(frozen=True, slots=True)
class Peak:
    """The measured limits of one machine; gflops are f32."""

    key: str
    threads: int
    thread_gflops: float
    gflops: float
    bandwidths: tuple[Bandwidth, ...]

    def bandwidth(self, level: str, threads: int) -> Bandwidth:
        """Returns a row of the table, which has rows for one thread and for all threads."""
        return next(b for b in self.bandwidths if (b.level, b.threads) == (level, threads))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> "Peak":
        """Returns the peak of its JSON, the inverse of `to_json`. Raises ValueError if the text is not a peak."""
        try:
            tree: dict[str, Any] = json.loads(text)
            rows = tuple(Bandwidth(**row) for row in tree.pop("bandwidths"))
            peak = Peak(**tree, bandwidths=rows)
            rates = [peak.thread_gflops, peak.gflops, *(r for row in rows for r in (row.read_gbs, row.triad_gbs))]
            positive = all(0 < rate < math.inf for rate in rates)
            whole = {(row.level, row.threads) for row in rows} == set(product(LEVELS, (1, peak.threads)))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a peak: {error}") from error
        if not (positive and whole):
            raise ValueError("not a peak: a level is missing, or a rate is not a positive number")
        return peak
