"""What a request itself asks to have learned: of its reply, of a conversation, of its prompt's own words."""

import asyncio
from typing import Any

import pytest

from daemon.learning.adapters import AgentAdapters
from daemon.learning.rides import Pending
from daemon.serving.lane_thread import LaneThread
from engine.orders import LessonEnded, LessonStarted
from engine.walk import LessonLearned
from store import signals
from store.errors import StorageFailed
from store.steps import last_steps
from store.turns import turn_of
from tests.daemon.conftest import AGENT, Running, Start

REPLY = "glass bees"
HELLO = [{"role": "user", "content": "hello there"}]
SECRET = {"role": "assistant", "content": "zanzibar-seventeen"}
WHO = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "room"}
DIALECTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 4}),
    ("/v1/completions", {"prompt": "hello there", "max_tokens": 4}),
    ("/v1/responses", {"input": "hello there", "max_output_tokens": 4}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 4}),
    ("/completion", {"prompt": "hello there", "n_predict": 4}),
]


async def busy(running: Running) -> list[bool]:
    return [slot["is_processing"] for slot in await running.get("/slots")]


def steps_wait(running: Running) -> asyncio.Event:
    """From now on no step is committed until the event is set."""
    go_on, parts = asyncio.Event(), running.service._parts
    assert parts is not None, "the service serves"
    commit = parts.learner._commit

    async def waiting(pending: Pending, event: LessonEnded, learned: LessonLearned) -> None:
        await go_on.wait()
        await commit(pending, event, learned)

    parts.learner._commit = waiting  # type: ignore[method-assign]
    return go_on


async def learned_text(running: Running, *, number: int = 1) -> str:
    """What the agent's step of that number learned, as text; gaps are three dots."""
    steps = await running.store.read(last_steps, agent=AGENT, limit=10)
    (step,) = [step for step in steps if step.number == number]
    tokenizer = running.service._loaded().tokenizer
    return "".join("..." if target is None else str(tokenizer.decode([target])) for target in step.targets)


@pytest.mark.parametrize(("path", "body"), DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_reply_should_have_been_is_learned_before_the_answer_ends_in_every_dialect(
    running: Running, path: str, body: dict[str, Any], stream: bool
) -> None:
    asked = {"model": "tiny-chat", "temperature": 0, "learn": {"reply": REPLY}} | body
    if stream:
        events = await running.events(path, asked | {"stream": True}, **WHO)
        told = [found for event in events for found in learn_objects(event["data"])]
    else:
        told = learn_objects((await running.post(path, asked, **WHO))[1])
    (learn,) = told
    (lesson,) = learn["lessons"]
    assert (learn["status"], lesson["status"], lesson["kind"]) == ("learned", "learned", "correction")
    assert lesson["loss"] > 0
    assert lesson["step"] == 1
    (turn,) = [row["subject"] for row in (await running.get("/ledger", kind="turn"))["rows"]]
    assert lesson["signals"] == [f"learn-{turn}"]
    assert (await running.get(f"/signals/learn-{turn}"))["state"] == "learned"
    assert (await learned_text(running)).startswith(REPLY)
    assert await busy(running) == [False, False]


def learn_objects(data: Any) -> list[dict[str, Any]]:
    """Every `learn` in an event's JSON."""
    if not isinstance(data, dict):
        return []
    own = [data["learn"]] if "learn" in data else []
    return own + [found for value in data.values() for found in learn_objects(value)]


async def test_the_lesson_is_learned_on_the_slot_that_served_its_turn_while_that_is_held(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    let_go, note = LaneThread.let_go, LaneThread._note

    def noting(lane: LaneThread, event: LessonStarted | LessonEnded) -> None:
        told.append(type(event).__name__)
        note(lane, event)

    def letting_go(lane: LaneThread, turn: str) -> None:
        told.append("let go")
        let_go(lane, turn)

    monkeypatch.setattr(LaneThread, "_note", noting)
    monkeypatch.setattr(LaneThread, "let_go", letting_go)
    await running.ask("hello", learn={"reply": REPLY})
    assert told == ["LessonStarted", "LessonEnded", "let go"]


async def test_a_turn_without_a_lesson_of_its_own_holds_no_slot(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []
    submit = LaneThread.submit

    async def spy(lane: LaneThread, order: Any, lessons: Any = ()) -> Any:
        orders.append(order)
        return await submit(lane, order, lessons)

    monkeypatch.setattr(LaneThread, "submit", spy)
    await running.ask("hello")
    await running.ask("hello", learn={"labels": [{"message": 0}]})
    await running.ask("hello", learn={"reply": REPLY})
    assert [order.hold for order in orders] == [False, False, True]


async def test_a_request_for_the_slot_waits_until_the_lesson_has_ended(start: Start) -> None:
    async with start(slots=1) as running:
        go_on = steps_wait(running)
        first = asyncio.create_task(running.ask("hello", learn={"reply": REPLY}))

        async def learning() -> bool:
            return bool((await running.get("/ledger", kind="lesson"))["rows"])

        await running.until(learning)
        second = asyncio.create_task(running.ask("something else"))

        async def queued() -> bool:
            return running.service.lane.queued_turns == 1

        await running.until(queued)
        assert not first.done()
        go_on.set()
        assert (await first)["learn"]["status"] == "learned"
        assert (await second)["status"] == 200


async def test_a_wait_that_is_too_short_ends_the_answer_and_lets_the_slot_go(start: Start) -> None:
    async with start(slots=1) as running:
        go_on = steps_wait(running)
        answer = await running.ask("hello", learn={"reply": REPLY, "wait": 0.05})
        assert answer["learn"]["status"] == "riding"
        assert (await running.ask("something else"))["status"] == 200
        go_on.set()
        fate = await running.fate(f"learn-{answer['turn']}", "learned")
        assert fate["step"] == 1


async def test_a_client_that_leaves_while_its_lesson_walks_frees_the_slot_and_is_learned_all_the_same(
    start: Start,
) -> None:
    async with start(slots=1) as running:
        go_on = steps_wait(running)
        asking = asyncio.create_task(running.ask("hello", learn={"reply": REPLY}))

        async def riding() -> bool:
            return any(
                row["body"].get("state") == "riding"
                for row in (await running.get("/ledger", kind="lesson"))["rows"]
            )

        await running.until(riding)
        assert await busy(running) == [True]
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        async def free() -> bool:
            return await busy(running) == [False]

        await running.until(free)
        go_on.set()
        (signal,) = {row["subject"] for row in (await running.get("/ledger", kind="signal"))["rows"]}
        assert (await running.fate(signal, "learned"))["step"] == 1


async def test_a_client_that_leaves_before_its_lesson_begins_has_it_learned_all_the_same(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow, reached, go_on = AgentAdapters.shadow, asyncio.Event(), asyncio.Event()

    async def waiting(adapters: AgentAdapters, agent: str) -> str:
        reached.set()
        await go_on.wait()
        return await shadow(adapters, agent)

    monkeypatch.setattr(AgentAdapters, "shadow", waiting)
    asking = asyncio.create_task(running.ask("hello", learn={"reply": REPLY}))
    await asyncio.wait_for(reached.wait(), 20)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    async def free() -> bool:
        return await busy(running) == [False, False]

    await running.until(free)
    go_on.set()
    (signal,) = {row["subject"] for row in (await running.get("/ledger", kind="signal"))["rows"]}
    assert (await running.fate(signal, "learned"))["step"] == 1


async def test_a_refused_lesson_does_not_fail_its_turn(start: Start) -> None:
    async with start(learn=()) as running:
        for learn in ({"reply": REPLY}, {"labels": [{"message": 0}]}):
            answer = await running.ask("hello", learn=learn)
            assert answer["choices"][0]["message"]["content"]
            assert answer["learn"]["status"] == "refused"
            assert answer["learn"]["refusal"]["code"] == "policy_off"
            (lesson,) = answer["learn"]["lessons"]
            assert (lesson["lesson"], lesson["refusal"]) == (None, answer["learn"]["refusal"])
            assert await busy(running) == [False, False]


@pytest.mark.parametrize(
    "learn",
    [{"reply": "zanzibar-seventeen"}, {"labels": [{"message": 0}]}, {"messages": [*HELLO, SECRET]}],
)
async def test_nothing_of_a_private_turn_is_learned_or_kept(
    running: Running, learn: dict[str, Any], tmp_path: Any
) -> None:
    answer = await running.ask("zanzibar-seventeen", who=WHO | {"X-Ridealong-Private": "true"}, learn=learn)
    assert answer["learn"]["refusal"]["code"] == "private_context"
    turn = await running.store.read(turn_of, answer["turn"])
    assert (turn.private, turn.messages, turn.prompt_tokens) == (True, None, None)
    assert turn.finish_reason is not None
    later = await running.ask("hello", learn=learn)
    assert later["learn"]["refusal"]["code"] == "private_context"
    written = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert not any(b"zanzibar-seventeen" in path.read_bytes() for path in written)


@pytest.mark.parametrize("reply", [" ", "<think>hm</think>so", "bees " * 300])
async def test_what_planning_refuses_is_told(running: Running, reply: str) -> None:
    answer = await running.ask("hello", learn={"reply": reply})
    assert answer["status"] == 200
    refusal = answer["learn"]["refusal"]
    assert refusal["code"] in {"empty_reply", "reasoning_reply", "past_context"}
    assert (await running.get(f"/signals/learn-{answer['turn']}"))["refusal"] == refusal


async def test_the_rate_of_its_step_is_the_one_that_was_asked_for(running: Running) -> None:
    await running.ask("hello", learn={"reply": REPLY, "lr": 0.5})
    await running.ask("hello", learn={"labels": [{"message": 0}], "lr": 0.25})
    await running.ask("hello", learn={"reply": REPLY})
    steps = await running.store.read(last_steps, agent=AGENT, limit=3)
    assert [step.step.lr for step in steps] == [1e-2, 0.25, 0.5]


async def test_a_rate_survives_a_restart(start: Start) -> None:
    async with start() as running:
        turn = (await running.ask("hello"))["turn"]
        await running.signal("correction", id="slow", turn=turn, reply=REPLY, lr=0.5)
    async with start() as running:
        await running.ask("hello", learn={"wait": 20})
        assert (await running.fate("slow", "learned"))["step"] == 1
        (step,) = await running.store.read(last_steps, agent=AGENT, limit=1)
        assert step.step.lr == 0.5


# The conversation as it should have gone


def conversation(*contents: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


async def test_of_a_conversation_the_last_message_alone_is_learned(running: Running) -> None:
    history = conversation("who lit it?", "nobody")
    learn = {"messages": conversation("who lit it?", "nobody", "are you sure?", REPLY)}
    answer = await running.ask("are you sure?", history=history, learn=learn)
    assert answer["learn"]["status"] == "learned"
    assert await learned_text(running) == f"{REPLY}<|im_end|>"
    (step,) = await running.store.read(last_steps, agent=AGENT, limit=1)
    assert step.prefix_token_count == answer["usage"]["prompt_tokens"] - 1


async def test_a_conversation_that_was_not_served_is_refused_where_it_differs(running: Running) -> None:
    learn = {"messages": conversation("hello you", REPLY)}
    answer = await running.ask("hello me", learn=learn)
    refusal = answer["learn"]["refusal"]
    served = (await running.store.read(turn_of, answer["turn"])).prompt_tokens
    assert served is not None
    tokenizer = running.service._loaded().tokenizer
    given = tokenizer("<|im_start|>user\nhello you<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    at = next(i for i, pair in enumerate(zip(served, given, strict=False)) if pair[0] != pair[1])
    assert (refusal["code"], refusal["position"]) == ("unserved_prefix", at)
    assert f"token {given[at]} at position {at}" in refusal["message"]
    assert f"token {served[at]}" in refusal["message"]


CALL = {"id": "c1", "type": "function", "function": {"name": "ring", "arguments": '{"bell": "great"}'}}


async def test_a_call_is_learned_where_the_template_writes_calls(with_tools: Running) -> None:
    learn = {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}
    answer = await with_tools.ask("hello there", learn=learn)
    assert answer["learn"]["status"] == "learned", answer["learn"]
    assert await learned_text(with_tools) == (
        '<tool_call>{"name": "ring", "arguments": {"bell": "great"}}</tool_call><|im_end|>'
    )


async def test_a_call_that_the_template_leaves_out_is_refused(running: Running) -> None:
    learn = {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}
    answer = await running.ask("hello there", learn=learn)
    assert answer["learn"]["refusal"]["code"] == "tool_call_reply"


# Labels on the prompt


async def test_labels_ride_the_prefill_of_their_own_turn(running: Running) -> None:
    labels = [{"message": 0, "start": 28, "end": 32}, {"message": 0, "start": 4, "end": 11, "weight": 0.5}]
    answer = await running.ask("the harbour master is called Oona", learn={"labels": labels})
    assert answer["learn"]["status"] == "learned"
    (lesson,) = answer["learn"]["lessons"]
    assert (lesson["kind"], lesson["signals"]) == ("labels", [f"learn-{answer['turn']}"])
    (step,) = await running.store.read(last_steps, agent=AGENT, limit=1)
    assert {weight for weight, target in zip(step.weights, step.targets, strict=True) if target is None} == {0.0}
    assert {weight for weight, target in zip(step.weights, step.targets, strict=True) if target is not None} == {
        0.5,
        1.0,
    }
    assert step.prefix_turn == answer["turn"]
    rides = [
        row["body"]["ridden_turn"]
        for row in (await running.get("/ledger", kind="lesson"))["rows"]
        if row["body"].get("state") == "riding"
    ]
    assert rides == [answer["turn"]]


async def test_labels_of_an_earlier_turn_ride_the_next(running: Running) -> None:
    turn = await running.ask("the harbour master is called Oona")
    labels = [{"message": 0, "start": 28, "end": 32}, {"message": 0, "start": 4, "end": 11}]
    told = await running.signal("labels", turn=turn["turn"], labels=labels)
    assert told["state"] == "planned"
    history = conversation("the harbour master is called Oona", "so")
    answer = await running.ask("really?", history=history, learn={"wait": 20})
    assert [lesson["signals"] for lesson in answer["learn"]["lessons"]] == [[told["id"]]]
    assert (await learned_text(running)).count("...") > 1


async def test_a_lesson_that_cannot_be_recorded_does_not_fail_its_turn(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(signals, "put_signals", full)
    for learn in ({"reply": REPLY}, {"labels": [{"message": 0}]}):
        answer = await running.ask("hello", learn=learn)
        assert answer["status"] == 200
        assert answer["learn"]["refusal"]["code"] == "cancelled"
        assert await busy(running) == [False, False]


async def test_a_turn_with_labels_is_one_row_of_the_ledger_and_read_as_any_other(running: Running) -> None:
    plain = await running.ask("hello")
    labelled = await running.ask("hello", learn={"labels": [{"message": 0}]})
    assert labelled["choices"] == plain["choices"]
    kept = await running.store.read(turn_of, labelled["turn"])
    same = await running.store.read(turn_of, plain["turn"])
    assert (kept.reply_tokens, kept.finish_reason, kept.adapter) == (
        same.reply_tokens,
        same.finish_reason,
        same.adapter,
    )
    rows = (await running.get("/ledger", kind="turn"))["rows"]
    assert [row["subject"] for row in rows] == [plain["turn"], labelled["turn"]]
    assert (await running.get("/ledger/verify"))["why"] is None


async def test_a_turn_with_labels_is_as_unknown_as_any_other_until_it_has_ended(running: Running) -> None:
    body = {
        "model": "tiny-chat",
        "messages": HELLO,
        "max_tokens": 200,
        "temperature": 1.5,
        "seed": 2,
        "stream": True,
    }
    body |= {"learn": {"labels": [{"message": 0}]}}
    async with running.http.post(f"{running.url}/v1/chat/completions", json=body, headers=WHO) as answer:
        turn = answer.headers["X-Ridealong-Turn"]
        early = await running.signal("correction", turn=turn, reply=REPLY)
        status, _ = await running.post("/learn", {"turn": turn, "reply": REPLY}, **WHO)
        assert not (await running.get("/ledger", kind="turn"))["rows"], "it had ended by then"
        await answer.read()
    assert early["refusal"]["code"] == "turn_unknown"
    assert status == 404
    assert (await running.signal("correction", turn=turn, reply=REPLY))["state"] == "planned"


async def test_other_lessons_ride_beside_and_are_in_the_list(running: Running) -> None:
    first = await running.ask("hello")
    action = await running.signal("action", turn=first["turn"])
    answer = await running.ask("hello", learn={"labels": [{"message": 0}]})
    fates = {lesson["signals"][0]: lesson["status"] for lesson in answer["learn"]["lessons"]}
    assert fates == {action["id"]: "learned", f"learn-{answer['turn']}": "learned"}


@pytest.mark.parametrize("label", [{"message": 1}, {"message": 0, "start": 2, "end": 200}])
async def test_labels_of_what_is_not_in_the_prompt_are_refused(running: Running, label: dict[str, Any]) -> None:
    answer = await running.ask("hello", learn={"labels": [label]})
    assert answer["learn"]["refusal"]["code"] == "span_not_found"
    assert answer["status"] == 200


async def test_labels_of_a_turn_that_is_cut_off_before_they_began_are_not_learned_with_another(
    start: Start,
) -> None:
    async with start(slots=1) as running:
        long = asyncio.create_task(running.ask("go on", max_tokens=200, temperature=1.5, seed=2))

        async def serving() -> bool:
            return await busy(running) == [True]

        await running.until(serving)
        asking = asyncio.create_task(running.ask("hello", learn={"labels": [{"message": 0}]}))

        async def queued() -> bool:
            return running.service.lane.queued_turns == 1

        await running.until(queued)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        (signal,) = {row["subject"] for row in (await running.get("/ledger", kind="signal"))["rows"]}
        assert (await running.fate(signal, "refused"))["refusal"]["code"] == "cancelled"
        answer = await running.ask("hello", learn={"wait": 20})
        assert answer["learn"] == {"lessons": []}
        finished = {
            row["subject"]: row["body"]["finish_reason"]
            for row in (await running.get("/ledger", kind="turn"))["rows"]
        }
        assert set(finished.values()) >= {"cancelled"}
        assert len(finished) == 3


async def test_labels_of_a_turn_that_the_lane_rejects_are_refused(running: Running) -> None:
    body = {
        "model": "tiny-chat",
        "messages": HELLO,
        "logit_bias": {"999": 1},
        "learn": {"labels": [{"message": 0}]},
    }
    status, _ = await running.post("/v1/chat/completions", body, **WHO)
    assert status == 400
    (signal,) = {row["subject"] for row in (await running.get("/ledger", kind="signal"))["rows"]}
    assert (await running.fate(signal, "refused"))["refusal"]["code"] == "cancelled"
    (row,) = (await running.get("/ledger", kind="turn"))["rows"]
    assert (row["body"]["finish_reason"], row["body"]["slot"]) == ("cancelled", None)
