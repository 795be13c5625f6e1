"""`POST /learn`: a reply learned by itself, after a turn, a slot's tokens, or a conversation."""

import asyncio
from typing import Any

import pytest

from store.signals import signal_of
from store.steps import last_steps
from store.turns import turn_of
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_asked_lessons import CALL, HELLO, WHO, conversation, learned_text, steps_wait

REPLY = "glass bees"
END = "<|im_end|>"
RING = {"type": "function", "function": {"name": "ring", "parameters": {"type": "object"}}}


async def learn(running: Running, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
    return await running.post("/learn", {"wait": 20} | body, **(WHO | headers))


async def test_a_reply_of_a_turn_is_learned_and_told_with_its_loss(running: Running) -> None:
    turn = await running.ask("who lit it?")
    status, told = await learn(running, {"turn": turn["turn"], "reply": REPLY, "lr": 0.5})
    assert (status, told["status"], told["kind"], told["step"]) == (200, "learned", "correction", 1)
    assert told["loss"] > 0
    assert told["kl_served"] is not None
    assert await learned_text(running) == REPLY + END
    (step,) = await running.store.read(last_steps, agent=AGENT, limit=1)
    assert step.step.lr == 0.5
    assert step.prefix_token_count == turn["usage"]["prompt_tokens"] - 1
    fate = await running.get(f"/signals/{told['id']}")
    assert (fate["state"], fate["loss_before"]) == ("learned", told["loss"])


async def test_a_reply_in_the_form_of_a_message_is_the_same(running: Running) -> None:
    turn = await running.ask("who lit it?")
    _, told = await learn(running, {"turn": turn["turn"], "reply": {"content": REPLY}})
    assert told["status"] == "learned"
    assert await learned_text(running) == REPLY + END


async def test_token_ids_are_learned_as_they_are(running: Running) -> None:
    turn = await running.ask("who lit it?")
    _, told = await learn(running, {"turn": turn["turn"], "reply_tokens": [40, 41, 42]})
    assert told["status"] == "learned"
    (step,) = await running.store.read(last_steps, agent=AGENT, limit=1)
    assert step.targets == (40, 41, 42)


async def test_so_many_tokens_of_a_slot_are_what_the_reply_comes_after(running: Running) -> None:
    turn = await running.ask("who lit it?", max_tokens=8)
    kept = await running.store.read(turn_of, turn["turn"])
    assert kept.prompt_tokens is not None
    count = len(kept.prompt_tokens) + 3
    body = {"id_slot": kept.slot, "n_prefix": count, "reply_tokens": [40, 41]}
    status, told = await learn(running, body)
    assert (status, told["status"]) == (200, "learned")
    (step,) = await running.store.read(last_steps, agent=AGENT, limit=1)
    assert (step.prefix_turn, step.prefix_token_count) == (turn["turn"], count - 1)
    assert step.targets == (40, 41)
    served = await running.service.lane.call(lambda lane: lane.engine.slots[kept.slot or 0].tokens)
    assert step.tokens == (served[count - 1], 40)


async def test_more_tokens_than_the_slots_turn_has_are_refused_where_it_ends(running: Running) -> None:
    turn = await running.ask("who lit it?")
    kept = await running.store.read(turn_of, turn["turn"])
    held = kept.prompt_token_count + kept.reply_token_count
    _, told = await learn(running, {"id_slot": kept.slot, "n_prefix": held + 1, "reply": REPLY})
    assert told["status"] == "refused"
    assert (told["refusal"]["code"], told["refusal"]["position"]) == ("unserved_prefix", held)


async def test_a_conversation_is_learned_after_the_newest_turn_that_was_served_it(running: Running) -> None:
    await running.ask("who lit it?")
    newest = await running.ask("who lit it?")
    status, told = await learn(running, {"messages": conversation("who lit it?", REPLY)})
    assert (status, told["status"]) == (200, "learned")
    (step,) = await running.store.read(last_steps, agent=AGENT, limit=1)
    assert step.prefix_turn == newest["turn"]
    assert await learned_text(running) == REPLY + END


async def test_an_earlier_reply_of_a_conversation_is_learned_after_what_came_before_it(running: Running) -> None:
    answer = await running.ask("are you sure?", history=conversation("who lit it?", "nobody"))
    _, told = await learn(running, {"messages": conversation("who lit it?", REPLY)})
    assert told["status"] == "learned"
    (step,) = await running.store.read(last_steps, agent=AGENT, limit=1)
    assert step.prefix_turn == answer["turn"]
    assert step.prefix_token_count < answer["usage"]["prompt_tokens"] - 1


async def test_a_conversation_with_tools_is_rendered_with_them(with_tools: Running) -> None:
    await with_tools.ask("hello there", tools=[RING], chat_template_kwargs={"thinking": False})
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    body = {"messages": messages, "tools": [RING], "chat_template_kwargs": {"thinking": False}}
    _, told = await learn(with_tools, body)
    assert told["status"] == "learned", told
    assert (await learned_text(with_tools)).startswith('<tool_call>{"name": "ring"')
    _, told = await learn(with_tools, {"messages": messages})
    assert told["refusal"]["code"] == "unserved_prefix"


async def test_a_conversation_that_was_never_served_is_refused_where_it_differs_with_both_tokens(
    running: Running,
) -> None:
    _, told = await learn(running, {"messages": conversation("who lit it?", REPLY)})
    assert (told["refusal"]["code"], told["refusal"]["position"]) == ("unserved_prefix", 0)
    turn = await running.ask("who rang it?")
    _, told = await learn(running, {"messages": conversation("who lit it?", REPLY)})
    kept = await running.store.read(turn_of, turn["turn"])
    at = told["refusal"]["position"]
    tokenizer = running.service._loaded().tokenizer
    given = tokenizer("<|im_start|>user\nwho lit it?<|im_end|>\n")["input_ids"]
    assert kept.prompt_tokens is not None
    assert kept.prompt_tokens[:at] == tuple(given[:at])
    assert kept.prompt_tokens[at] != given[at]
    assert f"token {given[at]} at position {at}" in told["refusal"]["message"]
    assert f"token {kept.prompt_tokens[at]}" in told["refusal"]["message"]
    assert (await running.get(f"/signals/{told['id']}"))["refusal"] == told["refusal"]


async def test_what_the_slots_no_longer_hold_is_refused_by_the_lane(start: Start) -> None:
    async with start(slots=1) as running:
        turn = await running.ask("who lit it?")
        await running.ask("something else", who={"X-Ridealong-Agent": "bob"})
        status, told = await learn(running, {"turn": turn["turn"], "reply": REPLY})
        assert (status, told["status"]) == (200, "refused")
        assert told["refusal"]["code"] == "unserved_prefix"
        assert told["refusal"]["position"] == 3


@pytest.mark.parametrize(
    ("agent", "headers", "code"),
    [("bob", {}, "policy_off"), (AGENT, {"X-Ridealong-Private": "true"}, "private_context")],
)
async def test_who_may_not_learn_is_told_so(
    running: Running, agent: str, headers: dict[str, str], code: str
) -> None:
    turn = await running.ask("hello", who=WHO | {"X-Ridealong-Agent": agent})
    status, told = await learn(
        running, {"turn": turn["turn"], "reply": REPLY}, **({"X-Ridealong-Agent": agent} | headers)
    )
    assert (status, told["status"], told["refusal"]["code"]) == (200, "refused", code)
    assert (await running.get("/ledger", kind="refusal"))["rows"][-1]["code"] == code


@pytest.mark.parametrize(
    "body", [{"turn": "turn-none"}, {"id_slot": 0, "n_prefix": 4}, {"id_slot": 1, "n_prefix": 4}]
)
async def test_what_is_about_no_turn_of_the_agents_is_not_found(running: Running, body: dict[str, Any]) -> None:
    await running.ask("hello", who={"X-Ridealong-Agent": "bob"})
    status, told = await learn(running, body | {"reply": REPLY})
    assert (status, told["error"]["code"]) == (404, "turn_unknown")
    assert not (await running.get("/ledger", kind="signal"))["rows"]


async def test_another_agents_turn_is_not_found(running: Running) -> None:
    turn = await running.ask("hello", who={"X-Ridealong-Agent": "bob"})
    status, _ = await learn(running, {"turn": turn["turn"], "reply": REPLY})
    assert status == 404


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "one of turn"),
        ({"reply": "x"}, "one of turn"),
        ({"turn": "t"}, "one of reply"),
        ({"turn": "t", "reply": ""}, "1"),
        ({"turn": "t", "reply": "x", "reply_tokens": [1]}, "one of reply"),
        ({"turn": "t", "id_slot": 0, "n_prefix": 1, "reply": "x"}, "one of turn"),
        ({"id_slot": 0, "reply": "x"}, "go together"),
        ({"id_slot": 0, "n_prefix": 0, "reply": "x"}, "1"),
        ({"id_slot": 7, "n_prefix": 1, "reply": "x"}, "slots 0 to 1"),
        ({"turn": "t", "n_prefix": 1, "reply": "x"}, "go together"),
        ({"messages": HELLO}, "2 items"),
        ({"messages": [*HELLO, *HELLO]}, "assistant's"),
        ({"messages": conversation("a", "b"), "reply": "x"}, "the last is the reply"),
        ({"turn": "t", "reply": "x", "tools": [RING]}, "go with messages"),
        ({"turn": "t", "reply": {"role": "user", "content": "x"}}, "assistant's"),
        ({"turn": "t", "reply": "x", "lr": 0}, "greater than 0"),
        ({"turn": "t", "reply": "x", "lr": 1.5}, "less than or equal to 1"),
        ({"turn": "t", "reply": "x", "wait": 601}, "600"),
        ({"turn": "t", "reply": "x", "soon": True}, "not supported"),
        ({"turn": "t", "reply_tokens": []}, "1"),
    ],
)
async def test_what_is_ill_formed_is_a_400_that_says_what_to_give(
    running: Running, body: dict[str, Any], says: str
) -> None:
    status, told = await running.post("/learn", body, **WHO)
    assert status == 400, told
    assert says in told["error"]["message"]


async def test_a_token_that_is_not_there_is_a_400(running: Running) -> None:
    turn = await running.ask("hello")
    status, told = await learn(running, {"turn": turn["turn"], "reply_tokens": [5, 330]})
    assert (status, told["error"]["param"]) == (400, "reply_tokens")
    assert not (await running.get("/ledger", kind="signal"))["rows"]


async def test_a_lesson_that_has_not_ended_in_time_is_asked_for_again(running: Running) -> None:
    turn = await running.ask("hello")
    go_on = steps_wait(running)
    body = {"id": "mine", "turn": turn["turn"], "reply": REPLY}
    async with running.http.post(f"{running.url}/learn", json=body, headers=WHO) as answer:
        told = await answer.json()
        assert (answer.status, told["status"], told["id"]) == (202, "riding", "mine")
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.headers["Location"] == "/signals/mine"
    go_on.set()
    status, told = await learn(running, body)
    assert (status, told["status"], told["step"]) == (200, "learned", 1)


async def test_the_same_request_again_is_the_same_lesson_even_when_it_would_be_found_elsewhere(
    running: Running,
) -> None:
    await running.ask("who lit it?")
    body = {"id": "mine", "messages": conversation("who lit it?", REPLY)}
    _, first = await learn(running, body)
    await running.ask("who lit it?")
    status, again = await learn(running, body | {"wait": 0})
    assert (status, again) == (200, first)
    assert len(await running.store.read(last_steps, agent=AGENT, limit=9)) == 1


async def test_the_same_id_for_something_else_is_a_conflict(running: Running) -> None:
    turn = await running.ask("who lit it?")
    await learn(running, {"id": "mine", "turn": turn["turn"], "reply": REPLY})
    for other in ({"reply": "wax"}, {"reply": REPLY, "lr": 0.5}):
        status, told = await learn(running, {"id": "mine", "turn": turn["turn"]} | other)
        assert (status, told["error"]["code"]) == (409, "signal_conflict")
    status, _ = await learn(
        running, {"id": "mine", "turn": turn["turn"], "reply": REPLY}, **{"X-Ridealong-Context": "hall"}
    )
    assert status == 409


async def test_two_at_once_by_the_same_id_are_one_lesson(running: Running) -> None:
    turn = await running.ask("who lit it?")
    body = {"id": "mine", "turn": turn["turn"], "reply": REPLY}
    answers = await asyncio.gather(*(learn(running, body) for _ in range(3)))
    assert [(status, told["status"], told["step"]) for status, told in answers] == [(200, "learned", 1)] * 3


async def test_a_client_that_leaves_while_it_waits_has_its_lesson_learned(running: Running) -> None:
    turn = await running.ask("hello")
    go_on = steps_wait(running)
    asking = asyncio.create_task(learn(running, {"id": "mine", "turn": turn["turn"], "reply": REPLY}))

    async def known() -> bool:
        return bool((await running.get("/ledger", kind="lesson"))["rows"])

    await running.until(known)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    go_on.set()
    assert (await running.fate("mine", "learned"))["step"] == 1


async def test_a_lesson_that_a_restart_came_between_waits_for_its_prefix_and_is_learned_once(
    start: Start,
) -> None:
    body = {"id": "mine", "messages": conversation("who lit it?", REPLY), "lr": 0.5}
    async with start() as running:
        await running.ask("who lit it?")
        steps_wait(running)
        status, _ = await learn(running, body | {"wait": 0})
        assert status == 202
        assert running.service._parts is not None
        running.service._parts.learner._over = True  # it does not wait for the step that is held back
    async with start() as running:
        status, told = await learn(running, body)
        assert (status, told["status"]) == (202, "waiting")
        await running.ask("who lit it?", who={"X-Ridealong-Agent": "bob"})
        status, told = await learn(running, body)
        assert (status, told["status"], told["step"]) == (200, "learned", 1)
        (step,) = await running.store.read(last_steps, agent=AGENT, limit=9)
        assert step.step.lr == 0.5
        assert (await running.get("/ledger/verify"))["why"] is None


async def test_of_a_private_request_only_its_fingerprint_is_kept(running: Running) -> None:
    turn = await running.ask("hello")
    body = {"id": "mine", "turn": turn["turn"], "reply": "zanzibar-seventeen", "private": True}
    _, told = await learn(running, body)
    kept = await running.store.read(signal_of, "mine")
    assert kept.signal.body is None
    assert (await learn(running, body))[1] == told
