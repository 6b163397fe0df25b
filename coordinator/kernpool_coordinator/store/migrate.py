"""Runs Alembic's migrations on an old schema; imported only then."""

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from kernpool_coordinator.errors import StoreError
from kernpool_coordinator.store import schema

DIRECTORY: Final = Path(__file__).parent / "migrations"


def upgrade(engine: Engine, revision: str | None) -> None:
    """Bring the schema from `revision` (None: nothing at all) to HEAD, in one transaction.

    Raises StoreError for a newer schema.
    """
    config = configuration()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreError(
            f"the store was written by a newer Kernpool (schema {revision}, this one knows up to {schema.HEAD})",
            hint="upgrade the coordinator, or point it to another state directory",
        )
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, schema.HEAD)


def configuration() -> Config:
    """Alembic's settings, without a file of their own."""
    config = Config()
    config.set_main_option("script_location", str(DIRECTORY).replace("%", "%%"))
    return config
