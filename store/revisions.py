"""Revisions of the tables: the one a database is at, the one this code needs, and the way between them.

* The tables are made by the migrations and by nothing else.
* An upgrade is one transaction: it happens whole or not at all.
"""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration: there is no ini file to find."""
    settings = Config(attributes={"connection": connection})
    settings.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    return settings


def head() -> str:
    """The revision that this code needs."""
    revision = ScriptDirectory.from_config(config()).get_current_head()
    assert revision is not None, "the migrations hold no revision"
    return revision


def known() -> frozenset[str]:
    """Every revision that this code can upgrade from."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(config()).walk_revisions())


def current(engine: Engine) -> str | None:
    """The revision that the database is at; None when it has no revision."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def is_empty(engine: Engine) -> bool:
    """Whether the database holds no table at all."""
    return not inspect(engine).get_table_names()


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Bring the tables to a revision: the newest, unless an older one is named."""
    with engine.begin() as connection:
        command.upgrade(config(connection), revision)
