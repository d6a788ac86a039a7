"""Runs the checks without pytest; see the package's text."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence

from stormdrop.base.errors import UserError
from stormdrop.device.cuda.driver import open_driver
from tests.cuda.checks import POINTS, Check, checks

HANG_SECONDS = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cuda", description="Checks that need a GPU.")
    parser.add_argument("--points", type=int, default=POINTS, metavar="N", help="random points")
    parser.add_argument("--only", default="", metavar="TEXT", help="checks whose name begins with this")
    parser.add_argument("--seconds", type=float, default=0.0, metavar="S", help="begin no check after so long")
    parser.add_argument("--under", default="", metavar="COMMAND", help="run the checks under compute-sanitizer, say")
    parser.add_argument("--worker", type=int, metavar="FIRST", help=argparse.SUPPRESS)
    given = parser.parse_args()
    chosen = [check for check in checks(given.points) if check.name.startswith(given.only)]
    if given.worker is not None:
        return _work(chosen[given.worker :])
    try:
        open_driver()
    except UserError as error:
        print(error)
        return 2
    began = time.monotonic()
    failures: list[str] = []
    done = 0
    while done < len(chosen) and not (given.seconds and time.monotonic() - began > given.seconds):
        command = [*shlex.split(given.under), sys.executable, "-m", "tests.cuda", *sys.argv[1:], "--worker", str(done)]
        done += _supervise(chosen[done:], command, failures, began + given.seconds if given.seconds else None)
    print(f"{done} of {len(chosen)} checks, {len(failures)} failed, {time.monotonic() - began:.0f} s")
    for name in failures:
        print("failed:", name)
    return min(1, len(failures))


def _work(chosen: Sequence[Check]) -> int:
    """Run checks until one fails in a way that may have cost the context; a line before and after each."""
    for check in chosen:
        print("begin", check.name, flush=True)
        start = time.monotonic()
        try:
            check.run()
        except AssertionError as error:
            print(f"wrong {check.name}: {error}", flush=True)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            print("lost", check.name, flush=True)
            return 1
        else:
            print(f"right {check.name} ({time.monotonic() - start:.2f} s)", flush=True)
    return 0


def _supervise(chosen: Sequence[Check], command: Sequence[str], failures: list[str], end: float | None) -> int:
    """Let a process work on the checks; returns how many it has done, the one that ended it included."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        done, running = 0, False
        for line in _watched(process):
            print(line, end="", flush=True)
            if line.startswith("begin "):
                running = True
            elif line.startswith(("right ", "wrong ", "lost ")):
                running = False
                done += 1
                if not line.startswith("right "):
                    failures.append(line.strip())
                if end is not None and time.monotonic() > end:
                    process.kill()
                    return done
    if running:  # it died
        failures.append(f"{chosen[done].name}: the process ended with {process.returncode}")
        done += 1
    elif process.returncode not in (0, 1):  # compute-sanitizer has something to say
        failures.append(f"up to {chosen[done - 1].name}: the process ended with {process.returncode}")
    return max(done, 1)


def _watched(process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines of a process, which is killed where none comes for too long: a kernel that never ends."""
    assert process.stdout is not None
    timer = threading.Timer(HANG_SECONDS, process.kill)
    timer.start()
    for line in process.stdout:
        timer.cancel()
        yield line
        timer = threading.Timer(HANG_SECONDS, process.kill)
        timer.start()
    timer.cancel()


if __name__ == "__main__":
    sys.exit(main())
