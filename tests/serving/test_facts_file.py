import sqlite3
from pathlib import Path

import pytest

from serving.facts_file import FactsFile, add_column


async def test_what_is_deleted_leaves_no_bytes_and_its_space_comes_back(tmp_path: Path) -> None:
    file = FactsFile(tmp_path, "CREATE TABLE IF NOT EXISTS facts (text TEXT)")
    words = [("marmalade " * 300,)] * 300

    def write(database: sqlite3.Connection) -> None:
        database.executemany("INSERT INTO facts VALUES (?)", words)

    def delete(database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM facts")

    await file.run(write)
    await file.purge()
    written = (tmp_path / "facts.sqlite").stat().st_size
    await file.run(delete)
    await file.purge()
    for path in tmp_path.iterdir():
        assert b"marmalade" not in path.read_bytes(), path
    assert (tmp_path / "facts.sqlite").stat().st_size < written / 10
    file.close()


def test_a_column_is_added_once_to_a_table_of_an_earlier_version(tmp_path: Path) -> None:
    file = FactsFile(tmp_path, "CREATE TABLE IF NOT EXISTS facts (text TEXT)")
    with file.transaction() as database:
        assert add_column(database, "facts", "expires_at", "INTEGER")
        assert not add_column(database, "facts", "expires_at", "INTEGER")
        database.execute("INSERT INTO facts (expires_at) VALUES (1)")
    file.close()


def test_a_full_disk_is_what_the_error_says(tmp_path: Path) -> None:
    file = FactsFile(tmp_path, "CREATE TABLE IF NOT EXISTS facts (text TEXT)")
    with file.transaction() as database:
        database.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError, match="full"), file.transaction() as database:
        database.execute("INSERT INTO facts VALUES (?)", ("x" * 100_000,))
    with file.transaction() as database:
        database.execute("PRAGMA max_page_count = 1000")
        database.execute("INSERT INTO facts VALUES ('x')")
    file.close()


async def test_no_cursor_leaves_the_thread_of_its_connection(tmp_path: Path) -> None:
    """Freed on another one, it would reset a statement that may be running again by then."""
    file = FactsFile(tmp_path, "CREATE TABLE IF NOT EXISTS facts (text TEXT)")
    with pytest.raises(AssertionError, match="cursor"):
        await file.run(lambda database: database.execute("INSERT INTO facts VALUES ('a')"))
    assert await file.run(lambda database: database.execute("SELECT * FROM facts").fetchall()) == []
    file.close()
