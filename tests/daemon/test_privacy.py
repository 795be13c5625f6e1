"""Nothing that is said in a private context is anywhere but in the answer to whoever said it."""

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.http.access import ACCESS
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.scripted import Says
from tests.daemon.test_learning import corrected

MARKER = "zanzibar-seventeen"
TEXT = f"my secret is {MARKER}, keep it"


def signals_of(turn: str, context: str) -> Iterator[dict[str, Any]]:
    """A signal of every kind that has words, each with the marker in them."""
    base = {"agent": AGENT, "context": context, "turn": turn}
    yield base | {"kind": "engram", "quote": MARKER, "origin": "human"}
    yield base | {"kind": "engram", "message": 0, "origin": "self", "await_verdict": True}
    yield base | {"kind": "correction", "reply": TEXT}
    yield base | {"kind": "correction", "reply": {"role": "assistant", "content": TEXT}}
    yield base | {"kind": "correction", "reply": TEXT, "messages": [{"role": "user", "content": TEXT}]}
    yield base | {"kind": "labels", "labels": [{"message": 0}]}
    yield base | {"kind": "action"}
    yield base | {"kind": "verdict", "outcome": "passed"}


def wrong(turn: str) -> Iterator[tuple[str, Any]]:
    """Requests that are refused, each with the marker in it."""
    yield "/v1/chat/completions", {"model": MARKER, "messages": [{"role": "user", "content": TEXT}]}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}], "temperature": MARKER}
    yield "/v1/chat/completions", {"messages": [{"role": MARKER, "content": [TEXT]}], "metadata": {MARKER: TEXT}}
    yield "/v1/completions", {"prompt": TEXT * 200}
    yield "/signals", {"id": "x", "agent": AGENT, "kind": "correction", "turn": turn, "reply": {"content": [TEXT]}}
    yield "/learn", {"turn": turn, "reply": TEXT, "lr": MARKER}


async def speak(running: Running, who: dict[str, str], context: str) -> set[str]:
    """Serve, signal and err in a private context; the ids of the signals."""
    early = {
        "agent": AGENT,
        "context": context,
        "kind": "correction",
        "id": "early",
        "turn": "none",
        "reply": TEXT,
    }
    await running.post("/signals", early, **who)  # before any turn could have made the context private
    answer = await running.ask(TEXT, who=who, max_tokens=40)
    assert MARKER in answer["choices"][0]["message"]["content"]
    turn, ids = answer["turn"], {"early"}
    for signal in signals_of(turn, context):
        identity = uuid.uuid4().hex
        status, told = await running.post("/signals", signal | {"id": identity}, **who)
        assert (status, told["state"]) in {(200, "refused"), (200, "applied")}, told
        ids.add(identity)
    for learn in ({"reply": TEXT}, {"labels": [{"message": 0}]}):
        told = (await running.ask(TEXT, who=who, learn=learn))["learn"]
        assert (told["status"], told["refusal"]["code"]) == ("refused", "private_context")
    await running.post("/learn", {"turn": turn, "reply": TEXT}, **who)
    for path, body in wrong(turn):
        status, _ = await running.post(path, body, **who)
        assert 400 <= status < 500, path
    return ids


async def told(running: Running, ids: set[str]) -> dict[str, bytes]:
    """Every answer to a GET, of every signal and row of the ledger."""
    rows = (await running.get("/ledger", limit="1000"))["rows"]
    names = {"{id}": ids, "{seq}": {row["seq"] for row in rows}, "{agent}": {AGENT}}
    answers: dict[str, bytes] = {}
    for path in [path for method, path in ACCESS if method == "GET"] + ["/"]:
        hole = next((hole for hole in names if hole in path), None)
        for name in [None] if hole is None else names[hole]:
            asked = path if hole is None else path.replace(hole, str(name))
            if asked == "/ledger/stream":
                continue  # never ends; its rows are the ledger's
            async with running.http.get(running.url + asked) as answer:
                answers[asked] = await answer.read()
    return answers


@pytest.mark.parametrize("by", ["header", "policy"])
async def test_what_is_said_in_a_private_context_is_nowhere(
    start: Start, tmp_path: Path, says: Says, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[agents.ada]\nlearn = true\nprivate_contexts = ["diary"]\n' if by == "policy" else "")
    who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "diary"}
    private = who | ({"X-Ridealong-Private": "true"} if by == "header" else {})
    says(*[f"I keep {MARKER}"] * 3)
    with caplog.at_level(logging.DEBUG):
        async with start(policy=policy, idle_seconds=0.05) as running:
            ids = await speak(running, private, "diary")
            assert (await running.get("/ledger", kind="lesson"))["rows"] == []
            turns = (await running.get("/ledger", kind="turn"))["rows"]
            assert {turn["body"]["private"] for turn in turns} == {True}
            answers = await told(running, ids)
            assert len(answers) > len(ids) + len(turns)
            shown = {path: body for path, body in answers.items() if MARKER.encode() in body}
            assert not shown
            status, exported = await running.post(f"/adapters/{AGENT}/export", {"directory": "mine"})
            assert status in {200, 404}, exported
    written = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if MARKER.encode() in path.read_bytes()]
    assert MARKER not in caplog.text


async def test_what_waits_is_not_learned_once_a_turn_of_its_context_was_private(running: Running) -> None:
    _, correction = await corrected(running)
    assert correction["state"] == "planned"
    private = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "room", "X-Ridealong-Private": "true"}
    await running.ask("and now between us", who=private)
    fate = await running.fate(correction["id"], "refused", "learned")
    assert (fate["state"], fate["refusal"]["code"]) == ("refused", "private_context")
    assert (await running.get(f"/signals/{correction['id']}/explain"))["tokens"] == []
