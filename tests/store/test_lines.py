"""Files of lines: what goes out comes in again, and what is not a record stays out."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stormdrop.graph.builder import GraphBuilder
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Timing
from stormdrop.operators.catalogue import build
from stormdrop.operators.node import task_of
from stormdrop.space.rules import RULES
from stormdrop.space.sketch import replay
from stormdrop.store.lines import LINE_BYTES, read_lines
from stormdrop.store.record import Record, Versions
from stormdrop.store.store import Filters, Imported, Store
from tests.replay.files import STORE
from tests.support.lines import changed, exported, imported
from tests.support.own_rules import Reverse
from tests.support.records import ELSEWHERE, HERE, failure, legal_records, make_records, small_task, timing


def variety() -> list[Record]:
    """Of several tasks, outcomes and versions; names that need escaping."""
    records = legal_records(12)
    odd = [
        replace(records[0], result=failure('a "quoted"\n\x1b[31m message ü \x00 end')),
        replace(records[1], result=Failure("schedule", "too many registers"), features=None),
        replace(
            records[2], target=HERE.with_cold_weights(True), verified=True, model="a/b [red]c[/].onnx", seed=2**100
        ),
        replace(records[3], result=Timing(1.5e-7, 0.0, 3, 0.0, True)),
        replace(records[4], versions=Versions("9.9", "99.0", 77)),
        replace(records[5], target=replace(HERE, dram_gbs=123.456)),
    ]
    return [
        *records,
        *odd,
        *legal_records(3, build("C2D", (1, 7, 7, 8, 16, 3, 1, 1))),
        *legal_records(3, build("SFM", (17, 23))),
    ]


@cache
def good_lines() -> tuple[str, ...]:
    with Store.in_memory() as store:
        store.add(variety())
        return tuple(exported(store))


# ---- out and in again ------------------------------------------------------------------------------------------------


def test_an_import_into_an_empty_store_exports_the_same_lines(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.sqlite") as first, Store.open(tmp_path / "b.sqlite") as second:
        first.add(variety())
        lines = exported(first)
        done = imported(second, lines)
        assert (done.kept, done.duplicates, done.refused) == (len(lines), 0, ())
        assert exported(second) == lines
        best = [s.best(small_task(), HERE) for s in (first, second)]
        assert best[0] is not None
        assert best[1] is not None
        assert best[0].schedule == best[1].schedule


def test_a_recorded_store_exports_the_same_bytes(tmp_path: Path) -> None:
    """Lines never change: other installations have them."""
    with Store.open(Path(shutil.copy(STORE, tmp_path))) as store:
        lines = exported(store)
        digest = sha256("".join(line + "\n" for line in lines).encode()).hexdigest()
        assert (len(lines), digest[:16]) == (81, "278a576a0024b84b")


def test_duplicates_are_skipped_and_counted() -> None:
    lines = list(good_lines())
    with Store.in_memory() as store:
        store.add(variety()[:5])
        done = imported(store, lines + lines)
        assert (done.kept, done.duplicates, done.refusals) == (len(lines) - 5, len(lines) + 5, 0)
        assert imported(store, lines).duplicates == len(lines)
        assert sorted(exported(store)) == sorted(lines)


def test_a_line_of_a_version_whose_targets_had_other_fields_is_known() -> None:
    """An older one had no temperature, a newer one says more: neither changes what trial it is."""
    with Store.in_memory() as store:
        store.add(legal_records(2))
        older, newer = (json.loads(line) for line in exported(store))
        del older["target"]["cold"]
        newer["target"] |= {"kind": "cpu", "color": "red"}
        done = imported(store, [json.dumps(older), json.dumps(newer)])
        assert (done.kept, done.duplicates, done.refused) == (0, 2, ())


def test_a_line_has_what_older_versions_need() -> None:
    """They refuse a target that lacks one of their fields, and ignore the others."""
    needed = """name triple cpu features isa vector_bytes vector_registers has_fma threads line_bytes l1_bytes l1_ways
        l2_bytes l3_bytes fma_per_cycle fma_latency peak_gflops l2_gbs l3_gbs dram_gbs cold"""
    assert all(json.loads(line)["target"].keys() >= set(needed.split()) for line in good_lines())


def test_the_temperature_of_a_line_is_its_own() -> None:
    """Lines of operators that were timed cold have a target that is said to be warm, in older versions."""
    with Store.in_memory() as store:
        store.add(make_records(1, cold=True))
        (line,) = (json.loads(line) for line in exported(store))
        line["target"]["cold"] = False
        with Store.in_memory() as other:
            assert imported(other, [json.dumps(line)]).kept == 1
            (record,) = other.trials(small_task(), HERE, cold=True)
            assert record.target == HERE.with_cold_weights(True)


def test_export_writes_what_is_wanted() -> None:
    with Store.in_memory() as store:
        store.add(variety())
        other = build("SFM", (17, 23))
        assert len(exported(store, Filters(task=other.name))) == 3
        assert len(exported(store, Filters(task=other.digest[:10]))) == 3
        assert len(exported(store, Filters(cold=True))) == 1
        assert len(exported(store, Filters(verified=False))) == len(variety()) - 1
        assert exported(store, Filters(task="nothing of that name")) == []
        assert exported(store, Filters(target=ELSEWHERE.key())) == []
        assert all(isinstance(json.loads(line), dict) for line in exported(store))


def test_a_long_export_comes_in_pieces_and_in_order() -> None:
    records = [replace(r, number=n) for n in range(1, 41) for r in legal_records(30)]
    with Store.in_memory() as store:
        store.add(records)
        assert [json.loads(line)["number"] for line in exported(store)] == [r.number for r in records]


def test_other_tools_may_reorder_and_reformat_a_line() -> None:
    lines = [json.dumps(json.loads(line), sort_keys=True, indent=None, ensure_ascii=False) for line in good_lines()]
    content = b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode()
    with Store.in_memory() as store:
        assert imported(store, content).refused == ()
        assert exported(store) == list(good_lines())


# ---- what stays out --------------------------------------------------------------------------------------------------


def without(*path: str | int) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


BAD: list[tuple[str, Callable[[Any], None]]] = [
    ("NaN", changed("result", "seconds", to=float("nan"))),
    ("Infinity", changed("result", "seconds", to=float("inf"))),
    ("seconds", changed("result", "seconds", to=0.0)),
    ("seconds", changed("result", "seconds", to=-1e-3)),
    ("seconds", changed("result", "samples", 0, to=-1e-3)),
    ("type float", changed("result", "seconds", to="fast")),
    ("type float", changed("result", "seconds", to=None)),
    ("type float", changed("result", "seconds", to=True)),
    ("runs", changed("result", "runs", to=0)),
    ("runs", changed("result", "runs", to=1.5)),
    ("kind of failure", changed("result", to={"failure": "boredom", "message": "", "build_seconds": 0.0})),
    ("message", changed("result", to={"failure": "crash", "message": "x" * 5000, "build_seconds": 0.0})),
    ("result", changed("result", to=[1e-3])),
    ("name of a rule", changed("schedule", "steps", 0, 0, to="tile 1, pack")),
    ("name of a rule", changed("schedule", "steps", 0, 0, to="os.path:join")),
    ("schedule", changed("schedule", "steps", to=[])),
    ("schedule", changed("schedule", "steps", 0, 2, to="s9")),
    ("schedule", changed("schedule", "steps", 0, to=7)),
    ("schedule", changed("schedule", "values", to={})),
    ("schedule", changed("schedule", "values", "s0.a1.3", to=1000)),
    ("schedule", changed("schedule", "values", "s0.a1.3", to=2**70)),
    ("schedule", changed("schedule", "values", "s0.a1.3", to=-4)),
    ("schedule", changed("schedule", "values", "s0.a1.3", to="4")),
    ("schedule", changed("schedule", "values", "s0.a1.3", to=True)),
    ("schedule", changed("schedule", "values", "more", to=1)),
    ("variant", changed("schedule", "variant", to=3)),
    ("class", changed("schedule", "class", to="v0123456789abcdef")),
    ("class", changed("task", to=build("SFM", (4, 4)).to_json())),
    ("task", changed("task", "format", to=2)),
    ("task", changed("task", "name", to=["a", "list"])),
    ("task", changed("task", "inputs", 0, "shape", to=[1, -5, 40])),
    ("task", changed("task", "inputs", 0, "shape", to=[2**40, 2**40, 2**40])),
    ("task", changed("task", "variants", 0, "stages", 0, "body", to=["bin", "add"])),
    ("task", changed("task", "variants", to=[])),
    ("another CPU", changed("target", "cpu", to="z80")),
    ("instruction set", changed("target", "isa", to="abacus")),
    ("instruction set", changed("target", "vector_bytes", to=3)),
    ("target", changed("target", "threads", to=0)),
    ("target", changed("target", "threads", to=2.5)),
    ("target", changed("target", "name", to=5)),
    ("target", without("target", "l2_bytes")),
    ("format", changed("format", to=2)),
    ("verified", changed("verified", to=1)),
    ("versions", changed("versions", to=None)),
    ("features", changed("versions", "features", to=-1)),
    ("features", changed("features", to="!!!")),
    ("features", changed("features", to="AAAA")),
    ("features", changed("features", to="AADAfw==" * 64)),
    ("model", changed("model", to="x" * 10_000)),
    ("seed", changed("seed", to="0")),
    ("digits", changed("seed", to=10**100)),
    ("created", changed("created", to=-5.0)),
    ("number", changed("number", to=2**63)),
]


@pytest.mark.parametrize(("reason", "change"), BAD)
def test_a_line_that_is_no_record_is_refused_with_its_number_and_reason(
    reason: str, change: Callable[[Any], None]
) -> None:
    first, second, *_ = good_lines()
    data = json.loads(second)
    change(data)
    with Store.in_memory() as store:
        done = imported(store, [first, "", json.dumps(data), first])
        assert (done.kept, done.duplicates, done.refusals) == (1, 1, 1)
        (refusal,) = done.refused
        assert refusal.line == 3
        assert reason in refusal.reason
        assert len(refusal.reason) <= 200
        assert exported(store) == [first]


@pytest.mark.parametrize(("name", "version"), [("levitate", 1), ("tile", 99), ("poisoned", 1), ("reverse", 1)])
def test_a_line_of_an_unknown_rule_is_kept_and_nothing_is_imported(
    name: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poisoned.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)

    def refuse(module: str, package: str | None = None) -> None:
        raise AssertionError(f"{module} is imported")

    monkeypatch.setattr("importlib.import_module", refuse)
    first, second, *_ = good_lines()
    data = json.loads(second)
    data["schedule"]["steps"].append([name, version, "s0", "anything", 7])
    data["schedule"]["values"]["no.such.knob"] = 2**30
    line = json.dumps(data, separators=(",", ":"))
    with Store.in_memory() as store:
        done = imported(store, [first, line])
        assert (done.kept, done.refusals) == (2, 0)
        assert exported(store) == [first, line]
        assert len(store.trials(small_task(), HERE)) == 1
        assert "poisoned" not in sys.modules


def test_a_line_of_an_unknown_rule_is_used_by_whoever_has_the_rule() -> None:
    rules = (*RULES, Reverse())
    data = json.loads(good_lines()[0])
    data["schedule"]["steps"].append(["reverse", 1, "s0"])
    with Store.in_memory() as store:
        assert imported(store, [json.dumps(data)]).kept == 1
        best = store.best(small_task(), HERE, rules=rules)
        assert best is not None
        sketch, _ = replay(small_task(), best.schedule, HERE, rules)
        assert sketch.structure.steps == best.schedule.steps


@pytest.mark.parametrize(
    "field", [*json.loads(good_lines()[0]), ("result", "spread"), ("task", "inputs"), ("versions", "llvm")]
)
def test_a_missing_field_is_named(field: str | tuple[str, ...]) -> None:
    path = (field,) if isinstance(field, str) else field
    data = json.loads(good_lines()[0])
    without(*path)(data)
    with Store.in_memory() as store:
        done = imported(store, [json.dumps(data)])
        assert done.kept == 0
        assert path[-1] in done.refused[0].reason


def test_what_is_not_json_is_refused() -> None:
    good = good_lines()[0].encode()
    bad = [
        good[:-1],
        b"\xff\xfe" + good,
        b"[" * 100_000,
        b"null",
        b"[]",
        b"7",
        b'"x"',
        good + good,
        good.replace(b"1", b"1e999", 1),
    ]
    with Store.in_memory() as store:
        done = imported(store, b"\n".join([*bad, good]))
        assert [r.line for r in done.refused] == list(range(1, len(bad) + 1))
        assert done.kept == 1


def test_an_absurdly_long_line_is_refused_without_being_read_into_memory() -> None:
    good = good_lines()[0].encode()
    content = (
        good + b"\n" + b"x" * (3 * LINE_BYTES) + b"\n" + good_lines()[1].encode() + b"\n" + b"y" * (LINE_BYTES + 5)
    )
    sizes: list[int] = []

    class Spied(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            line = super().readline(size)
            sizes.append(len(line))
            return line

    assert [(n, line is None) for n, line in read_lines(Spied(content))] == [
        (1, False),
        (2, True),
        (3, False),
        (4, True),
    ]
    assert max(sizes) <= LINE_BYTES
    with Store.in_memory() as store:
        done = imported(store, content)
        assert (done.kept, [r.line for r in done.refused]) == (2, [2, 4])
        assert "longer than" in done.refused[0].reason


def test_another_cpus_records_are_kept_if_asked_for() -> None:
    with Store.in_memory() as store, Store.in_memory() as other:
        other.add(legal_records(4, target=ELSEWHERE))
        lines = exported(other)
        done = imported(store, lines)
        assert (done.kept, done.refusals) == (0, 4)
        assert "--foreign" in done.refused[0].reason
        assert imported(store, lines, foreign=True).kept == 4
        assert store.best(small_task(), ELSEWHERE) is not None
        assert store.best(small_task(), HERE) is None


def test_fewer_threads_are_not_another_cpu() -> None:
    with Store.in_memory() as store, Store.in_memory() as other:
        other.add(legal_records(2, target=HERE.with_threads(1)) + legal_records(2, target=HERE.with_isa("avx2")))
        assert imported(store, exported(other)).kept == 4


def test_one_bad_point_does_not_keep_its_neighbours_out() -> None:
    lines = list(good_lines()[:10])
    for k, value in ((3, 2**62), (5, 0), (7, 2**70)):
        data = json.loads(lines[k])
        data["schedule"]["values"]["s0.a1.3"] = value
        lines[k] = json.dumps(data)
    with Store.in_memory() as store:
        done = imported(store, lines)
        assert [r.line for r in done.refused] == [4, 6, 8]
        assert done.kept == 7


def timed_import(task: Task, seconds: float) -> Imported:
    """Of a line that says how long a task took."""
    with Store.in_memory() as store, Store.in_memory() as other:
        other.add([replace(record, result=timing(seconds)) for record in legal_records(1, task)])
        return imported(store, exported(other))


@pytest.mark.parametrize(
    ("task", "impossible", "fast"),
    [
        (build("GMM", (1, 512, 512, 512)), 1e-5, 3e-4),  # 134 million multiply-adds
        (build("ADR", (1, 512, 512, 64)), 1e-6, 1e-4),  # 64 MiB of results, and not one multiply-add
        (build("TRN", (4096, 4096)), 1e-6, 1e-4),
    ],
    ids=lambda value: value.name if isinstance(value, Task) else None,
)
def test_times_that_no_machine_reaches_are_refused(task: Task, impossible: float, fast: float) -> None:
    refused, kept = timed_import(task, impossible), timed_import(task, fast)
    assert (refused.kept, kept.kept) == (0, 1)
    assert "seconds are fewer than the" in refused.refused[0].reason


def test_a_gather_may_take_less_time_than_its_table_would_take_to_read() -> None:
    b = GraphBuilder()
    b.emit("Gather", b.input("table", (1 << 20, 64), "f32"), b.input("indices", (8,), "i64"), axis=0)
    assert timed_import(task_of(b.nodes[0]), 1e-6).kept == 1


def test_points_that_do_not_fit_the_machine_are_refused() -> None:
    records = make_records(80)
    legal: list[bool] = []
    for r in records:
        sketch, _ = replay(r.task, r.schedule, r.target)
        legal.append(bool(sketch.legal(np.array([[r.schedule.by_name[n] for n in sketch.names]]))[0]))
    assert 0 < sum(legal) < len(records)
    with Store.in_memory() as store, Store.in_memory() as other:
        other.add(records)
        done = imported(store, exported(other))
        assert [r.line for r in done.refused] == [k for k, good in enumerate(legal, 1) if not good]
        assert all("no legal point" in r.reason for r in done.refused)


def test_many_refusals_are_counted_and_the_first_are_named() -> None:
    with Store.in_memory() as store:
        done = imported(store, b"x\n" * 5000)
        assert done.refusals == 5000
        assert [r.line for r in done.refused] == list(range(1, 1001))


# ---- anything at all -------------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["s0", "a1", "tile", "load", "f32", "i64", "const", "SSRSRS", 0, 1, 2, -1, 2**31, 2**63, 1e-300, 1e300]
    ),
)
KEYS = st.text(max_size=6)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))


def places(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Of everything in a JSON value: the keys that lead there."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    return [p for key, value in items for p in [(*path, key), *places(value, (*path, key))]]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid line with one to three of its values changed, removed or exchanged, or with some bytes changed."""
    data = json.loads(draw(st.sampled_from(good_lines())))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(data)))
        kind = draw(st.sampled_from(["change", "remove", "exchange"]))
        try:
            match kind:
                case "remove":
                    without(*path)(data)
                case "change":
                    changed(*path, to=draw(VALUES))(data)
                case _:
                    other: Any = data
                    for key in draw(st.sampled_from(places(data))):
                        other = other[key]
                    changed(*path, to=json.loads(json.dumps(other)))(data)
        except (KeyError, IndexError, TypeError):
            pass
        if not places(data):
            break
    line = bytearray(json.dumps(data).encode("utf-8", "replace"))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 5]))):
        line[draw(st.integers(0, len(line) - 1))] = draw(st.integers(32, 255))
    return bytes(line).replace(b"\n", b" ")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(mutated(), min_size=1, max_size=4))
def test_whatever_a_file_holds_is_kept_or_refused(lines: list[bytes]) -> None:
    good = good_lines()[0].encode()
    with Store.in_memory() as store:
        done = imported(store, b"\n".join([*lines, good]))
        assert done.kept + done.duplicates + done.refusals == len(lines) + 1
        assert len(done.refused) == done.refusals
        assert len(lines) + 1 not in [r.line for r in done.refused]
        # What was kept is as good as any record: it goes out and comes in again, and every question has an answer.
        again = exported(store)
        assert len(again) == done.kept
        with Store.in_memory() as second:
            assert imported(second, again, foreign=True).kept == done.kept
            assert exported(second) == again
        for summary in store.summaries():
            store.best_of(summary)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_are_refused(content: bytes) -> None:
    with Store.in_memory() as store:
        assert imported(store, content).kept == 0
