"""The long tests with PyTorch: `python -m tests.pytorch.suite`, or `make torch`.

Every model must agree with eager mode, and every recorded operator must still pass. `--record` writes what was found
to results.json, whose numbers `docs/pytorch.md` shows.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict
from typing import Any

import click

from stormdrop.base.errors import StormdropError
from tests.pytorch.suite import RESULTS, recorded


@click.command()
@click.option("--models/--no-models", default=True, help="Compare whole networks.")
@click.option("--operators/--no-operators", default=True, help="Run OpInfo's samples of the recorded operators.")
@click.option("--all-operators", is_flag=True, help="Run the samples of all operators that PyTorch has.")
@click.option("--samples", default=1, help="How many samples of each operator and type.")
@click.option("--record", is_flag=True, help="Write results.json.")
def main(models: bool, operators: bool, all_operators: bool, samples: int, record: bool) -> None:
    warnings.simplefilter("ignore")
    results = recorded()
    failures: list[str] = []
    if models:
        results["models"] = _models(failures)
    if operators or all_operators:
        results["operators"] = _operators(failures, None if all_operators else list(results["operators"]), samples)
    if record:
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    for failure in failures:
        click.echo(f"FAILED {failure}", err=True)
    sys.exit(bool(failures))


def _models(failures: list[str]) -> dict[str, Any]:
    from tests.pytorch.suite.models import MODELS, agreement

    found: dict[str, Any] = {}
    for name in MODELS:
        try:
            result = agreement(name)
        except StormdropError as error:
            failures.append(f"{name}: {error}")
            continue
        click.echo(f"{name}: {result.kernels} kernels, errors {result.compiled:.1e} and {result.in_torch_compile:.1e}")
        found[name] = {key: value for key, value in asdict(result).items() if key != "model"}
        if not result.is_right:
            failures.append(str(result))
    return found


def _operators(failures: list[str], chosen: list[str] | None, samples: int) -> dict[str, list[str]]:
    """The types for which all samples of an operator are right."""
    from tests.pytorch.suite.operators import names, outcomes

    found: dict[str, list[str]] = {}
    for name in chosen if chosen is not None else names():
        for result in outcomes(name, samples):
            failures += [f"{name} {result.type}: {text}" for text in result.wrong]
            if result.right and not result.refused and not result.wrong:
                found.setdefault(name, []).append(result.type)
            click.echo(f"{name} {result.type}: {result.right} right, {len(result.refused)} refused")
    if chosen is not None:
        failures += [f"{name} is refused" for name in chosen if name not in found]
    return found


main()
