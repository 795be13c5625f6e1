"""`ridealong forget`: adapters rebuilt as if something had never been, and its text erased.

It takes the writer's place, so that no service may run; `--dry-run` only reads.
"""

import argparse
import sys

from daemon.commands.terminal import fail, note, say
from daemon.config import Settings
from daemon.http.errors import SnapshotDamaged
from daemon.learning.forget import Forgetting
from daemon.learning.workshop import open_workshop
from engine.errors import EngineError
from store.database import Database
from store.errors import StoreError
from store.forget import Change
from store.scopes import Found, Scope


def run(given: argparse.Namespace, settings: Settings) -> int:
    """Run `ridealong forget`: 0 where all of it is forgotten, or a dry run said what would be."""
    if (given.signal is None) == (given.context is None and given.agent is None):
        return fail(
            "say what to forget: --signal ID; or --context C, of every agent or of --agent A; or --agent A"
        )
    scope = Scope(signal=given.signal, context=given.context, agent=given.agent)
    try:
        database = Database.open(settings.ledger, read_only=given.dry_run)
        try:
            forgetting = Forgetting(
                database, lambda: open_workshop(settings, say=note), settings=settings, told=say
            )
            return _forget(forgetting, scope, dry=given.dry_run, sure=given.yes)
        finally:
            database.close()
    except (StoreError, EngineError, SnapshotDamaged, OSError) as error:
        return fail(str(error))


def _forget(forgetting: Forgetting, scope: Scope, *, dry: bool, sure: bool) -> int:
    found = forgetting.find(scope)
    for each in found:
        say(_told(each))
    if not found:
        say("nothing of it is left to forget")
    if dry:
        return 0
    if found and not (sure or _is_sure()):
        return fail("nothing was forgotten: answer y, or give --yes")
    for change in forgetting.run(scope, found):
        say(_done(change))
    return 0


def _is_sure() -> bool:
    if not sys.stdin.isatty():
        return False
    sys.stderr.write("this cannot be undone; forget it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _told(found: Found) -> str:
    told = (
        f"{found.agent}: the text of {len(found.turns)} turns, {len(found.signals)} signals and "
        f"{len(found.lessons)} lessons, and {len(found.steps)} steps of her shadow"
    )
    return f"{told}; {len(found.shared)} lessons are other signals' too" if found.shared else told


def _done(change: Change) -> str:
    agent, moved = change.found.agent, change.moved
    parted = f", {len(change.parted)} lessons are the other signals' alone" if change.parted else ""
    dropped = f", {len(change.dropped)} that could not be told apart ended" if change.dropped else ""
    if moved is None:
        return f"{agent}: forgotten; none of it was in her shadow{parted}{dropped}"
    places = ", ".join(
        f"{'head' if version is None else f'version {version}'} {place.sha[:16]}"
        for version, place in moved.adapters.items()
    )
    exactly = "exactly" if moved.exact else "as nearly as another machine can"
    return f"{agent}: forgotten {exactly}, {len(change.left_out)} steps left out{parted}{dropped}; {places}"
