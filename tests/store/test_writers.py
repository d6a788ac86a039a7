"""Several writers, killed writers, full disks, forks, threads, and very many rows."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from stormdrop.store import sqlite as module
from stormdrop.store.store import Store, StoreBusy, StoreError, StoreFull
from tests.support.records import HERE, VERSIONS, make_records, small_task, timing
from tests.support.stores import connection_of

KNOWN = small_task(), HERE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sqlite"


def run(script: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    return out


# ---- several processes -----------------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from stormdrop.store.store import Store
from tests.support.records import HERE, make_records, small_task
path, who = Path(sys.argv[1]), int(sys.argv[2])
batches = [make_records(8, seed=1000 * who + k) for k in range(int(sys.argv[3]))]
sys.stdin.read()
with Store.open(path) as store:
    for batch in batches:
        store.add(batch)
        assert store.best(small_task(), HERE) is not None
print(store.path)
"""


def test_processes_that_write_at_the_same_time_lose_nothing(path: Path) -> None:
    """They also make the file at the same time, or find one that another of them is making."""
    batches = 40
    writers = [run(WRITER, path, who, batches) for who in range(3)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
        writer.stdin = None
    for writer in writers:
        assert ended(writer).strip() == str(path)
    with Store.open(path) as store:
        found = store.trials(*KNOWN)
        assert store.integrity() == []
    assert len(found) == 3 * batches * 8
    for who in range(3):
        mine = [(r.seed, r.number) for r in found if r.seed // 1000 == who]
        assert mine == [(1000 * who + k, n + 1) for k in range(batches) for n in range(8)]
    seeds = [r.seed for r in found]
    assert all(len(set(seeds[i : i + 8])) == 1 for i in range(0, len(seeds), 8))


def test_a_reader_does_not_wait_for_a_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(path) as store:
        store.add(make_records(10))
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("DELETE FROM trial")
            with Store.view(path) as reader:
                assert reader.known(*KNOWN) == 10
                assert reader.best(*KNOWN) is not None
                assert len(reader.training(HERE).seconds) == 10
                assert len(reader.summaries()) == 1
            assert store.known(*KNOWN) == 10
            monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)
            store.close()
            monkeypatch.setattr(module, "BUSY_SECONDS", 0.01)
            with pytest.raises(StoreBusy, match="locked by another process"):
                store.add(make_records(1))
            writer.execute("ROLLBACK")
        store.add(make_records(1))
        assert store.known(*KNOWN) == 11


def test_a_writer_waits_for_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.01)
    with (
        Store.open(path) as store,
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        later = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
        later.start()
        store.add(make_records(5))
        later.join()
        assert store.known(*KNOWN) == 5


# ---- one process, several threads or forks ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_threads_share_a_store(path: Path, kind: str) -> None:
    store = Store.open(path) if kind == "file" else Store.in_memory()
    batches = {who: [make_records(4, seed=1000 * who + k) for k in range(25)] for who in range(4)}
    failed: list[BaseException] = []

    def work(who: int) -> None:
        try:
            for batch in batches[who]:
                store.add(batch)
                store.best(*KNOWN)
                store.training(HERE)
        except BaseException as error:
            failed.append(error)

    for _ in range(2):  # the second round's threads find the connections of dead ones
        threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    assert store.known(*KNOWN) == 2 * 4 * 25 * 4
    assert store.integrity() == []
    store.close()


FORKS = """
import os, sys
from pathlib import Path
from stormdrop.store.store import Store
from tests.support.records import HERE, make_records, small_task
store = Store.open(Path(sys.argv[1])) if sys.argv[1] != "-" else Store.in_memory()
store.add(make_records(5))
parents = store._database.connection()
children = []
for k in range(4):
    pid = os.fork()
    if not pid:
        if store.is_memory != (store._database.connection() is parents):
            os._exit(7)
        for _ in range(10):
            store.add(make_records(5, seed=k))
        if k % 2:
            os._exit(store.known(small_task(), HERE) < 55)
        store.close()
        sys.exit(0)
    children.append(pid)
    store.add(make_records(5))
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
store.add(make_records(5))
print(store.known(small_task(), HERE), store.integrity())
"""


def test_a_forked_child_has_a_connection_of_its_own(path: Path) -> None:
    assert ended(run(FORKS, path)) == f"{5 + 4 * 5 + 4 * 50 + 5} []\n"
    assert ended(run(FORKS, "-")) == f"{5 + 4 * 5 + 5} []\n"
    with Store.view(path) as store:
        assert store.integrity() == []


# ---- killed ----------------------------------------------------------------------------------------------------------

NURSERY = """
import os, random, signal, sys, time
from pathlib import Path
from stormdrop.store.store import Store
from tests.support.records import make_records
path, kills = Path(sys.argv[1]), int(sys.argv[2])
batch = make_records(16)
rng = random.Random(7)
from dataclasses import replace
for life in range(kills):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        store = Store.open(path, cap_bytes=None)
        for number in range(100_000):
            store.add([replace(r, seed=1000 * life + number) for r in batch])
            os.write(writing, b"%d\\n" % (1000 * life + number))
        os._exit(1)
    os.close(writing)
    time.sleep(rng.uniform(0.0, 0.12))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), status
    with os.fdopen(reading) as acknowledged:
        print(acknowledged.read(), end="")
"""


def test_killed_writers_lose_at_most_the_batch_in_flight(path: Path) -> None:
    kills = 50
    acknowledged = [int(line) for line in ended(run(NURSERY, path, kills)).split()]
    assert len(acknowledged) > 2 * kills
    with Store.open(path) as store:
        assert store.integrity() == []
        counts: dict[int, int] = {}
        for record in store.trials(*KNOWN):
            counts[record.seed] = counts.get(record.seed, 0) + 1
    assert set(acknowledged) <= set(counts)
    assert set(counts.values()) == {16}
    assert len(counts) <= len(acknowledged) + kills  # killed between the commit and the word of it


# ---- full ------------------------------------------------------------------------------------------------------------


def test_a_full_database_takes_no_half_batch_and_stays_readable(path: Path) -> None:
    with Store.open(path) as store:
        store.add(make_records(50))
        connection = connection_of(store)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 3}")
        with pytest.raises(StoreFull, match="cannot grow"):
            store.add(make_records(200, seed=1))
        assert {r.seed for r in store.trials(*KNOWN)} == {0}
        assert store.known(*KNOWN) == 50
        assert store.integrity() == []
        store.add(make_records(200, seed=1))  # the limit was that of the connection, which was given up
        assert store.known(*KNOWN) == 250


LIMITED = """
import resource, sys
from pathlib import Path
from stormdrop.store.store import Store, StoreFull
from tests.support.records import HERE, make_records, small_task
limit = int(sys.argv[2])
batches = [make_records(20, seed=k) for k in range(40)]
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
store = Store.open(Path(sys.argv[1]))
done = 0
try:
    for batch in batches:
        store.add(batch)
        done += 1
except StoreFull as error:
    full = str(error)
assert "cannot grow" in full
assert len(store.trials(small_task(), HERE)) == 20 * done
try:
    store.add(batches[0] * 100)
except StoreFull:
    pass
assert store.integrity() == []
print(done)
"""


def test_a_file_that_may_not_grow_keeps_what_was_acknowledged(path: Path) -> None:
    done = int(ended(run(LIMITED, path, 300_000)))
    assert done > 3
    with Store.open(path) as store:
        assert store.integrity() == []
        assert [(r.seed, r.number) for r in store.trials(*KNOWN)] == [
            (k, n + 1) for k in range(done) for n in range(20)
        ]
        store.add(make_records(20))


def test_a_place_too_small_for_a_new_store_is_memory_with_a_warning(path: Path) -> None:
    script = LIMITED.split("store =")[0] + "print(Store.open(Path(sys.argv[1])).is_memory)"
    process = run(script, path, 8192)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("True\n", 0), err
    assert err.count("\n") == 1
    assert "cannot be written" in err


def test_a_store_that_becomes_unwritable_says_so(path: Path) -> None:
    with Store.open(path) as store:
        store.add(make_records(5))
        connection_of(store).execute("PRAGMA query_only = ON")
        with pytest.raises(StoreError, match="cannot be written"):
            store.add(make_records(5))
        store.add(make_records(5))
        assert store.known(*KNOWN) == 10


def test_an_interrupted_batch_is_undone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(path) as store:
        store.add(make_records(5))
        batch = make_records(30)
        seen = 0

        def interrupted(values: object) -> int:
            nonlocal seen
            seen += 1
            if seen == 20:
                raise KeyboardInterrupt
            return seen

        monkeypatch.setattr("stormdrop.store.sql.tables.mark_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.add(batch)
        monkeypatch.undo()
        assert store.known(*KNOWN) == 5
        store.add(batch)
        assert store.known(*KNOWN) == 35


# ---- very many -------------------------------------------------------------------------------------------------------


def multiply(path: Path, rows: int) -> None:
    """Copies of what is there, each with seconds of its own, slower than all that is there."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA synchronous = OFF")
        names: list[str] = [row[1] for row in raw.execute("PRAGMA table_info(trial)") if row[1] != "id"]
        values = {"seconds": "1 + n * 1e-6", "mark": "n", "samples": "x''"}
        listed = ", ".join(values.get(name) or name for name in names)
        raw.execute(
            f"""WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows})
            INSERT INTO trial ({", ".join(names)}) SELECT {listed} FROM numbers JOIN trial ON trial.id = 1 + n % 20"""
        )


def test_many_rows_are_searched_by_index(path: Path) -> None:
    with Store.open(path, cap_bytes=None) as store:
        store.add(make_records(10) + make_records(10, task=small_task(7)))
        multiply(path, 200_000)
        assert store.known(*KNOWN) == 100_010
        found = store.best(*KNOWN)
        assert found is not None
        assert found.result == timing(2e-3)
        assert store.best(*KNOWN, versions=replace(VERSIONS, llvm="0")) is None
        store.add(make_records(10, seed=3))
        assert store.training(HERE).features.shape == (20_000, 64)
        connection = connection_of(store)
        plans: list[str] = []
        connection.set_trace_callback(plans.append)
        store.best(*KNOWN)
        store.known(*KNOWN)
        store.training(HERE)
        store.prune(max_bytes=store.used_bytes - (1 << 20))
        connection.set_trace_callback(None)
        for query in plans:
            if "FROM trial" in query and query.lstrip().startswith(("SELECT", "DELETE")):
                steps = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
                assert not [s for s in steps if "SCAN" in s and "trial" in s and "COVERING" not in s], (query, steps)
                assert not [s for s in steps if "TEMP B-TREE" in s], (query, steps)
        assert os.path.getsize(path) > 50 << 20
