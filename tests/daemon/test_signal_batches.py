"""Many signals in one request: settled together, answered in time, and each by itself where that is asked."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.orm import Session

from daemon.learning import precedence as precedence_room
from daemon.learning import settling
from daemon.learning.gathering import Gathered
from daemon.learning.settling import Settling
from daemon.text.chat_template import HuggingFaceChat
from signals.records import Signal
from signals.tokens import Encoding
from store.errors import StorageFailed
from tests.daemon.conftest import AGENT, Running
from tests.daemon.test_disconnects import having


def a_signal(identity: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"id": identity, "agent": AGENT, "context": "room", "kind": kind} | fields


async def each(running: Running, body: Any) -> list[dict[str, Any]]:
    status, told = await running.post("/signals?each=true", body)
    assert status == 200, told
    assert isinstance(told, list)
    return told


async def test_what_a_list_says_of_its_own_engrams_counts_for_their_lessons(running: Running) -> None:
    turn = (await running.ask("the harbour master is called Oona Brask"))["turn"]
    engram = a_signal("e", "engram", turn=turn, message=0, quote="Oona Brask", origin="human")
    relevance = a_signal("r", "relevance", engram="e", relevance=0.25)
    verdict = a_signal("v", "verdict", turn=turn, outcome="failed")
    action = a_signal("a", "action", turn=turn)
    await running.post("/signals", [engram, relevance, action, verdict])
    assert (await running.fate("a", "refused"))["refusal"]["code"] == "failed_outcome"
    await running.fate("e", "planned")
    made = running.service._parts.asked._rides.made_by("e")  # type: ignore[union-attr]
    assert made is not None
    assert set(made.weights) == {0.25}
    assert (await running.get("/signals/r"))["state"] == "applied"


async def test_a_list_is_answered_once_it_is_on_disk_and_one_signal_once_it_is_settled(running: Running) -> None:
    assert running.service._parts is not None
    intake, turn = running.service._parts.intake, (await running.ask())["turn"]
    given = [a_signal(f"a{i}", "action", turn=turn) for i in range(2)]
    async with intake._one_settles:
        verdict = a_signal("v", "verdict", turn="another", outcome="passed")
        status, told = await running.post("/signals", [*given, verdict])
        assert (status, [one["state"] for one in told]) == (200, ["received", "received", "applied"])
        alone = asyncio.create_task(running.post("/signals", a_signal("one", "action", turn=turn)))
        await running.until(having(lambda: "one" in intake._backlog))
        assert not alone.done()
    assert (await alone)[1]["state"] == "planned"
    assert [(await running.get(f"/signals/a{i}"))["state"] for i in range(2)] == ["planned", "planned"]


async def test_planning_stands_aside_while_signals_are_put(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert running.service._parts is not None
    precedence, turn = running.service._parts.intake._precedence, (await running.ask())["turn"]
    monkeypatch.setattr(precedence_room, "MOST_SECONDS", 600)
    with precedence.going_first():
        await running.post("/signals", [a_signal(f"a{i}", "action", turn=turn) for i in range(2)])
        with precedence.going_first():
            pass
        assert not precedence._free.is_set()
        assert (await running.get("/signals/a1"))["state"] == "received"
    await running.fate("a1", "planned")


async def test_planning_never_stands_aside_for_long(running: Running) -> None:
    assert running.service._parts is not None
    turn = (await running.ask())["turn"]
    with running.service._parts.intake._precedence.going_first():
        await running.post("/signals", [a_signal(f"a{i}", "action", turn=turn) for i in range(2)])
        await running.fate("a1", "planned")


async def test_a_turn_that_many_signals_are_about_is_encoded_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, encode, encoded = (await running.ask("the harbour master"))["turn"], HuggingFaceChat.encode, list[str]()

    def counted(self: HuggingFaceChat, text: str) -> Encoding:
        encoded.append(text)
        return encode(self, text)

    monkeypatch.setattr(HuggingFaceChat, "encode", counted)
    words = [
        a_signal(word, "engram", turn=turn, quote=word, origin="human") for word in ("the", "harbour", "master")
    ]
    await running.post("/signals", words)
    assert {(await running.fate(word, "planned"))["state"] for word in ("the", "harbour", "master")} == {"planned"}
    assert len(encoded) == 1


async def test_an_id_that_a_list_gives_to_two_signals_is_the_firsts(running: Running) -> None:
    turn = (await running.ask())["turn"]
    verdict = a_signal("x", "verdict", turn=turn, outcome="passed")
    told = await each(running, [a_signal("x", "action", turn=turn), verdict, verdict | {"id": "y"}])
    assert [one["status"] for one in told] == ["new", "error", "new"]
    assert (told[0]["state"], told[2]["state"]) == ("received", "applied")
    assert (await running.fate("x", "planned"))["kind"] == "action"


async def test_what_is_said_of_a_private_turn_after_its_verdict_is_refused_and_holds_up_nobody(
    running: Running,
) -> None:
    private = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "diary", "X-Ridealong-Private": "true"}
    hidden, open_ = (await running.ask(who=private))["turn"], (await running.ask())["turn"]
    about = {"agent": AGENT, "context": "diary", "turn": hidden}
    await running.post("/signals", about | {"id": "v", "kind": "verdict", "outcome": "passed"})
    late = about | {"id": "late", "kind": "action"}
    await running.post("/signals", [late, a_signal("fine", "action", turn=open_)])
    assert (await running.fate("late", "refused"))["refusal"]["code"] == "private_context"
    await running.fate("fine", "planned")


async def test_one_signal_that_cannot_be_written_takes_no_other_with_it(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, write = (await running.ask())["turn"], settling.write_gathered

    def fails_for_one(session: Session, gathered: Gathered) -> int:
        if any("bad" in shape.plan.signals for shape in gathered.shapes):
            raise StorageFailed("this one cannot be written")
        return write(session, gathered)

    monkeypatch.setattr(settling, "write_gathered", fails_for_one)
    await running.post("/signals", [a_signal(name, "action", turn=turn) for name in ("good", "bad", "fine")])
    await running.fate("good", "planned")
    await running.fate("fine", "planned")
    assert (await running.get("/signals/bad"))["state"] == "received"
    monkeypatch.undo()
    assert (await running.signal("action", id="bad", turn=turn))["state"] == "planned"


async def test_signals_taken_each_by_itself_are_kept_where_others_are_wrong(running: Running) -> None:
    turn = (await running.ask())["turn"]
    good = a_signal("good", "action", turn=turn)
    wrong = [
        {"id": "no kind", "agent": AGENT},
        a_signal("good", "action", turn=turn, relevance=0.5),
        a_signal("far", "correction", turn=turn, reply_tokens=[10**6]),
    ]
    told = await each(running, [*wrong[:1], good, *wrong[1:], a_signal("last", "action", turn="nobody's")])
    assert [one["index"] for one in told] == [0, 1, 2, 3, 4]
    assert [one["status"] for one in told] == ["error", "new", "error", "error", "new"]
    assert told[0]["error"]["param"] == "kind" or "kind" in told[0]["error"]["message"]
    assert told[2]["error"]["code"] == "signal_conflict"
    assert told[3]["error"]["param"] == "reply_tokens"
    assert (await running.fate("good", "planned"))["id"] == "good"
    assert (await running.fate("last", "refused"))["refusal"]["code"] == "turn_unknown"
    assert [one["status"] for one in await each(running, [good])] == ["same"]


async def test_lines_taken_each_by_itself_may_be_no_json(running: Running) -> None:
    turn = (await running.ask())["turn"]
    line = f'{{"id": "x", "agent": "{AGENT}", "kind": "action", "turn": "{turn}"}}'
    kind = {"Content-Type": "application/x-ndjson"}
    async with running.http.post(f"{running.url}/signals?each=true", data=f"{{\n{line}\n", headers=kind) as answer:
        told = await answer.json()
    assert [one["status"] for one in told] == ["error", "new"]


@pytest.mark.parametrize(("query", "body"), [("each=perhaps", {}), ("each=true", [])])
async def test_what_is_no_request_at_all_is_refused_as_a_whole(running: Running, query: str, body: Any) -> None:
    assert (await running.post(f"/signals?{query}", body))[0] == 400


async def test_signals_that_cannot_be_settled_together_are_settled_each_by_itself(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = Settling.settle

    async def alone(self: Settling, given: Sequence[Signal]) -> None:
        if len(given) > 1 or given[0].id == "bad":
            raise RuntimeError("not these")
        await settle(self, given)

    monkeypatch.setattr(Settling, "settle", alone)
    turn = (await running.ask("hello"))["turn"]
    base = {"kind": "engram", "agent": AGENT, "context": "room", "turn": turn, "origin": "human", "message": 0}
    status, _ = await running.post("/signals", [base | {"id": name} for name in ("one", "bad", "two")])
    assert status == 200
    for name in ("one", "two"):
        await running.fate(name, "planned", "learned")
    assert (await running.get("/signals/bad"))["state"] == "received"
