"""What can be asked of the writer: put a whole row, delete one by its key, or run a statement of one's own.

Rows are always written whole. So of several operations on one row within a commit only the last one counts, and a
burst of small changes to one record costs one write.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

from sqlalchemy import Connection, Executable, Table, bindparam, delete
from sqlalchemy import Delete as SqlDelete
from sqlalchemy.dialects import postgresql, sqlite

Row = dict[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Put:
    """Insert the row, or replace the one that has its primary key."""

    table: Table
    row: Row
    """Every column of the table."""
    fresh: Callable[[], Row] | None = None
    """Makes the row anew from the live record, for a later try: so an old row never overwrites a newer one."""

    def renewed(self) -> "Put":
        """Give it with the row as it is now."""
        return self if self.fresh is None else Put(self.table, self.fresh(), self.fresh)


@final
@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the row with this primary key; a missing one is no error."""

    table: Table
    key: Row
    """The primary key's columns."""


@final
@dataclass(frozen=True, slots=True)
class Run:
    """Any other statement, e.g. the pruning of old rows; it runs after the rows of its commit."""

    statement: Executable


Operation = Put | Delete | Run


def execute(connection: Connection, operations: Iterable[Operation]) -> None:
    """Run the operations in one open transaction: deletes and puts by table, then statements."""
    rows, statements = _last_of_each_row(operations)
    for table, puts, deletes in _by_table(rows):
        if deletes:
            connection.execute(_delete(table), deletes)
        if puts:
            connection.execute(_upsert(table, connection.dialect.name), puts)
    for statement in statements:
        connection.execute(statement)


def _last_of_each_row(operations: Iterable[Operation]) -> tuple[list[Put | Delete], list[Executable]]:
    rows: dict[tuple[str, tuple[Any, ...]], Put | Delete] = {}
    statements: list[Executable] = []
    for operation in operations:
        match operation:
            case Put(table=table, row=row):
                rows[table.name, tuple([row[name] for name in _key_names(table)])] = operation
            case Delete(table=table, key=key):
                rows[table.name, tuple([key[name] for name in _key_names(table)])] = operation
            case Run(statement=statement):
                statements.append(statement)
    return list(rows.values()), statements


def _by_table(rows: Sequence[Put | Delete]) -> list[tuple[Table, list[Row], list[Row]]]:
    tables: dict[str, tuple[Table, list[Row], list[Row]]] = {}
    for operation in rows:
        _, puts, deletes = tables.setdefault(operation.table.name, (operation.table, [], []))
        if isinstance(operation, Put):
            puts.append(operation.row)
        else:
            deletes.append({f"key_{name}": value for name, value in operation.key.items()})
    return list(tables.values())


@cache
def _key_names(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.primary_key.columns)


@cache
def _delete(table: Table) -> SqlDelete:
    # The prefix keeps our parameters apart from the column names that SQLAlchemy reserves for itself.
    return delete(table).where(*[table.c[name] == bindparam(f"key_{name}") for name in _key_names(table)])


@cache
def _upsert(table: Table, dialect: str) -> sqlite.Insert | postgresql.Insert:
    # The two dialects spell it alike, but share no type for it.
    insert = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    keys = _key_names(table)
    others = {column.name: insert.excluded[column.name] for column in table.columns if column.name not in keys}
    if not others:
        return insert.on_conflict_do_nothing(index_elements=keys)
    return insert.on_conflict_do_update(index_elements=keys, set_=others)
