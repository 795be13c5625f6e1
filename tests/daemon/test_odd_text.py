"""Text that databases differ on: NUL characters in what is asked, answered and signalled, on each of them."""

from collections.abc import AsyncIterator

import pytest

from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.scripted import Says
from tests.postgresql import Server

ODD = "glass\x00bees"


@pytest.fixture(params=["sqlite", "postgresql"])
async def running(request: pytest.FixtureRequest, start: Start) -> AsyncIterator[Running]:
    server: Server | None = request.getfixturevalue("postgresql") if request.param == "postgresql" else None
    async with start(**({"database": server.new_database()} if server else {})) as made:
        yield made


async def test_what_is_asked_and_answered_is_kept_as_it_was(running: Running, says: Says) -> None:
    says(ODD)
    answer = await running.ask(f"{ODD}?", max_tokens=32)
    assert answer["choices"][0]["message"]["content"] == ODD
    explained = await running.signal("action", id="kept", turn=answer["turn"])
    assert explained["state"] == "planned"
    again = await running.ask(f"{ODD}?", max_tokens=32, learn={"wait": 60})
    assert [lesson["status"] for lesson in again["learn"]["lessons"]] == ["learned"]
    assert (await running.get("/ledger/verify"))["why"] is None


async def test_a_signals_words_are_kept_as_they_were(running: Running) -> None:
    turn = (await running.ask(f"{ODD}, {ODD}?"))["turn"]
    told = await running.signal("correction", id="c1", turn=turn, reply=ODD)
    assert told["state"] == "planned"
    body = {"id": "c1", "agent": AGENT, "context": "room", "kind": "correction", "turn": turn, "reply": ODD}
    assert (await running.post("/signals", body))[1]["status"] == "same"
    assert (await running.post("/signals", body | {"reply": "glassbees"}))[0] == 409
    twice = await running.signal("engram", turn=turn, origin="human", quote=ODD, relevance=1.0)
    assert twice["refusal"]["code"] == "quote_ambiguous"
    once = await running.signal("engram", turn=turn, origin="human", quote=f"{ODD},", relevance=1.0)
    assert once["state"] == "planned"
    assert (await running.get("/ledger/verify"))["why"] is None


@pytest.mark.parametrize("field", ["id", "context", "turn"])
async def test_a_name_with_a_control_character_is_refused(running: Running, field: str) -> None:
    body = {"id": "c1", "agent": AGENT, "context": "room", "kind": "action", "turn": "t"}
    status, told = await running.post("/signals", body | {field: "a\x00b"})
    assert (status, told["error"]["param"]) == (400, f"action.{field}")
