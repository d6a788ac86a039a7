"""What `stormdrop doctor` found, for a person."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from stormdrop.driver.doctor import Diagnosis
from stormdrop.report.console import heading
from stormdrop.report.text import clean, threads_text


def print_diagnosis(console: Console, found: Diagnosis) -> None:
    """One line for each check, and what to do where it failed."""
    width = max(len(check.name) for check in found.checks)
    for check in found.checks:
        mark = Text("ok    " if check.ok else "FAILED", style="green" if check.ok else "bold red")
        console.print(Text.assemble(mark, f"  {check.name:{width}}  {clean(check.detail)}"), soft_wrap=True)
        if check.advice:
            console.print(Text(f"{'':{width + 10}}{check.advice}"), soft_wrap=True)
    console.print()
    broken = sum(not check.ok for check in found.checks)
    if broken:
        heading(console, f"{broken} of {len(found.checks)} checks failed: see the advice above")
    else:
        heading(console, f"everything works, with {threads_text(found.threads)}")
