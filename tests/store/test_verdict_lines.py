"""Verdicts in files of lines: what tuning decided goes out and comes in again, as a schedule to begin from."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stormdrop.compiler.choose import Choice, choice_of
from stormdrop.compiler.stored import StoredSchedules
from stormdrop.operators.catalogue import build
from stormdrop.space.structure import DerivationStep
from stormdrop.store.store import Filters, Store
from stormdrop.store.verdict import NO_CHALLENGER, VERIFIED_RECORD, Verdict
from tests.support.lines import changed, exported, imported
from tests.support.records import ELSEWHERE, HERE, legal_records, make_verdict, small_task, timing

OTHER = build("SFM", (17, 23))


def variety() -> list[Verdict]:
    """Of several tasks, temperatures, methods and machines, one of them in a model; text that needs escaping."""
    first, second = legal_records(2)
    won = make_verdict(first, second)
    (other,) = legal_records(1, OTHER)
    stayed = replace(make_verdict(other), method=NO_CHALLENGER, rounds=0, against_seconds=1e-3)
    return [
        replace(won, seconds=1.0000000000000002e-3, proof='all "values" \n ü \x00', created=1.75e9 + 1 / 3),
        replace(won, target=HERE.with_cold_weights(True), is_timing_old=True, code=""),
        replace(won, model="ab12", method="in the model", seconds=0.5, against_seconds=0.75),
        replace(won, target=replace(HERE, dram_gbs=123.456).with_threads(1)),
        stayed,
    ]


def lines_of(*verdicts: Verdict) -> list[str]:
    with Store.in_memory() as store:
        store.add_verdicts(verdicts)
        return exported(store)


def good_line() -> str:
    return lines_of(variety()[0])[0]


# ---- out and in again


def test_a_verdict_comes_in_as_it_went_out_but_for_where_it_was_decided() -> None:
    with Store.in_memory() as store:
        done = imported(store, lines_of(*variety()))
        assert (done.kept, done.verdicts, done.duplicates, done.refused) == (5, 5, 0, ())
        for verdict in variety():
            found = store.verdict(verdict.task, verdict.target, model=verdict.model, is_imported=True)
            assert found == replace(verdict, provenance="imported")
        assert store.integrity() == []


def test_an_import_into_an_empty_store_exports_the_same_lines() -> None:
    with Store.in_memory() as first, Store.in_memory() as second:
        first.add([replace(legal_records(1)[0], verified=True), *legal_records(3, OTHER)])
        first.add_verdicts(variety())
        lines = exported(first)
        assert ["kind" in json.loads(line) for line in lines] == [False] * 4 + [True] * 5
        done = imported(second, lines)
        assert (done.kept, done.verdicts) == (9, 5)
        assert exported(second) == lines


def test_verdicts_that_are_known_are_skipped_and_counted() -> None:
    lines = lines_of(*variety())
    with Store.in_memory() as store:
        assert imported(store, lines + lines).duplicates == 5
        assert imported(store, lines).duplicates == 5
        assert exported(store) == lines


def test_the_verdicts_of_this_store_are_known_when_they_come_back() -> None:
    with Store.in_memory() as store:
        store.add_verdicts(variety())
        done = imported(store, exported(store))
        assert (done.kept, done.duplicates) == (0, 5)
        assert store.verdict(small_task(), HERE, is_imported=True) is None


def test_two_installations_may_decide_differently_and_both_are_known_afterwards() -> None:
    one, another = (make_verdict(record) for record in legal_records(2))
    lines = [*lines_of(one), *lines_of(another)]
    with Store.in_memory() as store:
        assert (imported(store, lines).kept, imported(store, lines).duplicates) == (2, 2)
        found = store.verdict(small_task(), HERE, is_imported=True)
        assert found is not None
        assert found.schedule == another.schedule


def test_what_was_decided_here_is_the_newest_of_an_export() -> None:
    mine, theirs = (make_verdict(record) for record in legal_records(2))
    with Store.in_memory() as store, Store.in_memory() as other:
        store.add_verdicts([mine])
        imported(store, lines_of(theirs))
        imported(other, exported(store))
        found = other.verdict(small_task(), HERE, is_imported=True)
        assert found is not None
        assert found.schedule == mine.schedule


def test_a_verdict_counts_more_than_the_verified_record_beside_it() -> None:
    slow, fast = legal_records(2)
    with Store.in_memory() as store, Store.in_memory() as other:
        store.add([replace(fast, verified=True)])
        store.add_verdicts([make_verdict(slow)])
        imported(other, exported(store))
        found = other.verdict(small_task(), HERE, is_imported=True)
        assert found == replace(make_verdict(slow), provenance="imported")


def test_a_verified_record_that_comes_again_does_not_replace_the_verdict_beside_it() -> None:
    slow, fast = legal_records(2)
    with Store.in_memory() as store, Store.in_memory() as other:
        store.add([replace(fast, verified=True)])
        store.add_verdicts([make_verdict(slow)])
        imported(other, exported(store))
        other.prune(max_bytes=0, winners=True)  # its trials are gone, its verdicts are not
        imported(other, exported(store))
        found = other.verdict(small_task(), HERE, is_imported=True)
        assert found is not None
        assert found.schedule == slow.schedule


def test_a_verdict_made_of_a_verified_record_has_no_line_of_its_own() -> None:
    (record,) = legal_records(1)
    with Store.in_memory() as store, Store.in_memory() as other:
        store.add([replace(record, verified=True)])
        lines = exported(store)
        imported(other, lines)
        assert other.verdict(small_task(), HERE, is_imported=True) is not None
        assert exported(other) == lines


def test_a_file_without_verdicts_is_read() -> None:
    with Store.in_memory() as store, Store.in_memory() as other:
        other.add(legal_records(3))
        file = io.StringIO()
        assert other.export(file, kinds=["trial"]) == 3
        done = imported(store, file.getvalue().splitlines())
        assert (done.kept, done.verdicts) == (3, 0)


def test_export_writes_the_verdicts_that_are_wanted() -> None:
    with Store.in_memory() as store:
        store.add_verdicts(variety())
        assert len(exported(store, Filters(task=OTHER.name))) == 1
        assert len(exported(store, Filters(task=OTHER.digest[:10]))) == 1
        assert exported(store, Filters(task=OTHER.digest[:3])) == []
        assert len(exported(store, Filters(cold=True))) == 1
        assert len(exported(store, Filters(target=HERE.with_threads(1).key()))) == 1
        assert exported(store, Filters(target=ELSEWHERE.key())) == []
        assert len(exported(store, Filters(verified=True))) == 5
        assert exported(store, Filters(verified=False)) == []


def test_a_task_that_only_an_imported_verdict_knows_can_be_exported_by_name() -> None:
    with Store.in_memory() as store:
        imported(store, lines_of(*variety()))
        assert len(exported(store, Filters(task=OTHER.name))) == 1


# ---- what an imported verdict is for


def test_an_imported_verdict_decides_nothing_until_tuning_here_does() -> None:
    theirs, mine = legal_records(2)
    with Store.in_memory() as store:
        imported(store, lines_of(make_verdict(theirs)))
        assert StoredSchedules(store, HERE)(small_task()) == Choice()
        assert store.decided(HERE) == []
        assert [d.schedule for d in store.donors(small_task(64), HERE)] == [theirs.schedule]
        store.add_verdicts([make_verdict(mine)])
        assert StoredSchedules(store, HERE)(small_task()) == choice_of(make_verdict(mine))
        assert [d.schedule for d in store.donors(small_task(64), HERE)] == [mine.schedule]


def test_a_model_does_not_accept_what_another_installation_decided_for_it() -> None:
    verdict = replace(variety()[0], model="ab12", method="in the model")
    with Store.in_memory() as store:
        assert imported(store, lines_of(verdict)).kept == 1
        assert StoredSchedules(store, HERE, model="ab12")(small_task()) == Choice()


# ---- what stays out


@pytest.mark.parametrize("name", ["seconds", "against_seconds"])
def test_a_verdict_that_is_faster_than_the_machine_can_be_is_refused(name: str) -> None:
    impossible = 0.25 * small_task().flops / (1e9 * HERE.peak_gflops * HERE.threads)
    boasting: Any = {"target": replace(HERE, peak_gflops=1e9), name: impossible}
    with Store.in_memory() as store:
        for forged in (1e-9, impossible):
            done = imported(store, lines_of(replace(variety()[0], **{**boasting, name: forged})))
            assert (done.kept, done.refusals) == (0, 1)
            assert "seconds are fewer than the" in done.refused[0].reason
        assert store.donors(small_task(64), HERE) == []


def test_a_verdict_of_an_unknown_rule_is_kept_for_whoever_has_the_rule() -> None:
    verdict = variety()[0]
    steps = (*verdict.schedule.steps, DerivationStep("reverse", 1, "s0"))
    lines = lines_of(replace(verdict, schedule=replace(verdict.schedule, steps=steps)))
    with Store.in_memory() as store:
        done = imported(store, lines)
        assert (done.kept, done.absent) == (1, ("reverse 1",))
        assert exported(store) == lines
        assert store.verdict(small_task(), HERE, is_imported=True) is None


BAD: list[tuple[str, Callable[[Any], None]]] = [
    ("kind of line", changed("kind", to="rumour")),
    ("kind of line", changed("kind", to=None)),
    ("format", changed("format", to=2)),
    ("seconds", changed("seconds", to=0)),
    ("seconds", changed("against_seconds", to=-1.0)),
    ("type float", changed("seconds", to="fast")),
    ("no legal point", changed("schedule", "values", "s0.a1.3", to=1000)),
    ("no legal point", changed("against", "values", "s0.a1.3", to=1000)),
    ("against: ", changed("against", "steps", 0, 0, to="os.path:join")),
    ("another class", changed("against", "class", to="v0123456789abcdef")),
    ("class", changed("task", to=build("SFM", (4, 4)).to_json())),
    ("rounds", changed("rounds", to=-1)),
    ("rounds", changed("rounds", to=1.5)),
    ("method", changed("method", to="x" * 501)),
    ("has no line", changed("method", to=VERIFIED_RECORD)),
    ("proof", changed("proof", to="x" * 501)),
    ("code", changed("code", to=7)),
    ("code has a lone surrogate", changed("code", to="\ud800")),
    ("model has a lone surrogate", changed("model", to="\udfff")),
    ("stormdrop has a lone surrogate", changed("versions", "stormdrop", to="\ud800")),
    ("is_timing_old", changed("is_timing_old", to=1)),
    ("created", changed("created", to=-5.0)),
    ("another CPU", changed("target", "cpu", to="z80")),
]


@pytest.mark.parametrize(("reason", "change"), BAD)
def test_a_line_that_is_no_verdict_is_refused_with_its_number_and_reason(
    reason: str, change: Callable[[Any], None]
) -> None:
    data = json.loads(good_line())
    change(data)
    with Store.in_memory() as store:
        done = imported(store, [good_line(), json.dumps(data)])
        assert (done.kept, done.refusals) == (1, 1)
        (refusal,) = done.refused
        assert refusal.line == 2
        assert reason in refusal.reason


@pytest.mark.parametrize("field", [*json.loads(good_line())])
def test_a_missing_field_is_named(field: str) -> None:
    data = json.loads(good_line())
    del data[field]
    with Store.in_memory() as store:
        done = imported(store, [json.dumps(data)])
        assert done.kept == 0
        assert (field if field != "kind" else "result") in done.refused[0].reason


def test_a_machine_whose_name_is_no_text_is_refused_although_others_are_wanted() -> None:
    trial = replace(legal_records(1)[0], result=timing(1e-3))
    with Store.in_memory() as store, Store.in_memory() as other:
        other.add([trial])
        data = json.loads(exported(other)[0])
        data["target"]["cpu"] = "\ud800"
        done = imported(store, [json.dumps(data)], foreign=True)
        assert "lone surrogate" in done.refused[0].reason
