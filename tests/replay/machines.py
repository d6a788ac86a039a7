"""The five machines that cases are recorded for: data, and none of them this one."""

from __future__ import annotations

import json
from functools import cache

from stormdrop.target.machine import Target, target_from_json
from tests.replay.cases import DATA

ISAS = ("avx512", "avx2", "sse", "neon", "sve512")


def machine(isa: str, threads: int) -> Target:
    return _machines()[isa].with_threads(threads)


@cache
def _machines() -> dict[str, Target]:
    return {isa: target_from_json(values) for isa, values in json.loads((DATA / "machines.json").read_text()).items()}
