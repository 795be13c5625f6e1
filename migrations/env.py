"""What Alembic runs: the revisions, on the connection that `store.revisions` gives, inside its transaction.

* There is no ini file and no offline mode: whoever upgrades holds an open database.
"""

from alembic import context
from sqlalchemy import Connection

from store.tables import Base


def run(connection: Connection) -> None:
    """Run the revisions asked for, inside the transaction that the connection has begun, on SQLite too."""
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
