"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make them all."""
    _attempts()
    _certificates()
    _clusters()
    _events()
    _idempotency()
    _jobs()
    _join_tokens()
    _nodes()
    _pools()
    _sandboxes()
    _tokens()


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("job_number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fence", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("node_id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("holding", sa.Text(), nullable=False),
        sa.Column("started_unix_s", sa.Double(), nullable=True),
        sa.Column("ended_unix_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("job_number", "rank", "fence", name=op.f("pk_attempts")),
    )


def _certificates() -> None:
    op.create_table(
        "certificates",
        sa.Column("serial", sa.String(length=64), nullable=False),
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("node_id", sa.String(length=32), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.Column("expires_unix_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_certificates")),
    )
    op.create_index(op.f("ix_certificates_node_id"), "certificates", ["node_id"], unique=False)


def _clusters() -> None:
    op.create_table(
        "clusters",
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("num_nodes", sa.Integer(), nullable=False),
        sa.Column("asks", sa.Text(), nullable=False),
        sa.Column("holdings", sa.Text(), nullable=False),
        sa.Column("created_unix_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("workspace", "name", name=op.f("pk_clusters")),
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("at_unix_s", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("verb", sa.String(length=64), nullable=False),
        sa.Column("object", sa.String(length=200), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_object_id"), "events", ["object", "id"], unique=False)


def _idempotency() -> None:
    op.create_table(
        "idempotency",
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("created_unix_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("workspace", "owner", "kind", "key", name=op.f("pk_idempotency")),
    )
    op.create_index(op.f("ix_idempotency_created_unix_s"), "idempotency", ["created_unix_s"], unique=False)


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("cluster", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("num_nodes", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("needs", sa.Text(), nullable=False),
        sa.Column("secrets", sa.LargeBinary(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("adopted", sa.Boolean(), nullable=False),
        sa.Column("created_unix_s", sa.Double(), nullable=False),
        sa.Column("started_unix_s", sa.Double(), nullable=True),
        sa.Column("ended_unix_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_state_number"), "jobs", ["state", "number"], unique=False)
    op.create_index(op.f("ix_jobs_workspace_cluster_number"), "jobs", ["workspace", "cluster", "number"], unique=False)


def _join_tokens() -> None:
    op.create_table(
        "join_tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("pool", sa.String(length=64), nullable=False),
        sa.Column("uses_left", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.String(length=32), nullable=False),
        sa.Column("created_unix_s", sa.Double(), nullable=False),
        sa.Column("expires_unix_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_join_tokens")),
    )


def _nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("pool", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("agent_version", sa.String(length=64), nullable=False),
        sa.Column("inventory", sa.Text(), nullable=False),
        sa.Column("joined_unix_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )


def _pools() -> None:
    op.create_table(
        "pools",
        sa.Column("template", sa.Text(), nullable=False),
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("parked", sa.Integer(), nullable=False),
        sa.Column("drain_after_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("template", name=op.f("pk_pools")),
    )


def _sandboxes() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("node_id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("template", sa.Text(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("parked", sa.Boolean(), nullable=False),
        sa.Column("doomed", sa.Boolean(), nullable=False),
        sa.Column("created_unix_s", sa.Double(), nullable=False),
        sa.Column("expires_unix_s", sa.Double(), nullable=False),
        sa.Column("ended_unix_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sandboxes")),
    )
    op.create_index(op.f("ix_sandboxes_state_ended_unix_s"), "sandboxes", ["state", "ended_unix_s"], unique=False)


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("workspace", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_unix_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_tokens_sha256")),
    )
