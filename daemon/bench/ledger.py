"""`ridealong bench ledger`: pages of a ledger of a million rows, against what a person notices.

- The rows are appended as they always are, chained and indexed, in a database of its own.
- Every filter and every combination is read oldest first and newest first, from its beginning and from deep
  inside, of all times, of early and of late ones. Its figure is that of the slowest of these pages.
- The words are those that leave most to be skipped: common ones that seldom or never come together.
- The chain is checked at the end, and its growth of the resident set is what it takes in memory.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

from daemon.bench.plan import Plan, Say
from daemon.bench.report import MIB, Bar, Report, this_machine
from engine.memory import resident_bytes
from store import ledger
from store.chain import verify
from store.database import Database
from store.ledger import MOST_ROWS, Filter
from store.records import Body, Entry
from store.words import LedgerKind

NOTICED_SECONDS = 0.05
"""The longest a page may take: less than anyone notices."""

CHECK_MIB = 64.0
"""The most a check may add to the resident set, whatever the ledger's length."""

START_US = 1_700_000_000_000_000
BATCH_ROWS = 5_000
PAGE_ROWS = 100
WORDS = ("agent", "context", "kind", "code")

SELDOM = Filter(agent="bob", context="room", kind=LedgerKind.REFUSAL, code="policy_off")
NEVER = Filter(agent="ada", context="hall", kind=LedgerKind.TURN, code="policy_off")
"""Common words each. Those of the one come together seldom; of the other's there are pairs that never do."""


class Read(NamedTuple):
    """A page to be read."""

    wanted: Filter
    cursor: int | None
    newest: bool
    rows: int = PAGE_ROWS


def run_ledger(plan: Plan, say: Say) -> Report:
    """Fill a ledger, then time each page. The other side of a bar is its limit."""
    machine, rows = this_machine(), plan.sizes.ledger_rows
    with tempfile.TemporaryDirectory() as folder:
        database = Database.open(Path(folder) / "ledger.db", create=True)
        try:
            filled = _seconds(lambda: _fill(database, rows))
            say(f"{rows:,} rows appended in {filled:.1f} s")
            bars = [_page_bar(database, name, reads, plan.rounds) for name, reads in _pages(rows).items()]
            before = resident_bytes()
            say(f"checked in {_seconds(lambda: _check(database, rows)):.1f} s")
            growth = max(resident_bytes() - before, 0) / MIB
            bars.append(Bar("memory of a check", growth, CHECK_MIB, "MiB", at_most=1.0))
        finally:
            database.close()
    return Report("ledger", machine, "none", "none", plan.rounds, bars=tuple(bars))


def _fill(database: Database, rows: int) -> None:
    """Every third row a refusal, bob's and for one reason; half of the others ada's. Bob is seldom in the room."""
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


def _pages(rows: int) -> dict[str, list[Read]]:
    """The pages that are timed, by the words they are asked for."""
    pages = {
        f"page: {', '.join(names) or 'everything'}": list(_reads(names, rows))
        for count in range(len(WORDS) + 1)
        for names in combinations(WORDS, count)
    }
    longest = (
        Read(Filter(agent=agent), None, newest, MOST_ROWS) for agent in ("ada", "bob") for newest in (True, False)
    )
    return pages | {f"page of {MOST_ROWS:,}: agent": list(longest)}


def _reads(names: tuple[str, ...], rows: int) -> Iterator[Read]:
    early, late = START_US + rows // 20, START_US + rows - rows // 20
    spans = ((None, None), (late, None), (None, early), (early, late))
    for words, (since, until), cursor, newest in product((SELDOM, NEVER), spans, (None, rows // 2), (True, False)):
        wanted = Filter(**{name: getattr(words, name) for name in names})
        yield Read(replace(wanted, since_us=since, until_us=until), cursor, newest)


def _page_bar(database: Database, name: str, reads: Iterable[Read], rounds: int) -> Bar:
    slowest = max(_median(partial(_read, database, read), rounds) for read in reads)
    return Bar(name, 1000 * slowest, 1000 * NOTICED_SECONDS, "ms", at_most=1.0)


def _read(database: Database, read: Read) -> None:
    with database.read() as session:
        ledger.page(session, read.wanted, cursor=read.cursor, newest=read.newest, limit=read.rows)


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
