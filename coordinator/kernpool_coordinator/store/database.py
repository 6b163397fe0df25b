"""The database itself: opens it, brings its schema up to date, commits groups, reads in threads."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeVar, final

from sqlalchemy import Connection, Engine, create_engine, event, exc, inspect, text
from sqlalchemy.engine import URL, make_url

from kernpool_coordinator.errors import StoreError
from kernpool_coordinator.store import schema
from kernpool_coordinator.store.operations import Operation, execute
from kernpool_coordinator.store.writer import GroupWriter, RowError, WriterStatistics

T = TypeVar("T")
BUSY_TIMEOUT_MS: Final = 5_000


@final
class Store:
    """One open database. `write` and `submit` go through the group writer; `read` runs in a thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.writer = GroupWriter(self._commit)

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open it and migrate it when it is behind. Raises StoreError saying what to do."""
        return cls(await asyncio.to_thread(_open_engine, url))

    async def close(self) -> None:
        """Commit what is queued and let go of the files."""
        await self.writer.close()
        await asyncio.to_thread(self._engine.dispose)

    def submit(self, operations: Sequence[Operation]) -> asyncio.Future[None]:
        """Queue operations; see GroupWriter.submit."""
        return self.writer.submit(operations)

    async def write(self, operations: Sequence[Operation]) -> None:
        """Wait until the operations are on disk. Raises StoreError."""
        await self.writer.write(operations)

    async def read(self, function: Callable[[Connection], T]) -> T:
        """Run a reading function in a thread, on a connection of its own."""
        return await asyncio.to_thread(self._read, function)

    def statistics(self) -> WriterStatistics:
        """Count commits and rows."""
        return self.writer.statistics()

    def _read(self, function: Callable[[Connection], T]) -> T:
        with _translated(self._engine.url), self._engine.connect() as connection:
            return function(connection)

    def _commit(self, operations: Sequence[Operation]) -> None:
        with _translated(self._engine.url), self._engine.begin() as connection:
            execute(connection, operations)


def sqlite_url(path: Path) -> str:
    """Name a SQLite file as SQLAlchemy wants it."""
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def _open_engine(url: str) -> Engine:
    engine = create_engine(make_url(url))
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_pragmas)
    try:
        with _translated(engine.url):
            _bring_up_to_date(engine)
    except StoreError:
        engine.dispose()
        raise
    return engine


def _set_pragmas(connection: Any, _record: object) -> None:
    """Durable commits (FULL) that do not block readers (WAL)."""
    cursor = connection.cursor()
    try:
        # NORMAL would lose the last commits on a power loss, and an attempt could be started twice.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={BUSY_TIMEOUT_MS}"):
            cursor.execute(f"PRAGMA {pragma}")
    finally:
        cursor.close()


def _bring_up_to_date(engine: Engine) -> None:
    """Make a new schema, or migrate an old one. Alembic (15 MB, 0.2 s) is imported only for the latter."""
    revision = _revision(engine)
    if revision == schema.HEAD:
        return
    if revision is None:
        _create(engine)
        return
    from kernpool_coordinator.store.migrate import upgrade

    upgrade(engine, revision)


def _revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _create(engine: Engine) -> None:
    """Make every table and name the revision, in one transaction: a crash half-way leaves nothing."""
    with engine.begin() as connection:
        schema.metadata.create_all(connection)
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
        connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": schema.HEAD})


@contextmanager
def _translated(url: URL) -> Iterator[None]:
    """Turn what SQLAlchemy and the driver raise into StoreError, with the next step."""
    where = url.database if url.drivername.startswith("sqlite") else url.render_as_string(hide_password=True)
    try:
        yield
    except (exc.IntegrityError, exc.DataError, exc.StatementError) as error:
        if isinstance(error, exc.OperationalError):
            raise _operational(str(error.orig), str(where)) from error
        raise RowError(f"the store at {where} refused a row: {error.orig or error}") from error
    except (exc.SQLAlchemyError, OSError) as error:
        raise _operational(str(error), str(where)) from error


def _operational(cause: str, where: str) -> StoreError:
    if "full" in cause or "No space left" in cause:
        message = f"the disk of the store at {where} is full: nothing of this request was kept"
        return StoreError(message, hint="free space on that disk; the coordinator goes on by itself")
    if "locked" in cause:
        message = f"the store at {where} is locked by another process"
        return StoreError(message, hint="stop the other coordinator or the tool that has it open")
    return StoreError(f"the store at {where} failed: {cause}", hint="look at the disk and at coordinator.log")
