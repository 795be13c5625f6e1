"""Everything the store refuses, as one tree.

    StoreError
    ├── OpenError                 the database cannot be opened, or is no longer open
    │   ├── NoDatabase            there is none at that place
    │   ├── WrongRevision         its tables are of another version of ridealong
    │   ├── AlreadyOpen           another process writes to it
    │   ├── UnsupportedUrl        neither a file, nor PostgreSQL
    │   └── Closed                the store was closed
    ├── ReadOnly                  a write through a database opened for reading
    ├── StorageFailed             the database itself failed: disk full, locked, connection lost
    │   └── Clashed               it gave way to another program's transaction: the same again may pass
    ├── Unknown                   no row of that id
    │   └── Archived              the ledger row was moved to an archive
    ├── AlreadyRecorded           an id that is already taken
    ├── WrongState                the row is not in a state that allows this
    ├── LessonRefused             the lesson is one that must not be kept
    ├── DoesNotFollow             a step or a promotion made from another shadow than the head
    ├── Elsewhere                 the agent belongs to another lane, or to none any more
    ├── OtherModel                the database is of lanes that serve another model
    ├── NothingToPromote          the shadow is already what is served
    ├── CannotForget              a signal that others are weighed by
    ├── MovedOn                   what was prepared is no longer what is there
    ├── StillRead                 a file from which nothing can be erased meanwhile
    ├── BadPage                   a page of the ledger that cannot be served
    └── NotArchived               rows of the ledger that cannot be moved to an archive

Every message says what was given, what is allowed and what to do. A raised error has changed nothing: the
transaction it was raised in is rolled back.
"""

from collections.abc import Collection, Mapping


class StoreError(Exception):
    """The root of the tree."""


class OpenError(StoreError):
    """The database cannot be opened, or is no longer open."""


class NoDatabase(OpenError):
    """There is no database at that place, and none was asked to be made."""


class WrongRevision(OpenError):
    """The tables are at another revision than this version of ridealong needs."""

    def __init__(self, *, where: str, found: str | None, needed: str, known: bool, command: str) -> None:
        self.found = found
        self.needed = needed
        self.command = command
        program = "" if known else " with the ridealong that wrote it, or a newer one"
        super().__init__(
            f"the ledger at {where} is at revision {found or 'none'}, this ridealong needs {needed}:"
            f" run `{command}`{program}"
        )


class AlreadyOpen(OpenError):
    """Another process has the database open for writing."""


class UnsupportedUrl(OpenError):
    """The URL names neither a SQLite file nor a PostgreSQL database."""


class Closed(OpenError):
    """The store was closed."""


class ReadOnly(StoreError):
    """A write through a database that was opened for reading."""


class StorageFailed(StoreError):
    """The database failed underneath the operation; the driver's error is the cause."""


class Clashed(StorageFailed):
    """The transaction gave way to one of another program: a serialization failure or a deadlock."""


class Unknown(StoreError):
    """No row of that id."""

    def __init__(self, what: str, identity: str) -> None:
        super().__init__(f"there is no {what} {identity!r}: record it first, or check the id")


class Archived(Unknown):
    """The ledger row is no longer in the ledger but in an archive."""

    def __init__(self, seq: int, *, through: int) -> None:
        Exception.__init__(
            self, f"ledger row {seq} is archived, as all up to {through}: read it in the archive that has it"
        )


class AlreadyRecorded(StoreError):
    """A row of that id is already there."""

    def __init__(self, what: str, identity: str) -> None:
        super().__init__(f"{what} {identity!r} is already recorded: every {what} needs an id of its own")


class WrongState(StoreError):
    """The row is not in a state that allows the operation."""

    def __init__(self, what: str, identity: str, *, state: str, allowed: Collection[str]) -> None:
        self.state = state
        super().__init__(f"{what} {identity!r} is {state}: it must be {' or '.join(sorted(allowed))}")


class LessonRefused(StoreError):
    """The lesson is one that must not be kept."""


class DoesNotFollow(StoreError):
    """The step or promotion was made from a shadow that is not the agent's head."""

    def __init__(self, *, agent: str, given: str, head: str) -> None:
        super().__init__(
            f"agent {agent!r}: made from shadow {given}, but the head is {head}:"
            " load the head's snapshot and do it again"
        )


class Elsewhere(StoreError):
    """The agent does not belong to this lane: nothing that she learns is changed here."""

    def __init__(self, agent: str, *, lane: str | None, live: bool) -> None:
        self.agent = agent
        self.lane = lane
        whose = "no lane" if lane is None else f"lane {lane}" if live else f"no lane since {lane} let her go"
        super().__init__(
            f"agent {agent!r} belongs to {whose}: ask that lane, or stop it and copy her snapshots into this "
            "one's data directory"
        )


class OtherModel(StoreError):
    """Lanes of one database serve one model, with adapters of one shape."""

    def __init__(self, *, agent: str, lane: str, theirs: Mapping[str, object], ours: Mapping[str, object]) -> None:
        other = {name: (value, ours.get(name)) for name, value in theirs.items() if value != ours.get(name)}
        told = ", ".join(f"{name} {value}, this lane has {own}" for name, (value, own) in sorted(other.items()))
        super().__init__(
            f"agent {agent!r} of lane {lane} in this database has {told}: lanes that share a database serve the "
            "same model with adapters of the same shape; start this one as that, or with another database"
        )


class NothingToPromote(StoreError):
    """The shadow is already the stable version."""


class CannotForget(StoreError):
    """What was asked to be forgotten is not what was learned."""


class MovedOn(StoreError):
    """What was prepared does not fit what is there any more."""


class StillRead(StoreError):
    """Another program reads the file, so that what was erased is not out of it yet."""


class BadPage(StoreError):
    """The page asked for cannot be served."""


class NotArchived(StoreError):
    """Rows of the ledger cannot be moved to an archive; none was."""
