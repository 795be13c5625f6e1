"""What must be true of a data directory, whatever happened to the process that wrote it."""

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from engine.lora import tensors_sha256
from store import adapters, chain
from store.database import Database
from store.errors import NoDatabase, WrongRevision
from store.records import Adapter
from store.tables import AdapterTable, LedgerTable, LessonTable, SignalTable, StepTable, TurnTable
from store.words import LedgerKind, LessonState
from tests.daemon.crash.agent import Diary
from tests.daemon.crash.child import AGENT

DATABASE_FILES = {"ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.lock"}


@dataclass(frozen=True, slots=True)
class Books:
    """What a ledger says: each signal's kind and state, the shadow's snapshot (`None` before the first)."""

    states: dict[str, tuple[str, str]]
    shadow: str | None


def check(data_dir: Path, diary: Diary) -> Books:
    """Hold a directory that nobody has open to what the agent was answered; raises `AssertionError`."""
    try:
        database = Database.open(data_dir / "ledger.db", read_only=True)
    except (NoDatabase, WrongRevision):
        assert not diary.turns, "the ledger is lost"
        return Books({}, None)
    try:
        with database.read() as session:
            return _check(session, data_dir, diary)
    finally:
        database.close()


def check_rest(data_dir: Path) -> None:
    """Nothing is on its way, and there is no file that nothing names."""
    database = Database.open(data_dir / "ledger.db", read_only=True)
    try:
        with database.read() as session:
            assert not list(session.scalars(select(LessonTable).where(LessonTable.state == LessonState.RIDING)))
            named = set(session.scalars(select(AdapterTable.snapshot)))
    finally:
        database.close()
    found = {f"adapters/{path.name}" for path in (data_dir / "adapters").iterdir()}
    assert found == named, f"stray {found - named}, missing {named - found}"
    others = {path.name for path in data_dir.iterdir()} - DATABASE_FILES
    assert others <= {"adapters", "exports", "lane"}, others
    exports = data_dir / "exports"
    stray = {path.name for path in exports.iterdir()} - {"kept"} if exports.exists() else set()
    assert not stray, f"half an export is left: {stray}"


def _check(session: Session, data_dir: Path, diary: Diary) -> Books:
    assert list(session.execute(text("PRAGMA integrity_check")).scalars()) == ["ok"]
    verified = chain.verify(session)
    assert verified.why is None, verified
    states = {row.id: (str(row.kind), str(row.state)) for row in session.scalars(select(SignalTable))}
    consumed = [signal for step in session.scalars(select(StepTable)) for signal in step.signals]
    assert diary.signals.keys() <= states.keys(), f"lost: {diary.signals.keys() - states.keys()}"
    assert set(diary.turns) <= set(session.scalars(select(TurnTable.id))), "a turn is lost"
    assert len(consumed) == len(set(consumed)), "a signal was trained twice"
    assert {signal for signal, (_kind, state) in states.items() if state == "learned"} == set(consumed)
    for name in diary.exports:
        _check_export(data_dir / "exports" / name)
    if AGENT not in adapters.agents_with_adapters(session):
        assert not diary.versions
        return Books(states, None)
    return Books(states, _check_adapters(session, data_dir, diary))


def _check_adapters(session: Session, data_dir: Path, diary: Diary) -> str:
    kept = adapters.adapters_of(session, AGENT)
    assert set(diary.versions) <= {version.version for version in kept.versions}, "a promotion is lost"
    for adapter in (kept.shadow, *kept.versions):
        _check_snapshot(data_dir, adapter)
    assert kept.shadow.sha == _last_sha(session), "the shadow is not the ledger's last step"
    rollbacks = select(LedgerTable.body).where(LedgerTable.kind == LedgerKind.ROLLBACK)
    assert len(list(session.scalars(rollbacks))) >= len(diary.rolled_back_to), "a rollback is lost"
    return Path(kept.shadow.snapshot).stem


def _last_sha(session: Session) -> str:
    """The shadow after the ledger's last step or rollback, or as it began."""
    sha = ""
    for row in session.scalars(select(LedgerTable).order_by(LedgerTable.seq)):
        if row.kind in {LedgerKind.STEP, LedgerKind.ROLLBACK}:
            sha = str(row.body["shadow_after"])
        elif row.kind is LedgerKind.PROMOTION and row.body["version"] == 0:
            sha = str(row.body["sha"])
    return sha


def _check_snapshot(data_dir: Path, adapter: Adapter) -> None:
    path = data_dir / adapter.snapshot
    assert path.is_file(), f"the snapshot of version {adapter.version} is missing"
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise AssertionError(f"the snapshot of version {adapter.version} is no snapshot") from error
    assert tensors_sha256(tensors) == path.stem, f"the snapshot of version {adapter.version} has changed"
    weights = {key: value for key, value in tensors.items() if not key.startswith("optimizer.")}
    assert tensors_sha256(weights) == adapter.sha, f"version {adapter.version} is not what the ledger says"


def _check_export(directory: Path) -> None:
    assert json.loads((directory / "adapter_config.json").read_text())["peft_type"] == "LORA"
    assert load_file(directory / "adapter_model.safetensors")
