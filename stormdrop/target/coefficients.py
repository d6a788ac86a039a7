"""The calibrated coefficients of the cost estimate of a program on a CPU, as one value.

The origin of each number stands beside it:

- *znver4*: chosen so that the estimate ranks kernels like their measurements on a Zen 4 server core
- *counted*: instructions of the generated code
- *chosen*: a limit or a small preference

A target carries the coefficients that its estimates use: `CPU_COEFFICIENTS`, or a fit of `stormdrop calibrate`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any

from stormdrop.base.errors import UserError

FITTED = (
    "load_slots",
    "gather_slots",
    "tile_cycles",
    "store_cycles",
    "reduce_start_cycles",
    "l1_share",
    "l2_share",
    "l3_share",
    "cold_bandwidth_share",
    "overlap_share",
    "l2_overlap_share",
    "fork_seconds",
    "conflict_slope",
    "unrolled_guard_cycles",
    "guard_code_seconds",
    "code_seconds",
)
"""The coefficients that a fit may change. Limits are excluded: measurements must not decide a schedule's legality."""


@dataclass(frozen=True, slots=True)
class CpuCoefficients:
    version: int
    """The version of the formulas that use the coefficients."""

    # Vector operations per operation of an expression; all remaining operations take one vector operation
    function_operations: float = 20.0  # exp, tanh, erf, ...; counted
    root_operations: float = 4.0  # sqrt, rsqrt; znver4
    division_operations: float = 8.0  # znver4
    minmax_operations: float = 3.0  # with its tests for NaN; counted
    pow_operations: float = 80.0  # counted
    fmod_operations: float = 400.0  # counted, for quotients that are not huge

    # Load slots: one full vector loaded is one
    load_slots: float = 1.0  # scale of all load slots, for the rate at which a real core issues loads
    folded_broadcast_slots: float = 0.5  # an element that the multiply-add itself broadcasts; znver4
    broadcast_slots: float = 1.2  # where an instruction of its own does; AVX2 on znver4
    gather_slots: float = 2.0  # for every lane; znver4
    transpose_slots: float = 5.0  # for every vector of a register-blocked transpose; counted

    # Cycles beside the multiply-adds of a register tile
    tile_cycles: float = 12.0  # its addresses and bounds; znver4
    store_cycles: float = 2.0  # for every accumulator; znver4
    reload_cycles: float = 3.0  # for every accumulator that goes through memory between two blocks; znver4
    reduce_start_cycles: float = 8.0  # entering the innermost reduce loop; znver4
    long_guard_cycles: float = 2.0  # for every row of a guarded operand, if the loop is long; znver4
    short_guard_cycles: float = 0.5  # the same if it is short
    long_loop_turns: float = 16.0
    unrolled_guard_cycles: float = 3.0  # for every guarded load of an unrolled transform; znver4
    guard_code_seconds: float = 3e-7  # for its code, which no near cache holds where a model runs it: 36 loads of a
    # Winograd transform take 30 KB; znver4
    hiding_accumulators: float = 3.0  # as many hide the loop's own instructions; znver4

    # Caches
    # Both numbers are x86's on every target: a target's own numbers would change features and default schedules
    line_bytes: int = 64  # the traffic of any shorter run
    way_bytes: int = 4096  # rows this far apart share a set
    l1_share: float = 0.8  # of the size that operands may fill; nominal
    l2_share: float = 0.6  # a panel beyond 0.6 of the L2 loses a quarter of the speed; znver4
    l3_share: float = 0.7  # nominal
    conflict_slope: float = 0.25  # slowdown for every further line per way of one set; znver4: a 1x1 convolution of
    # 1,024 channels is 1.4 times slower with 14 rows in a tile than with 7, and 1.2 times with 12
    most_conflicts: float = 4.0
    stream_slope: float = 0.1  # slowdown for every row beyond those that the prefetchers follow; znver4
    free_streams: float = 8.0
    cold_bandwidth_share: float = 1.0  # of DRAM's, for constants out of cache. Before they were prefetched 0.65: a
    # Winograd convolution with 9.4 MB of filters took 620 µs in a model instead of 415 warm; znver4

    # Joining the bounds
    overlap_share: float = 0.03  # of the loads, L3 and DRAM that is not hidden behind the largest bound; znver4
    l2_overlap_share: float = 0.01  # streaming from the L2 hides best; znver4
    fork_seconds: float = 1.5e-6  # for every phase; znver4, two threads
    thread_barrier_seconds: float = 0.075e-6  # of a barrier, for every thread: 0.15 µs of two Zen 4 cores, 1.2 µs of 16
    # Emerald Rapids cores (python -m benchmarks.pool)
    code_seconds: float = 1e-9  # to fetch one instruction that no near cache holds, as in a model; znver4
    code_scale: float = 2e4  # the shorter of two programs with equal estimates wins, as it builds faster; chosen

    # Limits, all of them chosen
    most_instructions: float = 1000.0
    most_tile_bodies: float = 4.0  # the full register tile and its remainders
    most_scratch_bytes: int = 16 << 20
    most_unrolled_rows: float = 8.0  # of a transform that are live at once: its rows may go through memory

    def to_json(self) -> dict[str, Any]:
        """Returns the version and the coefficients that differ from their nominal values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"version": self.version} | {n: v for n, v in values.items() if v != getattr(CPU_COEFFICIENTS, n)}

    @staticmethod
    def from_json(tree: Any) -> "CpuCoefficients":
        """Returns the coefficients of their JSON, the inverse of `to_json`.

        JSON of another version gives its version alone: its numbers belong to other formulas. Raises UserError for JSON
        that no version writes.
        """
        version = tree.get("version") if isinstance(tree, Mapping) else None  # pyright: ignore
        if type(version) is not int:
            raise UserError("not coefficients: they have no version")
        if version != CPU_COEFFICIENTS.version:
            return replace(CPU_COEFFICIENTS, version=version)
        changed = {str(name): value for name, value in tree.items() if name != "version"}
        for name, value in changed.items():
            if name not in FITTED or type(value) not in (int, float) or not (isfinite(value) and value >= 0):
                raise UserError(f"not a fitted coefficient: {name!r:.60} = {value!r:.60}")
        return replace(CPU_COEFFICIENTS, **{name: float(value) for name, value in changed.items()})


CPU_COEFFICIENTS = CpuCoefficients(version=3)
"""The nominal coefficients, of a Zen 4 server core. Raise the version when a coefficient or a formula that uses it
changes: stored estimates are then recomputed."""
UNWRITTEN_VERSION = 3
"""The version of the nominal coefficients of a target whose JSON has none. The JSON of later versions contains it."""
