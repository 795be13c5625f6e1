"""What `ridealong ledger` takes: its actions, and their flags. Nothing heavy is imported."""

import argparse
import os
from pathlib import Path

from daemon.config import ENVIRONMENT_PREFIX, add_flags

KEY_VARIABLE = f"{ENVIRONMENT_PREFIX}API_KEY"
FORMATS = ("ndjson", "csv", "parquet")
READERS = {
    "ls": "the newest rows",
    "show": "one row, and of a step all that it was made of",
    "tail": "the newest rows, and with -f those that come",
    "stats": "what was served, learned and refused, in all and by agent",
    "export": "write rows to a file",
    "verify": "is the chain unbroken?",
}
"""Actions that work on the ledger's file, whether or not a service runs, or with --url on a service."""

_ROWS = ("agent", "context", "kind", "code", "since", "until")


def add_ledger(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command."""
    ledger = commands.add_parser("ledger", help="read, export, verify, archive or upgrade the ledger")
    actions = ledger.add_subparsers(dest="action", required=True, metavar="ACTION")
    parsers = {name: actions.add_parser(name, help=text) for name, text in READERS.items()}
    for parser in parsers.values():
        _add_place(parser)
        parser.add_argument("--url", help="ask the service there instead of reading the file")
        key = os.environ.get(KEY_VARIABLE)
        parser.add_argument("--api-key", metavar="KEY", default=key, help=f"else the environment's {KEY_VARIABLE}")
    for name in ("ls", "tail", "export"):
        _add_filters(parsers[name], _ROWS)
    _add_filters(parsers["stats"], ("agent", "since", "until"))
    for name in ("ls", "tail"):
        parsers[name].add_argument("--limit", type=int, default=50, help="at most so many rows (default: 50)")
    for name in ("ls", "tail", "stats"):
        parsers[name].add_argument("--json", action="store_true", help="JSON instead of a table")
    parsers["tail"].add_argument("--follow", "-f", action="store_true", help="go on with new rows as they come")
    parsers["show"].add_argument("seq", type=int, help="the row's number, the first column of ls")
    parsers["export"].add_argument("--format", choices=FORMATS, required=True)
    parsers["export"].add_argument("--output", type=Path, metavar="FILE", required=True)
    parsers["verify"].add_argument(
        "--archive", type=Path, metavar="FILE", nargs="+", default=[], help="check these archives too: give all"
    )
    _add_writers(actions)
    return ledger


def _add_writers(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Actions that need the writer's place: no service may run."""
    upgrade = actions.add_parser("upgrade", help="bring the tables to the newest revision")
    archive = actions.add_parser("archive", help="move the oldest rows to a file; no service may run")
    archive.add_argument("--before", metavar="TIME", required=True, help="rows before that time, in ISO 8601")
    archive.add_argument("--output", type=Path, metavar="FILE", required=True, help="such as 2026.ndjson.gz")
    for parser in (upgrade, archive):
        _add_place(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, ["data_dir"])
    parser.add_argument(
        "--database", metavar="URL", help="a database's URL or file, else that of the data directory"
    )


def _add_filters(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    for name in names:
        parser.add_argument(
            f"--{name}", help=f"only what is of this {name}" if name in _ROWS[:4] else "in ISO 8601"
        )
