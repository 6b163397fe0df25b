"""The database itself: schema, migrations, crash, full disk."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Table, create_engine, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from kernpool_coordinator.errors import StoreError
from kernpool_coordinator.store import Delete, Put, Run, Store, schema
from kernpool_coordinator.store.database import sqlite_url
from kernpool_coordinator.store.migrate import configuration, upgrade
from kernpool_coordinator.store.operations import _upsert

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
"""A child finds the rooms where we found them."""


def event_row(number: int, **fields: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": number, "workspace": "default", "owner": "ann", "at_unix_s": 1.0, "actor": "ann", "verb": "submitted",
        "object": "job/j-1", "cause": "", "data": "{}",
    }  # fmt: skip
    return row | fields


def event_ids(connection: Connection) -> list[int]:
    return list(connection.execute(select(schema.events.c.id).order_by(schema.events.c.id)).scalars())


async def test_rows_are_there_after_a_restart(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "kernpool.db")
    store = await Store.open(url)
    await store.write([Put(schema.events, event_row(1)), Put(schema.events, event_row(2))])
    await store.close()
    again = await Store.open(url)
    assert await again.read(event_ids) == [1, 2]
    await again.close()


async def test_the_last_operation_on_a_row_counts(tmp_path: Path) -> None:
    """A job goes through three states within one commit: the store keeps the last."""
    store = await Store.open(sqlite_url(tmp_path / "kernpool.db"))
    await store.write(
        [
            Put(schema.events, event_row(1, verb="a")),
            Put(schema.events, event_row(1, verb="b")),
            Put(schema.events, event_row(2)),
            Delete(schema.events, {"id": 2}),
            Put(schema.events, event_row(3)),
        ]
    )
    await store.write([Delete(schema.events, {"id": 99}), Run(schema.events.delete().where(schema.events.c.id == 3))])
    assert await store.read(lambda c: c.execute(select(schema.events.c.id, schema.events.c.verb)).all()) == [(1, "b")]
    await store.close()


async def test_commits_are_durable_and_do_not_block_readers(tmp_path: Path) -> None:
    store = await Store.open(sqlite_url(tmp_path / "kernpool.db"))

    def pragmas(connection: Connection) -> tuple[str, int]:
        journal = connection.execute(text("PRAGMA journal_mode")).scalar_one()
        return journal, connection.execute(text("PRAGMA synchronous")).scalar_one()

    assert await store.read(pragmas) == ("wal", 2)
    await store.close()


def test_the_migrations_make_the_same_schema_as_the_tables(tmp_path: Path) -> None:
    """A column added to a table and forgotten in the migrations works on new installs and breaks old ones."""
    engine = create_engine(sqlite_url(tmp_path / "migrated.db"))
    upgrade(engine, None)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == schema.HEAD
    engine.dispose()


@pytest.mark.parametrize("table", schema.metadata.sorted_tables, ids=str)
def test_every_table_is_written_alike_on_postgresql(table: Table) -> None:
    """Several coordinators share a PostgreSQL one day: nothing here may be SQLite's alone."""
    for name, module in (("sqlite", sqlite), ("postgresql", postgresql)):
        dialect = module.dialect()
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=dialect))
        assert "ON CONFLICT" in str(_upsert(table, name).compile(dialect=dialect))


def test_head_is_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(configuration()).get_current_head() == schema.HEAD


async def test_alembic_is_imported_only_when_the_schema_is_behind(tmp_path: Path) -> None:
    """Alembic costs 15 MB that the idle coordinator should not hold."""
    program = f"""
        import asyncio, sys
        from kernpool_coordinator.store import Store
        async def main():
            store = await Store.open({sqlite_url(tmp_path / "kernpool.db")!r})
            await store.close()
        asyncio.run(main())
        assert "alembic" not in sys.modules
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    for _ in range(2):
        await asyncio.to_thread(subprocess.run, command, check=True, env=ENVIRONMENT)


async def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """Someone downgrades: writing with old code would lose what the new columns say."""
    path = tmp_path / "kernpool.db"
    store = await Store.open(sqlite_url(path))
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreError, match="newer Kernpool"):
        await Store.open(sqlite_url(path))


WRITER = """
    import asyncio, sys
    from kernpool_coordinator.store import Put, Store, schema
    async def main():
        store = await Store.open(sys.argv[1])
        row = {"workspace": "d", "owner": "o", "at_unix_s": 1.0, "actor": "a", "verb": "v", "object": "o",
               "cause": "", "data": "{}"}
        def acknowledge(number):
            return lambda future: future.exception() or sys.stdout.write(f"{number}\\n") and sys.stdout.flush()
        number = 0
        while True:
            futures = []
            for _ in range(40):
                number += 1
                future = store.submit([Put(schema.events, row | {"id": number})])
                future.add_done_callback(acknowledge(number))
                futures.append(future)
            await futures[0]
    asyncio.run(main())
"""


@pytest.mark.parametrize("acknowledged_before_kill", [1, 500])
async def test_every_acknowledged_row_survives_kill_9(tmp_path: Path, acknowledged_before_kill: int) -> None:
    """The coordinator is killed in the middle of a burst: what it said yes to is there."""
    url = sqlite_url(tmp_path / "kernpool.db")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(WRITER), url, stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT
    )
    assert process.stdout is not None
    acknowledged = [int(await process.stdout.readline()) for _ in range(acknowledged_before_kill)]
    process.send_signal(signal.SIGKILL)
    rest = (await process.stdout.read()).decode()
    acknowledged += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    await process.wait()
    store = await Store.open(url)
    assert set(acknowledged) <= set(await store.read(event_ids))
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A real file system of 512 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("this machine lets us mount no tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
async def test_a_full_disk_is_a_clear_error_and_is_got_over(small_disk: Path) -> None:
    """The store's disk fills up: callers are told what to do, nothing half-written stays, it goes on afterwards."""
    store = await Store.open(sqlite_url(small_disk / "kernpool.db"))
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (100 << 10))
    written: list[int] = []

    async def fill() -> None:
        for number in range(1, 1000):
            await store.write([Put(schema.events, event_row(number, cause="x" * 4000))])
            written.append(number)

    with pytest.raises(StoreError, match=r"disk of the store at .* is full") as caught:
        await fill()
    assert "free space" in caught.value.hint
    ballast.unlink()
    await store.write([Put(schema.events, event_row(5000))])
    assert await store.read(event_ids) == [*written, 5000]
    await store.close()


async def test_a_directory_that_is_missing_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unable to open"):
        await Store.open(sqlite_url(tmp_path / "nowhere" / "kernpool.db"))
