"""The contract of a database under a store, on each implementation, and the place of SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stormdrop.store.database import Connection, Database
from stormdrop.store.sql.queries import count_trials
from stormdrop.store.sqlite import SqliteDatabase
from stormdrop.store.store import Store
from tests.support.records import make_records
from tests.support.stores import PlainDatabase

PACKAGE = Path(__file__).parents[2] / "stormdrop"
MAKERS: dict[str, Callable[[Path], Database]] = {
    "file": SqliteDatabase,
    "memory": lambda path: SqliteDatabase(None),
    "another implementation": lambda path: PlainDatabase(),
}


@pytest.fixture(params=MAKERS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with closing(MAKERS[request.param](tmp_path / "s.sqlite")) as made:
        Store(made).add(make_records(100))
        yield made


def test_a_write_that_fails_leaves_nothing(database: Database) -> None:
    def fail(c: Connection) -> None:
        c.execute("DELETE FROM trial")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.write(fail)
    assert database.read(count_trials) == 100


def test_removed_rows_take_no_space(database: Database) -> None:
    before = database.used_bytes()
    assert database.write(lambda c: c.execute("DELETE FROM trial").rowcount) == 100
    database.shrink()
    assert database.used_bytes() < before
    assert (database.read(count_trials), database.faults()) == (0, [])


def test_a_reference_to_nothing_is_a_fault(database: Database) -> None:
    assert database.faults() == []
    database.write(lambda c: c.execute("DELETE FROM target"))
    assert len(database.faults()) == 100


def test_a_closed_database_in_a_file_opens_again(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "s.sqlite")
    Store(database).add(make_records(3))
    database.close()
    assert database.read(count_trials) == 3


def test_sql_stands_in_one_folder_and_one_module_imports_sqlite() -> None:
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    sql = {name for name, text in texts.items() if re.search("SELECT |INSERT INTO|DELETE FROM", text)}
    assert {name.rpartition("/")[0] for name in sql} == {"store/sql"}
    assert [name for name, text in texts.items() if "sqlite3" in text] == ["store/sqlite.py"]
