"""kill −9 of the service while it learns: nothing acknowledged is lost, nothing is trained twice."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from sqlalchemy import select

from daemon.commands.child import Child
from daemon.commands.client import call
from engine.lora import tensors_sha256
from store import adapters, chain, ledger
from store.database import Database
from store.ledger import Filter
from store.tables import SignalTable, StepTable
from store.words import LedgerKind
from tests.daemon.conftest import AGENT

WAIT_SECONDS = 120.0


class Agent:
    """An agent that speaks with a child service and remembers what was acknowledged."""

    def __init__(self, url: str, model: str, *, name: str = AGENT) -> None:
        self._url = url
        self._name = name
        self._model = model
        self.acknowledged: list[str] = []

    def ask(self, text: str, *, max_tokens: int = 4) -> str:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "metadata": {"agent": self._name, "context": "room"},
        }
        return str(call(self._url, "/v1/chat/completions", body=json.dumps(body).encode())["id"])

    def correct(self, turn: str, count: int) -> None:
        """Correct a turn so many times, each after another of its tokens: none takes the place of another."""
        for number in range(count):
            identity = f"correction-{len(self.acknowledged)}-{time.monotonic_ns()}"
            body: dict[str, Any] = {"id": identity, "agent": self._name, "context": "room", "kind": "correction"}
            body |= {"turn": turn, "reply": "The light is made by a choir of glass bees."}
            body["prefix_tokens"] = 2 + number
            call(self._url, "/signals", body=json.dumps(body).encode())
            self.acknowledged.append(identity)


def rows_of(data_dir: Path, kind: LedgerKind) -> list[dict[str, Any]]:
    database = Database.open(data_dir / "ledger.db", read_only=True)
    try:
        with database.read() as session:
            page = ledger.page(session, Filter(kind=kind), limit=1000)
            return [dict(row.body) | {"subject": row.subject} for row in page.rows]
    finally:
        database.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


def rides(data_dir: Path) -> int:
    return sum(row.get("state") == "riding" for row in rows_of(data_dir, LedgerKind.LESSON))


def check_books(data_dir: Path, acknowledged: list[str]) -> dict[str, str]:
    """What must be true of the data directory after any crash; the states of the acknowledged signals."""
    database = Database.open(data_dir / "ledger.db", read_only=True)
    try:
        with database.read() as session:
            verified = chain.verify(session)
            assert verified.why is None, verified
            states = {row.id: str(row.state) for row in session.scalars(select(SignalTable))}
            consumed = [signal for step in session.scalars(select(StepTable)) for signal in step.signals]
            head = adapters.adapters_of(session, AGENT).shadow
    finally:
        database.close()
    assert set(acknowledged) <= states.keys(), "an acknowledged signal is lost"
    assert len(consumed) == len(set(consumed)), "a signal was trained twice"
    assert {signal for signal, state in states.items() if state == "learned"} == set(consumed)
    tensors = load_file(data_dir / head.snapshot)
    shadow = {key: value for key, value in tensors.items() if not key.startswith("optimizer.")}
    assert tensors_sha256(shadow) == head.sha, "the shadow is not the ledger's head"
    return states


def crash_while_learning(child: Child, agent: Agent, data_dir: Path, *, ride: int) -> None:
    """Correct a turn a few times and kill the service as soon as that many lessons have begun to ride."""
    agent.correct(agent.ask("who lit the lighthouse?"), 6)
    wait_for(lambda: rides(data_dir) >= ride)
    child.process.kill()
    child.process.wait()


@pytest.mark.parametrize("ride", [1, 5])
def test_nothing_acknowledged_is_lost_and_nothing_is_trained_twice(
    serve: Callable[..., Any], tiny_chat: Path, tmp_path: Path, ride: int
) -> None:
    data_dir, flags = tmp_path / "data", ("--model", str(tiny_chat), "--idle-seconds", "0.01", "--ctx", "256")
    with serve(*flags) as child:
        agent = Agent(child.url, "tiny-chat")
        crash_while_learning(child, agent, data_dir, ride=ride)
    with serve(*flags) as child:
        again = Agent(child.url, "tiny-chat")
        again.ask("who lit the lighthouse?")  # serves the prefix again: what waited rides or runs in the gap

        def all_decided() -> bool:
            fates = [call(child.url, f"/signals/{signal}")["state"] for signal in agent.acknowledged]
            return set(fates) <= {"learned", "refused"}

        wait_for(all_decided)
    states = check_books(data_dir, agent.acknowledged)
    assert [states[signal] for signal in agent.acknowledged] == ["learned"] * 6


def test_on_the_real_model_a_lesson_cut_off_in_the_middle_is_learned_once_after_the_restart(
    serve: Callable[..., Any], model_cache: Path, tmp_path: Path
) -> None:
    data_dir, flags = tmp_path / "data", ("--model-cache", str(model_cache), "--idle-seconds", "0.01")
    with serve(*flags) as child:
        name = call(child.url, "/v1/models")["data"][0]["id"]
        agent = Agent(child.url, name)
        crash_while_learning(child, agent, data_dir, ride=1)
    assert rides(data_dir) == 1
    assert check_books(data_dir, agent.acknowledged)
    assert not rows_of(data_dir, LedgerKind.STEP), "the kill came after the step"
    with serve(*flags) as child:
        again = Agent(child.url, name)
        again.ask("who lit the lighthouse?")
        wait_for(lambda: len(rows_of(data_dir, LedgerKind.STEP)) == 6)
    states = check_books(data_dir, agent.acknowledged)
    assert set(states.values()) == {"learned"}
