import hashlib
import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from store import chain, ledger
from store.chain import GENESIS, Verified, canonical, row_sha, verify
from store.database import Database
from store.errors import BadPage, StorageFailed
from store.ledger import Filter, Page, RowSpan
from store.records import Entry
from store.rows import columns_of
from store.turns import open_turn, record_turn
from store.words import LedgerKind
from tests.postgresql import Server
from tests.store.builders import a_turn

EQUAL = {"agent": "ada", "context": "room", "kind": LedgerKind.REFUSAL, "code": "expired"}
TRIGGERS = ("ledger_no_update", "ledger_no_delete", "ledger_no_replace")


def an_entry(
    subject: str = "x",
    *,
    kind: LedgerKind = LedgerKind.POLICY,
    agent: str = "ada",
    context: str | None = "room",
    code: str | None = None,
) -> Entry:
    return Entry(kind=kind, agent=agent, context=context, subject=subject, body={"n": 0.1}, code=code)


def six_rows(database: Database) -> None:
    """Rows 1 to 6, at times 10 to 60, differing in one column each."""
    entries = [
        an_entry(),
        an_entry(agent="bob"),
        an_entry(context="hall"),
        an_entry(kind=LedgerKind.EXPORT),
        an_entry(kind=LedgerKind.REFUSAL, code="expired"),
        an_entry(context=None),
    ]
    with database.write() as session:
        for number, entry in enumerate(entries, start=1):
            ledger.append_all(session, [entry], at_us=10 * number)


def tamper(path: Path, *statements: str) -> None:
    """Change the file as another program would, past the triggers."""
    with closing(sqlite3.connect(path)) as raw:
        for trigger in TRIGGERS:
            raw.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            raw.execute(statement)
        raw.commit()


def verified(database: Database) -> Verified:
    with database.read() as session:
        return verify(session)


def seqs(page: Page) -> list[int]:
    return [row.seq for row in page.rows]


def test_an_untouched_ledger_verifies_to_its_last_row(database: Database) -> None:
    assert verified(database) == Verified(0, GENESIS)
    six_rows(database)
    with database.read() as session:
        last = ledger.page(session, newest=True, limit=1).rows[0]
    assert verified(database) == Verified(6, last.sha)


def test_more_rows_than_a_statement_holds_are_appended_in_their_order(database: Database) -> None:
    with database.write() as session:
        ledger.append_all(session, [an_entry(str(i)) for i in range(4_000)])
    with database.read() as session:
        assert verify(session).rows == 4_000
        assert [row.subject for row in ledger.page(session, cursor=3_198).rows[:4]] == [
            "3198",
            "3199",
            "3200",
            "3201",
        ]


def test_a_hash_is_the_sha256_of_the_rows_canonical_json(database: Database) -> None:
    six_rows(database)
    with database.read() as session:
        first, second = ledger.page(session, limit=2).rows
    text = (
        '{"agent":"bob","at_us":20,"body":{"n":0.1},"code":null,"context":"room","kind":"policy",'
        f'"previous":"{first.sha}","seq":2,"subject":"x"}}'
    )
    assert second.sha == hashlib.sha256(text.encode()).hexdigest()
    assert (first.previous, second.previous) == (GENESIS, first.sha)


@pytest.mark.parametrize(
    "change",
    [
        "at_us = 31",
        "kind = 'export'",
        "kind = 'no such kind'",
        "agent = 'eve'",
        "context = NULL",
        "code = 'x'",
        "subject = 'y'",
        """body = '{"n":0.2}'""",
        "body = 'no JSON'",
        "sha = 'ff'",
    ],
)
def test_a_changed_row_is_found(sqlite: Database, path: Path, change: str) -> None:
    six_rows(sqlite)
    tamper(path, f"UPDATE ledger SET {change} WHERE seq = 3")
    found = verified(sqlite)
    assert (found.rows, found.bad) == (2, 3)
    assert "row 3 was changed" in str(found.why)


@pytest.mark.parametrize("seq", [1, 3])
def test_a_missing_row_is_found(sqlite: Database, path: Path, seq: int) -> None:
    six_rows(sqlite)
    tamper(path, f"DELETE FROM ledger WHERE seq = {seq}")
    assert (verified(sqlite).bad, verified(sqlite).why) == (
        seq,
        f"row {seq} is missing: the next one there is {seq + 1}",
    )


def test_a_missing_row_is_found_though_the_rest_was_numbered_anew(sqlite: Database, path: Path) -> None:
    six_rows(sqlite)
    tamper(path, "DELETE FROM ledger WHERE seq = 3", "UPDATE ledger SET seq = seq - 1 WHERE seq > 3")
    assert verified(sqlite).bad == 3


def test_rows_that_changed_places_are_found(sqlite: Database, path: Path) -> None:
    six_rows(sqlite)
    swap = ("SET seq = 99 WHERE seq = 3", "SET seq = 3 WHERE seq = 4", "SET seq = 4 WHERE seq = 99")
    tamper(path, *(f"UPDATE ledger {step}" for step in swap))
    assert verified(sqlite).bad == 3


def test_a_changed_row_is_found_though_its_own_hash_was_made_anew(sqlite: Database, path: Path) -> None:
    six_rows(sqlite)
    with sqlite.read() as session:
        third = ledger.page(session).rows[2]
    forged = row_sha(columns_of(replace(third, agent="eve")))
    tamper(path, f"UPDATE ledger SET agent = 'eve', sha = '{forged}' WHERE seq = 3")
    assert (verified(sqlite).bad, verified(sqlite).why) == (4, "row 4 does not follow the row before it")


def test_a_turn_that_is_being_served_is_not_missing(database: Database) -> None:
    with database.write() as session:
        open_turn(session, replace(a_turn("t1"), finish_reason=None))
    assert verified(database).why is None


def test_a_row_cut_off_the_end_is_found_by_what_it_told_of(sqlite: Database, path: Path) -> None:
    with sqlite.write() as session:
        record_turn(session, a_turn("t1"))
        record_turn(session, a_turn("t2"))
    tamper(path, "DELETE FROM ledger WHERE seq = 2")
    assert (verified(sqlite).bad, verified(sqlite).why) == (2, "the row of turn 't2' is missing")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger SET agent = 'eve'",
        "DELETE FROM ledger WHERE seq = 6",
        "INSERT OR REPLACE INTO ledger SELECT * FROM ledger WHERE seq = 6",
        "INSERT INTO ledger SELECT 0, at_us, kind, agent, context, code, subject, body, previous, sha FROM ledger",
    ],
)
def test_the_database_itself_refuses_to_change_a_row(sqlite: Database, path: Path, statement: str) -> None:
    six_rows(sqlite)
    with closing(sqlite3.connect(path)) as raw, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        raw.execute(statement)
    assert verified(sqlite).rows == 6


@pytest.mark.parametrize(
    "statement",
    ["UPDATE ledger SET agent = 'eve'", "DELETE FROM ledger WHERE seq = 6", "TRUNCATE ledger"],
)
def test_postgresql_itself_refuses_to_change_a_row(postgresql: Server, statement: str) -> None:
    with closing(Database.open(postgresql.new_database(), create=True)) as database:
        six_rows(database)
        with pytest.raises(StorageFailed, match="append-only"), database.write() as session:
            session.execute(text(statement))
        assert verified(database).rows == 6


def test_equal_values_have_one_spelling() -> None:
    assert canonical({"b": [1, 0.1, None], "a": "ü"}) == '{"a":"ü","b":[1,0.1,null]}'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_refused_and_nothing_is_kept(database: Database, value: float) -> None:
    def record_and_fail(session: Session) -> None:
        record_turn(session, a_turn())
        ledger.append(session, replace(an_entry(), body={"loss": value}))

    with pytest.raises(ValueError, match="not JSON compliant"), database.write() as session:
        record_and_fail(session)
    assert verified(database) == Verified(0, GENESIS)


def test_half_a_surrogate_pair_is_kept_and_verifies(database: Database) -> None:
    with database.write() as session:
        ledger.append(session, replace(an_entry(), body={"said": json.loads(r'"\ud800"')}))
    assert verified(database).why is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(), [1, 2, 3, 4, 5, 6]),
        (Filter(agent="bob"), [2]),
        (Filter(context="hall"), [3]),
        (Filter(kind=LedgerKind.EXPORT), [4]),
        (Filter(code="expired"), [5]),
        (Filter(since_us=40), [4, 5, 6]),
        (Filter(until_us=40), [1, 2, 3]),
        (Filter(agent="ada", context="room", since_us=20, until_us=50), [4]),
        (Filter(agent="nobody"), []),
    ],
)
def test_a_filter_gives_its_rows_in_both_directions(
    database: Database, wanted: Filter, expected: list[int]
) -> None:
    six_rows(database)
    with database.read() as session:
        assert seqs(ledger.page(session, wanted)) == expected
        assert seqs(ledger.page(session, wanted, newest=True)) == expected[::-1]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7])
@pytest.mark.parametrize("newest", [False, True])
def test_pages_of_any_size_give_every_row_once(database: Database, limit: int, newest: bool) -> None:
    six_rows(database)
    got: list[int] = []
    cursor = None
    with database.read() as session:
        while True:
            page = ledger.page(session, cursor=cursor, limit=limit, newest=newest)
            assert 0 < len(page.rows) <= limit
            got += seqs(page)
            cursor = page.next_cursor
            if cursor is None:
                break
    assert got == ([6, 5, 4, 3, 2, 1] if newest else [1, 2, 3, 4, 5, 6])


def test_a_page_reads_back_what_was_appended(database: Database) -> None:
    with database.write() as session:
        row = ledger.append(session, an_entry())
    with database.read() as session:
        assert ledger.page(session).rows == (row,)


@pytest.mark.parametrize("limit", [0, -1, ledger.MOST_ROWS + 1])
def test_a_page_too_long_or_empty_is_refused(database: Database, limit: int) -> None:
    with pytest.raises(BadPage, match="1 to 1000"), database.read() as session:
        ledger.page(session, limit=limit)


def test_time_goes_on_though_the_clock_is_set_back_a_little(database: Database) -> None:
    with database.write() as session:
        times = [
            ledger.append_all(session, [an_entry()], at_us=at_us)[0].at_us
            for at_us in (100 + ledger.MOST_BACK_US, 100, 99)
        ]
    assert times == [100 + ledger.MOST_BACK_US, 100 + ledger.MOST_BACK_US, 99]


@pytest.mark.parametrize("names", [names for n in range(5) for names in combinations(EQUAL, n)])
@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("span", [RowSpan(), RowSpan(after=3), RowSpan(before=5), RowSpan(3, 5)])
def test_every_filter_has_an_index_in_the_order_of_its_pages(
    sqlite: Database, names: tuple[str, ...], newest: bool, span: RowSpan
) -> None:
    wanted = Filter(since_us=10, **{name: EQUAL[name] for name in names})  # type: ignore[arg-type]
    with sqlite.read() as session:
        query = ledger.page_query(wanted, span, limit=5, newest=newest)
        said = query.compile(session.get_bind(), compile_kwargs={"literal_binds": True})
        plan = [row.detail for row in session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {said}")]
    (read,) = plan
    ranged = re.search(r"(rowid|seq)>\? AND (rowid|seq)<\?", read)
    assert ranged, read
    for name in {*names, *({"kind"} if "code" in names else ())}:
        assert f"{name}=?" in read, read


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("cursor", [None, 2, 3, 4, 5])
def test_a_time_and_a_cursor_together_give_what_both_let_through(
    database: Database, newest: bool, cursor: int | None
) -> None:
    six_rows(database)
    with database.read() as session:
        page = ledger.page(session, Filter(since_us=20, until_us=50), cursor=cursor, newest=newest)
    passed = [n for n in (2, 3, 4) if cursor is None or (n < cursor if newest else n > cursor)]
    assert seqs(page) == (passed[::-1] if newest else passed)


def test_a_check_sees_one_state_while_rows_are_appended(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "BATCH_ROWS", 2)
    six_rows(database)
    follow = chain.Chain._fault

    def appending(self: chain.Chain, row: chain.RawRow) -> str | None:
        with database.write() as session:
            record_turn(session, a_turn(f"t{row.seq}"))
        return follow(self, row)

    monkeypatch.setattr(chain.Chain, "_fault", appending)
    found = verified(database)
    assert (found.rows, found.why) == (6, None)
    monkeypatch.undo()
    assert verified(database).rows == 12
