"""`ridealong bench ledger`: pages of a ledger of a million rows, against what a person notices.

- The rows are appended as they always are, chained and indexed, in a database of its own.
- The filters are those that leave most to be skipped: common words that hardly ever come together.
- The chain is checked at the end, and its growth of the resident set is what it takes in memory.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from daemon.bench.plan import Plan, Say
from daemon.bench.report import MIB, Bar, Report, this_machine
from engine.memory import resident_bytes
from store import ledger
from store.chain import verify
from store.database import Database
from store.ledger import Filter
from store.records import Body, Entry
from store.words import LedgerKind

NOTICED_SECONDS = 0.05
"""The longest a page may take: less than anyone notices."""

CHECK_MIB = 64.0
"""The most a check may add to the resident set, whatever the ledger's length."""

START_US = 1_700_000_000_000_000
BATCH_ROWS = 5_000


def run_ledger(plan: Plan, say: Say) -> Report:
    """Fill a ledger, then time each page. The other side of a bar is its limit."""
    machine, rows = this_machine(), plan.sizes.ledger_rows
    with tempfile.TemporaryDirectory() as folder:
        database = Database.open(Path(folder) / "ledger.db", create=True)
        try:
            filled = _seconds(lambda: _fill(database, rows))
            say(f"{rows:,} rows appended in {filled:.1f} s")
            bars = [_page_bar(database, name, page, plan.rounds) for name, page in _pages(rows).items()]
            before = resident_bytes()
            say(f"checked in {_seconds(lambda: _check(database, rows)):.1f} s")
            growth = max(resident_bytes() - before, 0) / MIB
            bars.append(Bar("memory of a check", growth, CHECK_MIB, "MiB", at_most=1.0))
        finally:
            database.close()
    return Report("ledger", machine, "none", "none", plan.rounds, bars=tuple(bars))


def _fill(database: Database, rows: int) -> None:
    """Half of it ada's, in one room; every third row a refusal, nearly all bob's and for one reason."""
    drawn = random.Random(0)
    for first in range(0, rows, BATCH_ROWS):
        entries = [_entry(first + number, drawn) for number in range(min(BATCH_ROWS, rows - first))]
        with database.write() as session:
            ledger.append_all(session, entries, at_us=START_US + first)


def _entry(number: int, drawn: random.Random) -> Entry:
    refused = number % 3 == 0
    kind = LedgerKind.REFUSAL if refused else drawn.choice([LedgerKind.TURN, LedgerKind.SIGNAL, LedgerKind.LESSON])
    agent = "bob" if refused or number % 2 else "ada"
    context = "hall" if agent == "bob" and number % 5 else "room"
    body: Body = {"state": "refused", "message": "The agent does not learn.", "position": number}
    subject = f"subject-{number}"
    code = "policy_off" if refused else None
    return Entry(kind=kind, agent=agent, context=context, subject=subject, body=body, code=code)


def _pages(rows: int) -> dict[str, tuple[Filter, int | None, bool]]:
    """Filter, cursor and direction of every page that is timed."""
    refusal, off = LedgerKind.REFUSAL, "policy_off"
    off_in_room = Filter(agent="bob", context="room", kind=refusal, code=off)
    middle, late = START_US + rows // 2, START_US + rows - rows // 20
    return {
        "newest": (Filter(), None, True),
        "far cursor": (Filter(agent="bob"), rows - rows // 100, False),
        "agent": (Filter(agent="bob"), None, True),
        "agent, kind and code": (Filter(agent="bob", kind=refusal, code=off), None, True),
        "agent, kind and code of nobody": (Filter(agent="ada", kind=refusal, code=off), None, False),
        "kind and code that never meet": (Filter(kind=LedgerKind.TURN, code=off), None, False),
        "agent and context": (Filter(agent="ada", context="hall"), None, True),
        "agent, context and kind": (Filter(agent="ada", context="hall", kind=refusal), None, False),
        "context and time": (Filter(context="room", since_us=late), None, False),
        "context and a time long ago, newest": (Filter(context="room", until_us=middle), None, True),
        "all at once": (replace(off_in_room, since_us=middle, until_us=late), None, True),
    }


def _page_bar(database: Database, name: str, page: tuple[Filter, int | None, bool], rounds: int) -> Bar:
    wanted, cursor, newest = page

    def read() -> None:
        with database.read() as session:
            ledger.page(session, wanted, cursor=cursor, newest=newest)

    return Bar(f"page: {name}", _median(read, rounds), NOTICED_SECONDS, "s", at_most=1.0)


def _check(database: Database, rows: int) -> None:
    with database.read() as session:
        found = verify(session)
    assert (found.rows, found.why) == (rows, None), found


def _median(work: Callable[[], None], rounds: int) -> float:
    return statistics.median(_seconds(work) for _ in range(rounds))


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
