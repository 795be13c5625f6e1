"""`ridealong replay`: an agent's steps taken again from the ledger, and held against what it says of them.

It only reads, so that a service may run beside it.
"""

import argparse

from daemon.commands.terminal import fail, note, say
from daemon.config import Settings
from daemon.http.errors import SnapshotDamaged
from daemon.learning.rebuild import History, StepAgain, history_of
from daemon.learning.replay import MOST_APART, Held, Replayed, replay
from daemon.learning.workshop import open_workshop
from engine.errors import EngineError
from store.database import Database
from store.errors import StoreError


def run(given: argparse.Namespace, settings: Settings) -> int:
    """Run `ridealong replay`: 0 where what is recorded came out again, 1 where not or where it cannot be done."""
    try:
        database = Database.open(settings.ledger, read_only=True)
        try:
            return _replay(database, settings, agent=given.agent, until=given.until)
        finally:
            database.close()
    except (StoreError, EngineError, SnapshotDamaged, OSError) as error:
        return fail(str(error))


def _replay(database: Database, settings: Settings, *, agent: str, until: int | None) -> int:
    history = history_of(database, agent)
    last = max((kept.number for kept in history.steps), default=0)
    if until is not None and until > last:
        return fail(f"agent {agent!r} has steps 1 to {last}: --until {until} is none of them")
    opened = open_workshop(settings, say=note)
    try:
        replayed = replay(history, opened.workshop, opened.snapshots, until=until, told=_say_step)
    finally:
        opened.workshop.close()
    _say_replayed(replayed, history, until=until)
    return 0 if replayed.proves else 1


def _say_step(again: StepAgain) -> None:
    step = again.kept.step
    said = "equal" if again.is_equal else f"recorded {step.shadow_after[:16]}"
    say(f"step {again.kept.number:<5} {again.state.sha[:16]}  {said}")


def _say_replayed(replayed: Replayed, history: History, *, until: int | None) -> None:
    forgotten = sum(kept.forgotten for kept in history.until(until))
    if forgotten:
        say(f"{forgotten} steps are forgotten, and in no adapter")
    for held in replayed.held:
        say(f"{_name(held):<10} {held.adapter.sha[:16]}  {_told(held)}")
    where = "on a machine like the one that learned them" if replayed.exact else "on another machine or torch"
    say(f"{replayed.equal_steps} of {replayed.steps} steps came out with the recorded SHA-256, {where}")
    say(_verdict(replayed))


def _name(held: Held) -> str:
    return "head" if held.adapter.version is None else f"version {held.adapter.version}"


def _told(held: Held) -> str:
    return "equal, moments included" if held.is_equal else f"{held.apart:.1e} apart at most"


def _verdict(replayed: Replayed) -> str:
    if replayed.is_equal:
        return "equal to the byte: the shadow is what the ledger says it was made of"
    if replayed.exact:
        return "NOT equal: what the ledger keeps, or a snapshot, was changed, or this machine is not what it says"
    if not replayed.ends_held:
        return "NOT shown: that step has no snapshot to compare with; replay to the head, or to a version"
    apart = max(held.apart for held in replayed.held)
    if replayed.proves:
        return f"equal within {MOST_APART:g} of the largest value, as on another machine it can be: {apart:.1e}"
    return f"NOT equal: {apart:.1e} apart, where another machine may be {MOST_APART:g} of the largest value apart"
