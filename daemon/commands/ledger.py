"""`ridealong ledger`: reads the ledger itself, so it works whether or not a service runs.

It opens the database for reading and leaves the writer's place to the service.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

from daemon.commands.terminal import fail
from daemon.config import Settings
from daemon.http.errors import ServiceError
from daemon.http.ledger_json import filter_of, row_json, step_json
from store import chain, ledger, steps
from store.database import Database, upgrade_database
from store.errors import StoreError
from store.ledger import Filter
from store.records import LedgerRow
from store.words import LedgerKind

POLL_SECONDS = 0.5
"""How often `tail --follow` looks for new rows."""

PAGE_ROWS = 1000


def run(given: argparse.Namespace, settings: Settings) -> int:
    """Run `ridealong ledger ACTION`; returns the exit status."""
    try:
        if given.action == "upgrade":
            sys.stdout.write(f"the ledger is at revision {upgrade_database(settings.ledger)}\n")
            return 0
        database = Database.open(settings.ledger, read_only=True)
        try:
            action: Callable[[argparse.Namespace, Database], int] = _ACTIONS[given.action]
            return action(given, database)
        finally:
            database.close()
    except (StoreError, ServiceError) as error:
        return fail(str(error))


def _ls(given: argparse.Namespace, database: Database) -> int:
    with database.read() as session:
        page = ledger.page(session, _filter(given), limit=given.limit, newest=True)
    _write(given, list(reversed(page.rows)))
    return 0


def _show(given: argparse.Namespace, database: Database) -> int:
    if given.seq is None:
        sys.stderr.write("ridealong: ledger show needs the number of a row, the first column of ledger ls\n")
        return 2
    with database.read() as session:
        row = ledger.row_of(session, given.seq)
        told = row_json(row)
        if row.kind is LedgerKind.STEP:
            told["step"] = step_json(steps.step_of(session, row.subject))
    sys.stdout.write(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    return 0


def _tail(given: argparse.Namespace, database: Database) -> int:
    wanted = _filter(given)
    with database.read() as session:
        rows = list(reversed(ledger.page(session, wanted, limit=given.limit, newest=True).rows))
    _write(given, rows)
    last = rows[-1].seq if rows else 0
    while given.follow:
        time.sleep(POLL_SECONDS)
        with database.read() as session:
            rows = list(ledger.page(session, wanted, cursor=last, limit=PAGE_ROWS).rows)
        _write(given, rows)
        last = rows[-1].seq if rows else last
    return 0


def _verify(_given: argparse.Namespace, database: Database) -> int:
    with database.read() as session:
        verified = chain.verify(session)
    if verified.why is None:
        sys.stdout.write(f"the chain is unbroken: {verified.rows} rows, head {verified.head}\n")
        return 0
    where = "" if verified.bad is None else f" at row {verified.bad}"
    sys.stdout.write(f"the chain is broken{where}: {verified.why}\n")
    return 1


_ACTIONS = {"ls": _ls, "show": _show, "tail": _tail, "verify": _verify}


def _filter(given: argparse.Namespace) -> Filter:
    names = ("agent", "context", "kind", "code", "since", "until")
    return filter_of({name: vars(given)[name] for name in names if vars(given)[name] is not None})


def _write(given: argparse.Namespace, rows: list[LedgerRow]) -> None:
    for row in rows:
        if given.json:
            sys.stdout.write(json.dumps(row_json(row), ensure_ascii=False) + "\n")
        else:
            sys.stdout.write(_line(row) + "\n")
    sys.stdout.flush()


def _line(row: LedgerRow) -> str:
    at = row_json(row)["at"][:19]
    what = " ".join(f"{key}={value}" for key, value in row.body.items() if _fits(value))
    return (
        f"{row.seq:>6}  {at}  {row.kind:<9} {row.agent:<12} {row.code or '-':<18} {row.subject:<20.20} {what:.120}"
    )


def _fits(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 64)
