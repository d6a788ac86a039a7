"""What a stream gets that cannot encode every character."""

from __future__ import annotations

import io
import sys

import pytest

from stormdrop.report.console import print_table, results


def printed(monkeypatch: pytest.MonkeyPatch, encoding: str) -> list[str]:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding=encoding))
    print_table(results(), ["task", "time", "shape"], [["a", "12.0 µs", "3×3"], ["é", "1.50 ms", "11×11"]])
    sys.stdout.flush()
    return data.getvalue().decode(encoding).splitlines()


def test_tables_are_aligned_where_only_ascii_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, "utf-8")[1:] == ["a     12.0 µs    3×3", "é     1.50 ms  11×11"]
    assert printed(monkeypatch, "ascii")[1:] == ["a     12.0 us    3x3", "\\xe9     1.50 ms  11x11"]
