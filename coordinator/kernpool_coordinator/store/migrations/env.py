"""Alembic's entry: runs the migrations on the connection that `store.migrate` hands over."""

from alembic import context

from kernpool_coordinator.store import schema

context.configure(connection=context.config.attributes["connection"], target_metadata=schema.metadata)
with context.begin_transaction():
    context.run_migrations()
