"""Scrubbing: no byte of what was erased is left in the database's files.

* SQLite's file is written anew, and its log emptied. The file system's own free blocks are out of reach.
* On PostgreSQL the tables that hold text are. Its log and its backups are its administrator's.
"""

from sqlalchemy import PoolProxiedConnection

from store.database import Database
from store.errors import StillRead, StorageFailed


def scrub(database: Database) -> None:
    """Leave nothing of it. No transaction may be open on the writer's connection.

    Raises:
        StillRead: another program reads a SQLite file, whose log cannot be emptied meanwhile.
        StorageFailed: the database failed.
    """
    connection = database.engine.raw_connection()
    try:
        if database.engine.dialect.name == "sqlite":
            _scrub_sqlite(connection)
        else:
            _scrub_postgresql(connection)
    except database.engine.dialect.loaded_dbapi.Error as error:
        raise StorageFailed(
            f"it is forgotten, but the database failed to write its files anew: {error}"
        ) from error
    finally:
        connection.close()


def _scrub_sqlite(connection: PoolProxiedConnection) -> None:
    cursor = connection.cursor()
    cursor.execute("VACUUM")
    cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    row = cursor.fetchone()
    cursor.close()
    if row is None or row[0]:
        raise StillRead(
            "it is forgotten, but another program reads the ledger, so that its log still holds what was erased: "
            "end that program and run the same again"
        )


def _scrub_postgresql(connection: PoolProxiedConnection) -> None:
    driver = connection.driver_connection
    assert driver is not None, "the connection is closed"
    driver.autocommit = True  # it vacuums outside of transactions only
    try:
        driver.execute("VACUUM FULL turns, signals, lessons, steps")
    finally:
        driver.autocommit = False
