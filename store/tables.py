"""The eight tables, as typed models. Migrations make them; a test holds the two together.

* Token ids, targets and weights are compact bytes; times are integer microseconds UTC.
* A private turn holds no word and no token id: the table itself refuses it otherwise.
* A signal trains at most once: it makes one lesson, and a lesson has at most one step.
* Of one agent there is one shadow, one stable adapter, one adapter of each version.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    MetaData,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from store.columns import AnyText, Counter, Json, JsonValue, RowLosses, TargetIds, TokenIds, Weights, Word
from store.words import AdapterState, LedgerKind, LessonState, Role, SignalState

NAMES = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}
"""Constraints need names: a later migration can only drop what it can name."""

IS_SHADOW = text("state = 'shadow'")
IS_STABLE = text("state = 'stable'")
HAS_CODE = text("code IS NOT NULL")

FILTERED = (
    ("agent",),
    ("context",),
    ("kind",),
    ("agent", "context"),
    ("agent", "kind"),
    ("context", "kind"),
    ("agent", "context", "kind"),
)
FILTERED_CODES = (
    ("code", "kind"),
    ("agent", "code", "kind"),
    ("context", "code", "kind"),
    ("agent", "context", "code", "kind"),
)
"""Every way of filtering the ledger has an index in the order of its pages: no page reads a row it does not give.

A code is a refusal's, so that those indexes hold the refusals only.
"""


class Base(DeclarativeBase):
    """What all models share."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        str: Text,
        int: BigInteger,
        tuple[int, ...]: TokenIds,
        tuple[int | None, ...]: TargetIds,
        tuple[float, ...]: Weights,
        tuple[float | None, ...]: RowLosses,
        list[str]: JSON,
        dict[str, JsonValue]: Json,
        SignalState: Word(SignalState),
        LessonState: Word(LessonState),
        Role: Word(Role),
        AdapterState: Word(AdapterState),
        LedgerKind: Word(LedgerKind),
    }


class TurnTable(Base):
    """Completion requests, served. One that is open has no `finish_reason`."""

    __tablename__ = "turns"
    __table_args__ = (
        CheckConstraint(
            "NOT private OR (messages IS NULL AND template_args IS NULL AND prompt_tokens IS NULL"
            " AND reply_tokens IS NULL AND reply_text IS NULL)",
            name="private_is_wordless",
        ),
        Index(None, "agent", "context", "created_at_us"),
        Index(None, "agent", "created_at_us"),
        Index(
            "ix_turns_private",
            *("agent", "context", "private"),
            sqlite_where=text("private = 1"),
            postgresql_where=text("private"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    agent: Mapped[str]
    context: Mapped[str]
    private: Mapped[bool]
    lane: Mapped[str]
    slot: Mapped[int | None]
    adapter: Mapped[str]
    messages: Mapped[JsonValue] = mapped_column(Json, nullable=True)
    template_args: Mapped[dict[str, JsonValue] | None]
    prompt_tokens: Mapped[tuple[int, ...] | None]
    reply_tokens: Mapped[tuple[int, ...] | None]
    reply_text: Mapped[str | None] = mapped_column(AnyText)
    prompt_token_count: Mapped[int]
    reply_token_count: Mapped[int]
    cached_token_count: Mapped[int]
    finish_reason: Mapped[str | None]
    created_at_us: Mapped[int]
    first_token_ms: Mapped[float | None]
    total_ms: Mapped[float | None]


class SignalTable(Base):
    """Events the agents emitted, each with its fate."""

    __tablename__ = "signals"
    __table_args__ = (
        CheckConstraint("NOT private OR body IS NULL", name="private_is_wordless"),
        Index(None, "agent", "context", "state"),
        Index(None, "agent", "state", "code", "received_at_us"),
        Index(None, "state", "arrival"),
        Index(None, "turn", "kind", "arrival"),
        Index(None, "engram", "kind", "arrival"),
        Index(None, "lesson"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    agent: Mapped[str]
    context: Mapped[str]
    kind: Mapped[str]
    turn: Mapped[str | None]
    engram: Mapped[str | None]
    at_us: Mapped[int]
    body: Mapped[dict[str, JsonValue] | None]
    fingerprint: Mapped[str]
    sender: Mapped[str]
    private: Mapped[bool]
    state: Mapped[SignalState]
    code: Mapped[str | None]
    message: Mapped[str | None] = mapped_column(AnyText)
    position: Mapped[int | None]
    received_at_us: Mapped[int]
    arrival: Mapped[int] = mapped_column(unique=True)
    """The ledger's seq of its arrival: signals of one microsecond have an order too."""
    lesson: Mapped[str | None] = mapped_column(ForeignKey("lessons.id"))


class LessonTable(Base):
    """Runs of labelled rows, planned from signals."""

    __tablename__ = "lessons"
    __table_args__ = (
        Index(None, "agent", "context", "state"),
        Index(None, "agent", "state", "code", "planned_at_us"),
        Index("ix_lessons_listed", "planned_at_us", "id", "agent", "context", "state", "code"),
        Index(None, "turn"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    agent: Mapped[str]
    context: Mapped[str]
    turn: Mapped[str] = mapped_column(ForeignKey("turns.id"))
    kind: Mapped[str]
    state: Mapped[LessonState]
    prefix_token_count: Mapped[int]
    tokens: Mapped[tuple[int, ...]]
    targets: Mapped[tuple[int | None, ...]]
    weights: Mapped[tuple[float, ...]]
    lr: Mapped[float | None]
    planned_at_us: Mapped[int]
    ridden_turn: Mapped[str | None]
    """No foreign key: a lesson begins its ride before the turn it rides has ended and is recorded."""
    code: Mapped[str | None]
    message: Mapped[str | None] = mapped_column(AnyText)
    position: Mapped[int | None]


class LessonSignalTable(Base):
    """Which signals a lesson was planned from."""

    __tablename__ = "lesson_signals"
    __table_args__ = (Index(None, "signal"),)

    lesson: Mapped[str] = mapped_column(ForeignKey("lessons.id"), primary_key=True)
    signal: Mapped[str] = mapped_column(ForeignKey("signals.id"), primary_key=True)
    role: Mapped[Role]


class StepTable(Base):
    """Optimizer steps, each of one lesson, with everything that doing it again takes."""

    __tablename__ = "steps"
    __table_args__ = (
        UniqueConstraint("agent", "number"),
        Index(
            "ix_steps_summary",
            *("agent", "number", "created_at_us", "loss_before", "loss_after"),
            *("learned_token_count", "learning_ms", "waited_ms"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    lesson: Mapped[str] = mapped_column(ForeignKey("lessons.id"), unique=True)
    agent: Mapped[str]
    number: Mapped[int]
    signals: Mapped[list[str]]
    prefix_turn: Mapped[str] = mapped_column(ForeignKey("turns.id"))
    prefix_token_count: Mapped[int]
    tokens: Mapped[tuple[int, ...]]
    targets: Mapped[tuple[int | None, ...]]
    weights: Mapped[tuple[float, ...]]
    stable: Mapped[str]
    served: Mapped[dict[str, JsonValue]]
    made_by: Mapped[dict[str, JsonValue]]
    forgotten: Mapped[bool]
    learned_token_count: Mapped[int]
    """Rows with a target and a weight: what the loss is of."""
    loss_before: Mapped[float]
    row_losses_before: Mapped[tuple[float | None, ...]]
    loss_after: Mapped[float | None]
    row_losses_after: Mapped[tuple[float | None, ...] | None]
    kl_served: Mapped[float | None]
    gradient_norm: Mapped[float]
    optimizer: Mapped[str]
    hyperparameters: Mapped[dict[str, JsonValue]]
    lr: Mapped[float]
    chunk_rows: Mapped[int]
    shadow_before: Mapped[str]
    shadow_after: Mapped[str]
    snapshot: Mapped[str]
    learning_ms: Mapped[float]
    waited_ms: Mapped[float]
    peak_bytes: Mapped[int]
    created_at_us: Mapped[int]


class AdapterTable(Base):
    """Each agent's shadow (one row, which moves) and its versions (one row each, which stay)."""

    __tablename__ = "adapters"
    __table_args__ = (
        CheckConstraint("(state = 'shadow') = (version IS NULL)", name="versions_are_numbered"),
        UniqueConstraint("agent", "version"),
        Index("uq_adapters_shadow", "agent", unique=True, sqlite_where=IS_SHADOW, postgresql_where=IS_SHADOW),
        Index("uq_adapters_stable", "agent", unique=True, sqlite_where=IS_STABLE, postgresql_where=IS_STABLE),
    )

    id: Mapped[int] = mapped_column(Counter, primary_key=True)
    agent: Mapped[str]
    state: Mapped[AdapterState]
    version: Mapped[int | None]
    sha: Mapped[str]
    snapshot: Mapped[str]
    step_number: Mapped[int]
    created_at_us: Mapped[int]


class LeaseTable(Base):
    """Which lane each agent belongs to, where several write: see `store/leases.py`."""

    __tablename__ = "leases"
    __table_args__ = (Index(None, "lane"),)

    agent: Mapped[str] = mapped_column(primary_key=True)
    lane: Mapped[str]
    token: Mapped[int]
    made_for: Mapped[dict[str, JsonValue]]
    """The model that the lane serves, and its adapters' rank and alpha."""
    expires_at_us: Mapped[int]


class LedgerTable(Base):
    """The append-only record. Triggers made by the migration refuse every change to a row that is there.

    Only what a row of kind `archive` says is archived may go.
    """

    __tablename__ = "ledger"
    __table_args__ = (
        *(Index(None, *columns, "seq") for columns in FILTERED),
        *(
            Index(
                f"ix_ledger_{'_'.join(columns)}_seq",
                *columns,
                "seq",
                sqlite_where=HAS_CODE,
                postgresql_where=HAS_CODE,
            )
            for columns in FILTERED_CODES
        ),
        Index(None, "at_us", "seq"),
        Index(None, "subject", "kind"),
    )

    seq: Mapped[int] = mapped_column(Counter, primary_key=True, autoincrement=False)
    at_us: Mapped[int]
    kind: Mapped[LedgerKind]
    agent: Mapped[str]
    context: Mapped[str | None]
    code: Mapped[str | None]
    subject: Mapped[str]
    body: Mapped[dict[str, JsonValue]]
    previous: Mapped[str]
    sha: Mapped[str]
