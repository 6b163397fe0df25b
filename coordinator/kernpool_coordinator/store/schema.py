"""The tables. Every record has a workspace and an owner; nothing here is specific to one database.

Whoever changes a table adds a migration in `migrations/versions` and raises HEAD; a test compares the two. Structured
values are JSON in Text columns, because they are written by us, read whole, and never searched.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

HEAD: Final = "0001"
"""Revision of the schema that this code reads and writes."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _workspace() -> Column[str]:
    return Column("workspace", String(64), nullable=False)


def _owner() -> Column[str]:
    return Column("owner", String(200), nullable=False)


jobs = Table(
    "jobs",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    _workspace(),
    _owner(),
    Column("name", String(200), nullable=False),
    Column("cluster", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", String(32), nullable=False),
    Column("exit_code", Integer),
    Column("detail", Text, nullable=False),
    Column("num_nodes", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("fence", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("task", Text, nullable=False),
    Column("needs", Text, nullable=False),
    Column("secrets", LargeBinary),
    Column("verdict", Text, nullable=False),
    Column("adopted", Boolean, nullable=False),
    Column("created_unix_s", Double, nullable=False),
    Column("started_unix_s", Double),
    Column("ended_unix_s", Double),
)
Index(None, jobs.c.state, jobs.c.number)
Index(None, jobs.c.workspace, jobs.c.cluster, jobs.c.number)

attempts = Table(
    "attempts",
    metadata,
    Column("job_number", BigInteger, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("fence", Integer, primary_key=True, autoincrement=False),
    _workspace(),
    _owner(),
    Column("node_id", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", String(32), nullable=False),
    Column("exit_code", Integer),
    Column("detail", Text, nullable=False),
    Column("holding", Text, nullable=False),
    Column("started_unix_s", Double),
    Column("ended_unix_s", Double),
)

clusters = Table(
    "clusters",
    metadata,
    Column("workspace", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    _owner(),
    Column("state", String(16), nullable=False),
    Column("num_nodes", Integer, nullable=False),
    Column("asks", Text, nullable=False),
    Column("holdings", Text, nullable=False),
    Column("created_unix_s", Double, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", String(32), primary_key=True),
    _workspace(),
    _owner(),
    Column("name", String(255), nullable=False),
    Column("pool", String(64), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("removed", Boolean, nullable=False),
    Column("agent_version", String(64), nullable=False),
    Column("inventory", Text, nullable=False),
    Column("joined_unix_s", Double, nullable=False),
)

certificates = Table(
    "certificates",
    metadata,
    Column("serial", String(64), primary_key=True),
    _workspace(),
    _owner(),
    Column("node_id", String(32), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("expires_unix_s", Double, nullable=False),
)
Index(None, certificates.c.node_id)

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String(32), primary_key=True),
    _workspace(),
    _owner(),
    Column("node_id", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", String(32), nullable=False),
    Column("detail", Text, nullable=False),
    Column("template", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("parked", Boolean, nullable=False),
    Column("doomed", Boolean, nullable=False),
    Column("created_unix_s", Double, nullable=False),
    Column("expires_unix_s", Double, nullable=False),
    Column("ended_unix_s", Double),
)
Index(None, sandboxes.c.state, sandboxes.c.ended_unix_s)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    _workspace(),
    _owner(),
    Column("name", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("created_unix_s", Double, nullable=False),
)

join_tokens = Table(
    "join_tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    _workspace(),
    _owner(),
    Column("sha256", String(64), nullable=False),
    Column("pool", String(64), nullable=False),
    Column("uses_left", Integer, nullable=False),
    Column("node_id", String(32), nullable=False),
    Column("created_unix_s", Double, nullable=False),
    Column("expires_unix_s", Double, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    _workspace(),
    _owner(),
    Column("at_unix_s", Double, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("verb", String(64), nullable=False),
    Column("object", String(200), nullable=False),
    Column("cause", Text, nullable=False),
    Column("data", Text, nullable=False),
)
Index(None, events.c.object, events.c.id)

idempotency = Table(
    "idempotency",
    metadata,
    Column("workspace", String(64), primary_key=True),
    Column("owner", String(200), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("outcome", Text, nullable=False),
    Column("created_unix_s", Double, nullable=False),
)
Index(None, idempotency.c.created_unix_s)

pools = Table(
    "pools",
    metadata,
    Column("template", Text, primary_key=True),
    _workspace(),
    _owner(),
    Column("parked", Integer, nullable=False),
    Column("drain_after_s", Double, nullable=False),
)
