"""`GET /lessons` and `GET /lessons/{id}` against what a service learned."""

from typing import Any

from store.lessons import refuse_lesson
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_keys import ADAS, BOBS, OPERATORS, ask, guarded
from tests.daemon.test_learning import REPLY, corrected, go_on

__all__ = ["guarded"]


async def learned(running: Running) -> Any:
    """A lesson that was learned, as the list has it."""
    await corrected(running)
    await go_on(running)
    (lesson,) = (await running.get("/lessons"))["lessons"]
    return lesson


async def test_a_lesson_is_told_token_by_token_with_its_losses(running: Running) -> None:
    lesson = await learned(running)
    told = await running.get(f"/lessons/{lesson['id']}")
    assert told | lesson == told
    assert (told["state"], told["step"], told["hidden"]) == ("learned", 1, None)
    assert "".join(token["text"] for token in told["tokens"]) == REPLY + "<|im_end|>"
    assert told["before"].endswith("who lit the lighthouse?<|im_end|>\n<|im_start|>assistant\n")
    (row,) = (await running.get("/ledger", kind="step"))["rows"]
    step = (await running.get(f"/ledger/{row['seq']}"))["step"]
    assert [token["token"] for token in told["tokens"]] == step["targets"]
    assert [token["weight"] for token in told["tokens"]] == step["weights"]
    assert [token["loss_before"] for token in told["tokens"]] == step["row_losses_before"]
    after = step["row_losses_after"] or [None] * len(step["targets"])
    assert [token["loss_after"] for token in told["tokens"]] == after
    assert told["tokens"][0]["position"] == told["prefix_tokens"] + 1
    assert told["measured"]["gradient_norm"] == step["gradient_norm"]
    assert list(told["signals"].values()) == ["makes"]


async def test_a_lesson_that_waits_has_weights_and_no_losses(running: Running) -> None:
    _, correction = await corrected(running)
    told = await running.get(f"/lessons/{correction['lesson']}")
    assert (told["state"], told["measured"], told["step"]) == ("planned", None, None)
    assert {(token["weight"], token["loss_before"]) for token in told["tokens"]} == {(1.0, None)}


async def test_the_newest_lessons_are_listed_a_page_at_a_time(running: Running) -> None:
    ids = [(await corrected(running))[1]["lesson"] for _ in range(3)]
    newest = await running.get("/lessons", limit="2")
    seen = [lesson["id"] for lesson in newest["lessons"]]
    rest = await running.get("/lessons", limit="2", cursor=newest["next_cursor"])
    seen += [lesson["id"] for lesson in rest["lessons"]]
    assert seen == ids[::-1]
    assert rest["next_cursor"] is None
    await running.store.write(lambda session: refuse_lesson(session, ids[2], code="expired", message="too late"))
    for query in ({"state": "refused"}, {"code": "expired"}):
        (refused,) = (await running.get("/lessons", **query))["lessons"]
        assert (refused["id"], refused["refusal"]["message"]) == (ids[2], "too late")


async def test_what_no_lesson_can_be_asked_by_is_refused(running: Running) -> None:
    for query, says in {
        "state=asleep": "state: 'asleep' is none of planned, riding, learned, refused",
        "kind=turn": "kind: there is no such filter",
        "limit=0": "ask for 1 to 200",
        "limit=x": "not a whole number",
    }.items():
        async with running.http.get(f"{running.url}/lessons?{query}") as answer:
            assert answer.status == 400, query
            assert says in (await answer.json())["error"]["message"]
    for path in ("/lessons/none", "/lessons?cursor=none"):
        async with running.http.get(running.url + path) as answer:
            assert answer.status == 404, path


async def test_of_a_context_that_is_private_by_now_no_word_is_told(start: Start) -> None:
    async with start() as running:
        lesson = await learned(running)
        status, _ = await _put(running, {"learn": True, "private_contexts": ["room"]})
        assert status == 200
        told = await running.get(f"/lessons/{lesson['id']}")
        assert (told["hidden"], told["tokens"], told["before"]) == ("private", [], "")
        assert told["loss_before"] == lesson["loss_before"]
        assert (await _put(running, {"learn": True}))[0] == 200
        assert (await running.get(f"/lessons/{lesson['id']}"))["tokens"]
        await running.ask(
            who={"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "room", "X-Ridealong-Private": "1"}
        )
        told = await running.get(f"/lessons/{lesson['id']}")
        assert (told["hidden"], told["tokens"]) == ("private", [])


async def test_an_agents_key_opens_her_lessons_and_no_others(guarded: Running) -> None:
    turn = await guarded.ask(who=ADAS | {"X-Ridealong-Context": "room"})
    signal = {
        "id": "c",
        "agent": AGENT,
        "context": "room",
        "kind": "correction",
        "turn": turn["turn"],
        "reply": "bees",
    }
    _, told = await ask(guarded, "POST", "/signals", signal, **ADAS)
    path = f"/lessons/{told['lesson']}"
    assert [(await ask(guarded, "GET", path, **who))[0] for who in (ADAS, OPERATORS, BOBS)] == [200, 200, 404]
    assert (await ask(guarded, "GET", "/lessons", **BOBS))[1]["lessons"] == []
    assert len((await ask(guarded, "GET", "/lessons", **ADAS))[1]["lessons"]) == 1
    assert (await ask(guarded, "GET", f"/lessons?agent={AGENT}", **BOBS))[0] == 403


async def _put(running: Running, table: dict[str, Any]) -> tuple[int, Any]:
    return await ask(running, "PUT", f"/policy/agents/{AGENT}", table)
