"""Forgetting: an agent's shadow and versions without what is to be forgotten, as if it had never been.

- Exact unlearning: every step but those left out is taken again in order, after prefixes served with the versions
  as rebuilt. What comes of it is, to the byte, the shadow of an agent who never saw it.
- Nothing is changed before all is computed, and before what should be as it was has been found to be so.
- New snapshots are written first, then rows move in one transaction, then old snapshots and exports go: a crash
  leaves the old state or the new one, and files that the next start, or asking again, removes.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from daemon.config import Settings
from daemon.learning.exports import remove_export
from daemon.learning.parting import part
from daemon.learning.rebuild import History, Rebuild, StepAgain, history_of
from daemon.learning.snapshots import remove, sweep
from daemon.learning.workshop import Opened
from engine.again import NotAgain
from store import adapters, forget
from store.database import Database
from store.exports import exports_no_more_hers
from store.forget import Change, Moved, MovedStep, Place
from store.records import KeptStep
from store.scopes import Found, Scope, find
from store.scrubbing import scrub


class Forgetting:
    """Forgets, on a database that is open for writing. The model is loaded only where something was learned."""

    def __init__(
        self, database: Database, open_: Callable[[], Opened], *, settings: Settings, told: Callable[[str], None]
    ) -> None:
        self._database = database
        self._open = open_
        self._settings = settings
        self._told = told

    def find(self, scope: Scope) -> list[Found]:
        """What there is to forget, by agent. Raises as `store.scopes.find`."""
        with self._database.read() as session:
            return find(session, scope)

    def run(self, scope: Scope, found: Sequence[Found]) -> list[Change]:
        """Forget what was found; returns what was changed.

        Raises:
            NotAgain: what was learned since cannot be learned again here; nothing was changed.
            SnapshotDamaged: the first version's snapshot is missing, or was made for another model; so too.
            StillRead: it is forgotten, and the file cannot be scrubbed yet.
        """
        changes = self.prepare(found)
        with self._database.write() as session:
            forget.forget(session, scope, changes)
        clean(self._database, self._settings)
        return changes

    def prepare(self, found: Sequence[Found]) -> list[Change]:
        """What there is to change, with the rebuilt snapshots on disk. Raises as `run`; it only reads."""
        if not any(takes_a_model(each) for each in found):
            return [Change(each, (), (), None) for each in found]
        opened = self._open()
        try:
            return [self._change(each, opened) for each in found]
        finally:
            opened.workshop.close()

    def _change(self, found: Found, opened: Opened) -> Change:
        """What is to change of one agent's; the snapshots of her rebuilt adapters are on disk."""
        with self._database.read() as session:
            tried = [(shared, part(session, shared, opened.chat)) for shared in found.shared]
        parted = tuple(made for _, made in tried if made is not None)
        change = Change(found, parted, tuple(shared for shared, made in tried if made is None), None)
        steps = [each.step for each in parted if each.step is not None]
        if not steps and not change.left_out:
            return change
        return replace(change, moved=self._rebuilt(change, opened))

    def _rebuilt(self, change: Change, opened: Opened) -> Moved:
        """An agent's steps and adapters without some steps, and others changed; their snapshots are on disk."""
        agent, others = change.found.agent, {each.step.step.id: each.step for each in change.parted if each.step}
        kept = history_of(self._database, agent)
        history = replace(kept, steps=tuple(others.get(step.step.id, step) for step in kept.steps))
        begun = opened.snapshots.read(history.versions[0].snapshot)
        rebuild = Rebuild(history, begun, opened.workshop, leaving_out=change.left_out)
        concerned, exact = _concerned(history, {*change.left_out, *others}), rebuild.is_exact()
        places = {history.versions[0].sha: Place(history.versions[0].sha, history.versions[0].snapshot, 0)}
        taken: dict[str, MovedStep] = {}
        for again in rebuild.steps():
            if exact and again.kept.step.id not in concerned:
                _require_equal(again)
            taken[again.kept.step.id] = _moved(again)
            self._told(f"step {again.kept.number} of {agent} was taken again: {again.state.sha[:16]}")
        adapters_ = (*history.versions, history.head)
        for state in {id(state): state for state in (rebuild.at[row.sha] for row in adapters_)}.values():
            opened.snapshots.write(state.tensors)
        moved = tuple(_placed(step, taken, places) for step in history.steps)
        return Moved(moved, {row.version: places[row.sha] for row in adapters_}, exact, history.head.sha)


def clean(database: Database, settings: Settings, *, former: Collection[str] | None = None) -> None:
    """Remove what the ledger names no more from the disk: snapshots, exports, and bytes of what was erased.

    `former` are the snapshots that it may be; None is all there are, where nobody writes any meanwhile.

    Raises:
        StillRead: another program reads the ledger's file.
    """
    with database.read() as session:
        named = adapters.snapshots_named(session)
        exported = [
            export
            for agent in adapters.agents_with_adapters(session)
            for export in exports_no_more_hers(session, agent)
        ]
    if former is None:
        sweep(settings.data_dir, named)
    else:
        remove(settings.data_dir, {*former} - named)
    for name, sha in exported:
        remove_export(settings.exports / name, sha=sha)
    scrub(database)


def takes_a_model(found: Found) -> bool:
    """Was anything learned of it, or is it to be told apart from something else?"""
    return bool(found.steps or found.shared)


def _concerned(history: History, left_out: Collection[str]) -> set[str]:
    """The steps that come out otherwise once some are left out: those that follow from them."""
    changed, concerned = set[str](), set[str]()
    versions = {f"{history.agent}@{row.version}": row.sha for row in history.versions}
    for kept in history.steps:
        if kept.step.id in left_out or {kept.step.shadow_before, versions.get(kept.stable)} & changed:
            changed.add(kept.step.shadow_after)
            concerned.add(kept.step.id)
    return concerned


def _require_equal(again: StepAgain) -> None:
    if not again.is_equal:
        raise NotAgain(
            f"step {again.kept.number} of {again.kept.agent} comes before all that is to be forgotten, and taken "
            f"again it is {again.state.sha}, not {again.kept.step.shadow_after}: nothing was changed. "
            "Let ridealong replay say where the ledger and its adapters part"
        )


def _moved(again: StepAgain) -> MovedStep:
    learned = again.learned
    return MovedStep(
        id=again.kept.step.id,
        shadow_before=learned.step.sha_before,
        shadow_after=learned.step.sha_after,
        snapshot=again.state.snapshot,
        loss_before=learned.loss,
        row_losses_before=learned.row_losses,
        kl_served=learned.kl_served,
        gradient_norm=learned.step.gradient_norm,
    )


def _placed(kept: KeptStep, taken: dict[str, MovedStep], places: dict[str, Place]) -> MovedStep:
    """Where a step is now; `places` learns where the shadow after it is. One left out leaves it where it was."""
    before, step = places[kept.step.shadow_before], taken.get(kept.step.id)
    if step is None:
        places[kept.step.shadow_after] = before
        return MovedStep(
            id=kept.step.id, shadow_before=before.sha, shadow_after=before.sha, snapshot=before.snapshot
        )
    places[kept.step.shadow_after] = Place(step.shadow_after, step.snapshot, kept.number)
    return step
