"""The first tables: turns, signals, lessons, steps and adapters, and the append-only ledger.

Revision: 0001, after None.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Names of checks stand in op.f: they stay as written, whatever naming convention the models have by then.

APPEND_ONLY = "the ledger is append-only"

FILTERS = (
    *("agent", "context", "kind", "agent_context", "agent_kind", "context_kind", "agent_context_kind"),
    *("code_kind", "agent_code_kind", "context_code_kind", "agent_context_code_kind"),
)

# A row may go when a later one says that it was archived.
ARCHIVED_ON_SQLITE = (
    "SELECT 1 FROM ledger WHERE kind = 'archive' AND json_extract(body, '$.through_seq') >= OLD.seq"
)
ARCHIVED_ON_POSTGRESQL = (
    "SELECT 1 FROM ledger WHERE kind = 'archive' AND CAST(body ->> 'through_seq' AS bigint) >= OLD.seq"
)


def upgrade() -> None:
    create_turns()
    create_lessons()
    create_signals()
    create_lesson_signals()
    create_steps()
    create_adapters()
    create_leases()
    create_ledger()
    forbid_changes_to_ledger()
    tell_sqlite_what_to_expect()


def downgrade() -> None:
    raise NotImplementedError("a ledger is not taken back: restore the copy made before the upgrade")


def create_turns() -> None:
    op.create_table(
        "turns",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("private", sa.Boolean, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("slot", sa.BigInteger, nullable=True),
        sa.Column("adapter", sa.Text, nullable=False),
        sa.Column("messages", sa.JSON, nullable=True),
        sa.Column("template_args", sa.JSON, nullable=True),
        sa.Column("prompt_tokens", sa.LargeBinary, nullable=True),
        sa.Column("reply_tokens", sa.LargeBinary, nullable=True),
        sa.Column("reply_text", sa.Text, nullable=True),
        sa.Column("prompt_token_count", sa.BigInteger, nullable=False),
        sa.Column("reply_token_count", sa.BigInteger, nullable=False),
        sa.Column("cached_token_count", sa.BigInteger, nullable=False),
        sa.Column("finish_reason", sa.Text, nullable=True),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("first_token_ms", sa.Double, nullable=True),
        sa.Column("total_ms", sa.Double, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_turns"),
        sa.CheckConstraint(
            "NOT private OR (messages IS NULL AND template_args IS NULL AND prompt_tokens IS NULL"
            " AND reply_tokens IS NULL AND reply_text IS NULL)",
            name=op.f("ck_turns_private_is_wordless"),
        ),
    )
    op.create_index("ix_turns_agent_context_created_at_us", "turns", ["agent", "context", "created_at_us"])
    op.create_index("ix_turns_agent_created_at_us", "turns", ["agent", "created_at_us"])
    op.create_index(
        "ix_turns_private",
        "turns",
        ["agent", "context", "private"],
        sqlite_where=sa.text("private = 1"),
        postgresql_where=sa.text("private"),
    )


def create_lessons() -> None:
    op.create_table(
        "lessons",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("turn", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("prefix_token_count", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.LargeBinary, nullable=False),
        sa.Column("targets", sa.LargeBinary, nullable=False),
        sa.Column("weights", sa.LargeBinary, nullable=False),
        sa.Column("lr", sa.Double, nullable=True),
        sa.Column("planned_at_us", sa.BigInteger, nullable=False),
        sa.Column("ridden_turn", sa.Text, nullable=True),
        sa.Column("code", sa.Text, nullable=True),
        sa.Column("message", sa.Text, nullable=True),
        sa.Column("position", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_lessons"),
        sa.ForeignKeyConstraint(["turn"], ["turns.id"], name="fk_lessons_turn"),
    )
    op.create_index("ix_lessons_agent_context_state", "lessons", ["agent", "context", "state"])
    op.create_index(
        "ix_lessons_agent_state_code_planned_at_us", "lessons", ["agent", "state", "code", "planned_at_us"]
    )
    op.create_index("ix_lessons_listed", "lessons", ["planned_at_us", "id", "agent", "context", "state", "code"])
    op.create_index("ix_lessons_turn", "lessons", ["turn"])


def create_signals() -> None:
    op.create_table(
        "signals",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("turn", sa.Text, nullable=True),
        sa.Column("engram", sa.Text, nullable=True),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("body", sa.JSON, nullable=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("private", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("code", sa.Text, nullable=True),
        sa.Column("message", sa.Text, nullable=True),
        sa.Column("position", sa.BigInteger, nullable=True),
        sa.Column("received_at_us", sa.BigInteger, nullable=False),
        sa.Column("arrival", sa.BigInteger, nullable=False),
        sa.Column("lesson", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_signals"),
        sa.UniqueConstraint("arrival", name="uq_signals_arrival"),
        sa.ForeignKeyConstraint(["lesson"], ["lessons.id"], name="fk_signals_lesson"),
        sa.CheckConstraint("NOT private OR body IS NULL", name=op.f("ck_signals_private_is_wordless")),
    )
    op.create_index("ix_signals_agent_context_state", "signals", ["agent", "context", "state"])
    op.create_index(
        "ix_signals_agent_state_code_received_at_us", "signals", ["agent", "state", "code", "received_at_us"]
    )
    op.create_index("ix_signals_state_arrival", "signals", ["state", "arrival"])
    op.create_index("ix_signals_turn_kind_arrival", "signals", ["turn", "kind", "arrival"])
    op.create_index("ix_signals_engram_kind_arrival", "signals", ["engram", "kind", "arrival"])
    op.create_index("ix_signals_lesson", "signals", ["lesson"])


def create_lesson_signals() -> None:
    op.create_table(
        "lesson_signals",
        sa.Column("lesson", sa.Text, nullable=False),
        sa.Column("signal", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("lesson", "signal", name="pk_lesson_signals"),
        sa.ForeignKeyConstraint(["lesson"], ["lessons.id"], name="fk_lesson_signals_lesson"),
        sa.ForeignKeyConstraint(["signal"], ["signals.id"], name="fk_lesson_signals_signal"),
    )
    op.create_index("ix_lesson_signals_signal", "lesson_signals", ["signal"])


def create_steps() -> None:
    op.create_table(
        "steps",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("lesson", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("signals", sa.JSON, nullable=False),
        sa.Column("prefix_turn", sa.Text, nullable=False),
        sa.Column("prefix_token_count", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.LargeBinary, nullable=False),
        sa.Column("targets", sa.LargeBinary, nullable=False),
        sa.Column("weights", sa.LargeBinary, nullable=False),
        sa.Column("stable", sa.Text, nullable=False),
        sa.Column("served", sa.JSON, nullable=False),
        sa.Column("made_by", sa.JSON, nullable=False),
        sa.Column("forgotten", sa.Boolean, nullable=False),
        sa.Column("learned_token_count", sa.BigInteger, nullable=False),
        sa.Column("loss_before", sa.Double, nullable=False),
        sa.Column("row_losses_before", sa.LargeBinary, nullable=False),
        sa.Column("loss_after", sa.Double, nullable=True),
        sa.Column("row_losses_after", sa.LargeBinary, nullable=True),
        sa.Column("kl_served", sa.Double, nullable=True),
        sa.Column("gradient_norm", sa.Double, nullable=False),
        sa.Column("optimizer", sa.Text, nullable=False),
        sa.Column("hyperparameters", sa.JSON, nullable=False),
        sa.Column("lr", sa.Double, nullable=False),
        sa.Column("chunk_rows", sa.BigInteger, nullable=False),
        sa.Column("shadow_before", sa.Text, nullable=False),
        sa.Column("shadow_after", sa.Text, nullable=False),
        sa.Column("snapshot", sa.Text, nullable=False),
        sa.Column("learning_ms", sa.Double, nullable=False),
        sa.Column("waited_ms", sa.Double, nullable=False),
        sa.Column("peak_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_steps"),
        sa.UniqueConstraint("lesson", name="uq_steps_lesson"),
        sa.UniqueConstraint("agent", "number", name="uq_steps_agent_number"),
        sa.ForeignKeyConstraint(["lesson"], ["lessons.id"], name="fk_steps_lesson"),
        sa.ForeignKeyConstraint(["prefix_turn"], ["turns.id"], name="fk_steps_prefix_turn"),
    )
    measured = ["loss_before", "loss_after", "learned_token_count", "learning_ms", "waited_ms"]
    op.create_index("ix_steps_summary", "steps", ["agent", "number", "created_at_us", *measured])


def create_adapters() -> None:
    op.create_table(
        "adapters",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=True),
        sa.Column("sha", sa.Text, nullable=False),
        sa.Column("snapshot", sa.Text, nullable=False),
        sa.Column("step_number", sa.BigInteger, nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_adapters"),
        sa.UniqueConstraint("agent", "version", name="uq_adapters_agent_version"),
        sa.CheckConstraint(
            "(state = 'shadow') = (version IS NULL)", name=op.f("ck_adapters_versions_are_numbered")
        ),
    )
    for state in ("shadow", "stable"):
        only = sa.text(f"state = '{state}'")
        op.create_index(
            f"uq_adapters_{state}", "adapters", ["agent"], unique=True, sqlite_where=only, postgresql_where=only
        )


def create_leases() -> None:
    op.create_table(
        "leases",
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("made_for", sa.JSON, nullable=False),
        sa.Column("expires_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("agent", name="pk_leases"),
    )
    op.create_index("ix_leases_lane", "leases", ["lane"])


def create_ledger() -> None:
    counter = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "ledger",
        sa.Column("seq", counter, autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("context", sa.Text, nullable=True),
        sa.Column("code", sa.Text, nullable=True),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("sha", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_ledger"),
    )
    for names in FILTERS:
        only = sa.text("code IS NOT NULL") if "code" in names else None
        columns = [*names.split("_"), "seq"]
        op.create_index(f"ix_ledger_{names}_seq", "ledger", columns, sqlite_where=only, postgresql_where=only)
    op.create_index("ix_ledger_at_us_seq", "ledger", ["at_us", "seq"])
    op.create_index("ix_ledger_subject_kind", "ledger", ["subject", "kind"])


def forbid_changes_to_ledger() -> None:
    """Triggers, because a program other than this one may open the file too."""
    if op.get_bind().dialect.name == "sqlite":
        forbid_on_sqlite()
    else:
        forbid_on_postgresql()


def forbid_on_sqlite() -> None:
    # The insert trigger: INSERT OR REPLACE over a row deletes it without firing the delete trigger.
    for name, event in (
        ("ledger_no_update", "UPDATE ON ledger"),
        ("ledger_no_delete", f"DELETE ON ledger WHEN NOT EXISTS ({ARCHIVED_ON_SQLITE})"),
        ("ledger_no_replace", "INSERT ON ledger WHEN EXISTS (SELECT 1 FROM ledger WHERE seq >= NEW.seq)"),
    ):
        op.execute(f"CREATE TRIGGER {name} BEFORE {event} BEGIN SELECT RAISE(ABORT, '{APPEND_ONLY}'); END")


def forbid_on_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION '{APPEND_ONLY}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER ledger_no_change BEFORE UPDATE OR TRUNCATE ON ledger"
        " FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()"
    )
    op.execute(
        "CREATE FUNCTION ledger_keep() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF NOT EXISTS ({ARCHIVED_ON_POSTGRESQL}) THEN RAISE EXCEPTION '{APPEND_ONLY}'; END IF;"
        " RETURN OLD; END $$"
    )
    op.execute(
        "CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_keep()"
    )


def tell_sqlite_what_to_expect() -> None:
    """How many rows a ledger of a million has for each word.

    Without it SQLite expects ten rows for any word, and takes an index of one column where one of three would do.
    https://www.sqlite.org/lang_analyze.html
    """
    if op.get_bind().dialect.name != "sqlite":
        return
    op.execute("ANALYZE ledger")
    op.execute("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('ledger', NULL, '1000000')")
    for names in FILTERS:
        rows = ["100000", "30000", "10000", "3000"][: names.count("_") + 1]
        tell_of(f"ix_ledger_{names}_seq", ["1000000", *rows, "1"])
    tell_of("ix_ledger_at_us_seq", ["1000000", "2", "1"])
    tell_of("ix_ledger_subject_kind", ["1000000", "3", "2"])


def tell_of(index: str, rows: list[str]) -> None:
    op.execute(f"INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('ledger', '{index}', '{' '.join(rows)}')")
