"""`ridealong ledger`: reads the ledger itself, whether or not a service runs, or asks a running service.

It opens the database for reading and leaves the writer's place to the service; archiving and upgrading take it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from daemon.commands.client import Refused
from daemon.commands.ledger_export import ExportFailed, export
from daemon.commands.ledger_source import FileSource, Row, ServiceSource, Source, every_row
from daemon.commands.terminal import fail
from daemon.config import Settings
from daemon.http.errors import ServiceError
from daemon.http.ledger_json import ROWS, moment_of, verified_json
from store.archive import archive, verify_with
from store.database import Database, upgrade_database
from store.errors import StoreError


def run(given: argparse.Namespace, settings: Settings) -> int:
    """Run `ridealong ledger ACTION`; returns the exit status."""
    place = settings.ledger
    try:
        if given.action == "upgrade":
            sys.stdout.write(f"the ledger is at revision {upgrade_database(place)}\n")
            return 0
        if given.action == "archive":
            with closing(Database.open(place)) as database:
                return _archive(given, database)
        if given.url is not None:
            return _check_url(given) or _ACTIONS[given.action](given, ServiceSource(given.url, given.api_key))
        with closing(Database.open(place, read_only=True)) as database:
            if given.action == "verify" and given.archive:
                return _verify_archives(given, database)
            return _ACTIONS[given.action](given, FileSource(database))
    except (StoreError, ServiceError, Refused, ExportFailed) as error:
        return fail(str(error))


def _check_url(given: argparse.Namespace) -> int:
    if given.action == "verify" and given.archive:
        return fail("--archive reads files here: leave --url out, and give --data-dir or --database")
    return 0


def _ls(given: argparse.Namespace, source: Source) -> int:
    _write(given, _newest(given, source))
    return 0


def _show(given: argparse.Namespace, source: Source) -> int:
    sys.stdout.write(json.dumps(source.row(given.seq), indent=2) + "\n")
    return 0


def _tail(given: argparse.Namespace, source: Source) -> int:
    rows = _newest(given, source)
    _write(given, rows)
    if given.follow:
        _write(given, source.follow(_asked(given, ROWS), cursor=rows[-1]["seq"] if rows else 0))
    return 0


def _stats(given: argparse.Namespace, source: Source) -> int:
    told = source.summary(_asked(given, ("agent", "since", "until")))
    if given.json:
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return 0
    for name, facts in (("everyone", told["totals"]), *((agent["agent"], agent) for agent in told["agents"])):
        sys.stdout.write(_facts(name, facts) + "\n")
    return 0


def _export(given: argparse.Namespace, source: Source) -> int:
    count = export(every_row(source, _asked(given, ROWS)), given.format, given.output)
    sys.stdout.write(f"{count} rows are in {given.output}\n")
    return 0


def _verify(_given: argparse.Namespace, source: Source) -> int:
    return _tell_verified(source.verified())


_ACTIONS: dict[str, Callable[[argparse.Namespace, Source], int]] = {
    "ls": _ls,
    "show": _show,
    "tail": _tail,
    "stats": _stats,
    "export": _export,
    "verify": _verify,
}


def _archive(given: argparse.Namespace, database: Database) -> int:
    before_us = moment_of({"before": given.before}, "before")
    assert before_us is not None, "the flag is required"
    anchor = archive(database, given.output, before_us=before_us)
    sys.stdout.write(
        f"rows {anchor.first_seq} to {anchor.through_seq} are in {given.output} and no longer in the ledger;"
        f" its SHA-256 is {anchor.file_sha256}: keep it, `ledger verify --archive` needs it\n"
    )
    return 0


def _verify_archives(given: argparse.Namespace, database: Database) -> int:
    with database.read() as session:
        return _tell_verified(verified_json(verify_with(session, given.archive)))


def _tell_verified(found: dict[str, Any]) -> int:
    if found["why"] is None:
        before = f" after {found['archived']} that are archived" if found["archived"] else ""
        sys.stdout.write(f"the chain is unbroken: {found['rows']} rows{before}, head {found['head']}\n")
        return 0
    where = "" if found["bad"] is None else f" at row {found['bad']}"
    sys.stdout.write(f"the chain is broken{where}: {found['why']}\n")
    return 1


def _newest(given: argparse.Namespace, source: Source) -> list[Row]:
    rows, _ = source.page({**_asked(given, ROWS), "limit": str(given.limit), "newest": "true"})
    return rows[::-1]


def _asked(given: argparse.Namespace, names: tuple[str, ...]) -> dict[str, str]:
    return {name: vars(given)[name] for name in names if vars(given)[name] is not None}


def _write(given: argparse.Namespace, rows: Iterable[Row]) -> None:
    for row in rows:
        sys.stdout.write((json.dumps(row) if given.json else _line(row)) + "\n")
        sys.stdout.flush()


def _line(row: Row) -> str:
    what = " ".join(f"{key}={value}" for key, value in row["body"].items() if _fits(value))
    who = f"{row['kind']:<9} {row['agent']:<12} {row['code'] or '-':<18} {row['subject']:<20.20}"
    return f"{row['seq']:>6}  {row['at'][:19]}  {who} {what:.120}"


def _fits(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 64)


def _facts(name: str, facts: Row) -> str:
    signals = ", ".join(f"{count} {state}" for state, count in facts["signals"].items() if count) or "none"
    refusals = ", ".join(f"{code} {count}" for code, count in facts["refusals"].items()) or "none"
    learned = f"{facts['steps']} steps of {facts['learned_tokens']} tokens in {facts['learning_ms'] / 1000:.1f} s"
    waited = f"of which turns waited {facts['waited_ms'] / 1000:.1f} s"
    return f"{name}: {facts['turns']} turns; signals: {signals}; refusals: {refusals}; {learned}, {waited}"
