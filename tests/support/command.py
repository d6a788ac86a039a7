"""Calls of the command line in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from stormdrop.cli.main import main


def ran(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


def done(*args: object, code: int = 0) -> Result:
    result = ran(*args)
    assert result.exit_code == code, result.output
    return result


def json_of(*args: object, code: int = 0) -> Any:
    """Returns the JSON of a command."""
    return json.loads(done(*args, "--json", code=code).stdout)


def failed(*args: object, code: int = 1) -> str:
    return refusal(ran(*args), code)


def refusal(result: Result, code: int) -> str:
    """Returns the error of a command: one harmless line on stderr (usage errors may have more), nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr
    assert code == 2 or result.stderr.count("\n") == 1
    return result.stderr
