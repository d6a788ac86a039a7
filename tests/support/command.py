"""What is asked of every command that refuses."""

from __future__ import annotations

from click.testing import Result


def refusal(result: Result, code: int) -> str:
    """One harmless line on stderr (usage errors may have more), nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr
    assert code == 2 or result.stderr.count("\n") == 1
    return result.stderr
