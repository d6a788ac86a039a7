"""One line of text, whatever it is made from."""

from __future__ import annotations

import pytest

from stormdrop.report.text import (
    bytes_text,
    clean,
    counted,
    node_text,
    one_line,
    seconds_text,
    share_text,
    span_text,
    speed_text,
)
from tests.support.searches import HOSTILE


def test_printable_text_stays_as_it_is() -> None:
    assert clean("C2D µ → [bold]x[/]") == "C2D µ → [bold]x[/]"


def test_everything_that_moves_the_cursor_is_escaped() -> None:
    assert clean("a\x1b[2Jb\r\n\x07\u202e\x9b\u2028") == "a\\x1b[2Jb\\r\\n\\x07\\u202e\\x9b\\u2028"
    assert clean(HOSTILE).isprintable()


def test_a_path_that_is_no_utf8_can_be_printed() -> None:
    assert clean(b"\xff.db".decode(errors="surrogateescape")).encode() == b"\\udcff.db"


def test_kept_characters_are_kept() -> None:
    assert clean("a\n\tb\x00", keep="\n\t") == "a\n\tb\\x00"


def test_a_message_becomes_one_line_of_bounded_length() -> None:
    assert one_line("first\n  second") == "first second"
    assert one_line("x" * 300, 10) == "xxxxxxxxx…"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.04e-3, "1.04 ms"),
        (34.7e-3, "34.7 ms"),
        (125.0, "125 s"),
        (3e-9, "3.00 ns"),
        (0.0, "0.00 ns"),
        (float("nan"), "unknown"),
    ],
)
def test_times_have_three_digits_and_a_fitting_unit(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (59.0, "59.0 s"), (125.9, "2:05 min"), (3725.0, "1:02:05 h")]
)
def test_waiting_is_told_in_minutes_and_hours(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_a_task_without_operations_has_a_time_only() -> None:
    assert speed_text(1e-6, 0.0, 100.0) == "1.00 µs"
    assert speed_text(1e-6, 50e3) == "1.00 µs, 50.0 GFLOP/s"
    assert speed_text(1e-6, 50e3, 100.0) == "1.00 µs, 50.0 GFLOP/s, 50.0% of peak"


def test_a_nominal_rate_above_the_peak_is_no_share_of_it() -> None:
    assert speed_text(1e-6, 198e3, 100.0) == "1.00 µs, 198.0 GFLOP/s"
    assert (share_text(100.0, 100.0), share_text(198.0, 100.0), share_text(None, 100.0)) == ("100.0%", "", "")


def test_amounts() -> None:
    assert (counted(1, "trial"), counted(2, "sketch", "sketches")) == ("1 trial", "2 sketches")
    assert (bytes_text(12), bytes_text(3 << 20)) == ("12 bytes", "3 MiB")


def test_a_long_name_of_a_node_keeps_its_end() -> None:
    assert node_text("conv\x1b") == "conv\\x1b"
    assert node_text("/model.22/cv3.0.0/conv/Conv", 16) == "…3.0.0/conv/Conv"
