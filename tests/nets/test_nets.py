"""Every net gives its recorded results. The commands of `tests.nets` list the changes, and record them on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nets import __main__ as command
from tests.nets import recorded
from tests.nets.catalogue import NETS
from tests.nets.json_keys import key_paths
from tests.nets.models import ONNX_VERSION, node_suite
from tests.nets.recorded import Net, differences

SHOWN = 20
CURE = 'python -m tests.nets --accept "why" records the nets again'


@pytest.mark.parametrize("name", NETS)
def test_a_net_gives_its_recorded_results(name: str) -> None:
    before, now = NETS[name].recorded(), NETS[name].compute()
    if before.get(ONNX_VERSION) != now.get(ONNX_VERSION):
        pytest.skip("the net was recorded with another version of onnx, which has other cases")
    lines = differences(before, now)
    assert not lines, "\n".join([f"{len(lines)} entries changed; {CURE}", *lines[:SHOWN]])


def test_a_difference_names_the_entry_and_both_results() -> None:
    before, now = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "5", "d": "4"}
    assert differences(before, now) == ["b: 2 -> 5", "c: 3 -> gone", "d: not recorded -> 4"]


def test_keys_are_listed_by_path_and_closed_objects_are_not_entered() -> None:
    tree = {"tasks": [{"id": 1}, {"id": 2, "schedule": {"i": 4}}], "threads": 1}
    assert sorted(set(key_paths(tree))) == ["tasks", "tasks[].id", "tasks[].schedule", "threads"]


def test_a_case_that_is_refused_is_recorded_by_the_class_of_its_error() -> None:
    assert node_suite("test_sequence_insert_at_back")["test_sequence_insert_at_back"] == "has an input that is no array"
    assert "UnsupportedOperator" in NETS["node_suite"].recorded().values()


def test_changed_results_are_listed_and_recorded_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    monkeypatch.setattr(command, "NETS", {"small": Net("small", lambda: {"a network": "2 tasks"})})
    assert command.main(["--changed"]) == 1
    assert "a network: not recorded -> 2 tasks" in capsys.readouterr().out
    assert command.main(["--accept", "a test"]) == 0
    assert command.main(["--changed"]) == 0
    assert (tmp_path / recorded.ACCEPTED).read_text() == "small, 1 entries: a test\n"


def test_an_unknown_net_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--changed", "nothing"])
    assert "no net nothing; give some of networks" in capsys.readouterr().err
