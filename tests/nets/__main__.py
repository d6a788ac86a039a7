"""The commands of `tests.nets`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from tempfile import TemporaryDirectory

import tests.nets
from tests.nets.catalogue import NETS
from tests.nets.recorded import Results, differences, note


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.nets", description=tests.nets.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command = parser.add_mutually_exclusive_group(required=True)
    command.add_argument("--changed", action="store_true", help="list the entries that are not as recorded")
    command.add_argument("--accept", metavar="REASON", help="record the nets again, with the reason")
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"some of {', '.join(NETS)}; default: all")
    given = parser.parse_args(arguments)
    if unknown := set(given.nets) - set(NETS):
        parser.error(f"no net {', '.join(sorted(unknown))}; give some of {', '.join(NETS)}")
    changes = 0
    for name in given.nets or NETS:
        net = NETS[name]
        before: Results = net.recorded() if net.file.exists() else {}
        now = net.compute()
        lines = differences(before, now)
        changes += len(lines)
        print(f"{name}: {len(lines)} of {len(now)} entries changed", *lines[:SHOWN], sep="\n  ")
        if lines and given.accept is not None:
            net.record(now)
            note(f"{name}, {len(lines)} entries: {given.accept}")
    return 1 if changes and given.changed else 0


SHOWN = 40

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.environ["STORMDROP_CACHE_DIR"] = folder
        sys.exit(main())
