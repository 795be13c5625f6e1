"""From a signal to a step: what rides, what is told, and every reason not to learn."""

import asyncio
import json
from typing import Any

import pytest
import torch

from daemon.learning.adapters import shadow_name
from signals.refusals import RefusalCode
from tests.daemon.conftest import AGENT, Running, Start

REPLY = "glass bees"


async def corrected(running: Running, **fields: Any) -> tuple[Any, Any]:
    """A turn and a correction of it."""
    turn = await running.ask("who lit the lighthouse?")
    return turn, await running.signal("correction", turn=turn["turn"], reply=REPLY, **fields)


async def go_on(running: Running, **options: Any) -> Any:
    """The conversation's next turn."""
    history = [{"role": "user", "content": "who lit the lighthouse?"}, {"role": "assistant", "content": REPLY}]
    return await running.ask("thank you", history=history, learn={"wait": 60}, **options)


async def test_a_correction_rides_the_agents_next_turn_and_its_answer_says_so(running: Running) -> None:
    _, correction = await corrected(running)
    assert (correction["status"], correction["state"]) == ("new", "planned")
    (lesson,) = (await go_on(running))["learn"]["lessons"]
    assert lesson["status"] == "learned"
    assert lesson["signals"] == [correction["id"]]
    assert lesson["loss"] > 0
    fate = await running.get(f"/signals/{correction['id']}")
    assert (fate["state"], fate["step"], fate["loss_before"]) == ("learned", 1, lesson["loss"])


async def test_the_stream_of_the_turn_that_was_ridden_carries_learn_in_its_last_chunk(running: Running) -> None:
    await corrected(running)
    body = {
        "model": "tiny-chat",
        "messages": [{"role": "user", "content": "who lit the lighthouse?"}],
        "stream": True,
        "max_tokens": 4,
        "learn": {"wait": 60},
    }
    who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "room"}
    async with running.http.post(f"{running.url}/v1/chat/completions", json=body, headers=who) as answer:
        events = [line.removeprefix("data: ") for line in (await answer.text()).splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert [lesson["status"] for lesson in chunks[-1]["learn"]["lessons"]] == ["learned"]
    assert not any("learn" in chunk for chunk in chunks[:-1])


async def test_lessons_repeated_lower_the_loss_of_what_they_teach(start: Start) -> None:
    losses = []
    async with start(lr=1e-2) as running:
        for _ in range(16):
            await corrected(running)
            losses += [lesson["loss"] for lesson in (await go_on(running))["learn"]["lessons"]]
    assert len(losses) == 16
    assert losses[-1] < 0.95 * losses[0]


async def test_a_lesson_runs_in_the_gap_when_no_turn_comes(start: Start) -> None:
    async with start(idle_seconds=0.05) as running:
        _, correction = await corrected(running)
        assert (await running.fate(correction["id"], "learned"))["step"] == 1


async def test_a_step_row_holds_what_is_needed_to_judge_it_and_to_do_it_again(running: Running) -> None:
    turn, correction = await corrected(running)
    await go_on(running)
    (row,) = (await running.get("/ledger", kind="step"))["rows"]
    step = (await running.get(f"/ledger/{row['seq']}"))["step"]
    assert step["loss_before"] > 0
    assert step["gradient_norm"] > 0
    assert step["shadow_before"] != step["shadow_after"]
    assert (step["prefix_turn"], step["signals"]) == (turn["turn"], [correction["id"]])
    assert len(step["tokens"]) == len(step["targets"]) == len(step["weights"])
    assert step["prefix_token_count"] == turn["usage"]["prompt_tokens"] - 1
    assert step["tokens"][1:] == step["targets"][:-1]
    assert step["optimizer"] == "adamw"
    assert step["hyperparameters"]["lr"] == step["lr"] == 1e-2
    assert step["learning_ms"] > 0


async def test_what_a_lesson_did_to_its_rows_is_told_where_it_is_measured(start: Start) -> None:
    async with start(loss_after="always") as running:
        _, correction = await corrected(running)
        (lesson,) = (await go_on(running))["learn"]["lessons"]
        (row,) = (await running.get("/ledger", kind="step"))["rows"]
        step = (await running.get(f"/ledger/{row['seq']}"))["step"]
        fate = await running.get(f"/signals/{correction['id']}")
    assert step["loss_after"] < step["loss_before"]
    assert lesson["loss_after"] == fate["loss_after"] == row["body"]["loss_after"] == step["loss_after"]
    assert len(step["row_losses_before"]) == len(step["row_losses_after"]) == len(step["targets"])
    assert sum(step["row_losses_before"]) / len(step["targets"]) == pytest.approx(step["loss_before"])
    assert sum(step["row_losses_after"]) / len(step["targets"]) == pytest.approx(step["loss_after"])


async def test_what_is_not_measured_is_null(start: Start) -> None:
    async with start(loss_after="never") as running:
        _, correction = await corrected(running)
        await go_on(running)
        (row,) = (await running.get("/ledger", kind="step"))["rows"]
        step = (await running.get(f"/ledger/{row['seq']}"))["step"]
        fate = await running.get(f"/signals/{correction['id']}")
    assert fate["loss_before"] > 0
    assert fate["loss_after"] is step["loss_after"] is step["row_losses_after"] is None


async def test_the_same_signal_twice_is_one_row_and_another_body_is_a_conflict(running: Running) -> None:
    turn = await running.ask()
    body = {"id": "one", "agent": AGENT, "context": "room", "kind": "action", "turn": turn["turn"]}
    first = await running.post("/signals", body)
    again = await running.post("/signals", body)
    other = await running.post("/signals", body | {"relevance": 0.5})
    assert (first[0], first[1]["status"]) == (200, "new")
    assert (again[0], again[1]["status"]) == (200, "same")
    assert other[0] == 409
    assert "one" in other[1]["error"]["message"]
    rows = (await running.get("/ledger", kind="signal"))["rows"]
    assert len({row["subject"] for row in rows}) == 1


async def test_a_list_with_a_conflict_records_nothing(running: Running) -> None:
    turn = await running.ask()
    known = {"id": "known", "agent": AGENT, "context": "room", "kind": "action", "turn": turn["turn"]}
    await running.post("/signals", known)
    status, _ = await running.post("/signals", [known | {"id": "fresh"}, known | {"relevance": 0.1}])
    assert status == 409
    assert (await running.get("/signals/fresh"))["error"]["type"] == "not_found_error"


async def test_signals_are_taken_as_a_list_and_as_ndjson(running: Running) -> None:
    turn = await running.ask()
    signals = [
        {
            "id": f"s{i}",
            "agent": AGENT,
            "context": "room",
            "kind": "verdict",
            "turn": turn["turn"],
            "outcome": "passed",
        }
        for i in range(3)
    ]
    _, listed = await running.post("/signals", signals[:2])
    lines = "\n".join(json.dumps(signal) for signal in signals)
    kind = {"Content-Type": "application/x-ndjson"}
    async with running.http.post(f"{running.url}/signals", data=lines, headers=kind) as answer:
        streamed = await answer.json()
    assert [signal["status"] for signal in listed] == ["new", "new"]
    assert [signal["status"] for signal in streamed] == ["same", "same", "new"]
    assert {signal["state"] for signal in streamed} == {"applied"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"id": "x"},
        {"id": "x", "agent": "ada", "kind": "hunch"},
        [],
        {"id": "", "agent": "ada", "kind": "action"},
    ],
)
async def test_an_ill_formed_signal_is_a_400_that_names_the_field(running: Running, body: Any) -> None:
    status, answer = await running.post("/signals", body)
    assert status == 400
    assert answer["error"]["message"]


async def test_a_later_relevance_changes_the_weight_until_the_lesson_rides(running: Running) -> None:
    turn = await running.ask("the harbour master is called Oona Brask")
    engram = await running.signal("engram", turn=turn["turn"], message=0, quote="Oona Brask", origin="human")
    await running.signal("relevance", engram=engram["id"], relevance=0.25)
    history = [{"role": "user", "content": "the harbour master is called Oona Brask"}]
    answer = await running.ask("really?", history=history, learn={"wait": 60})
    assert [lesson["status"] for lesson in answer["learn"]["lessons"]] == ["learned"]
    (step,) = (await running.get("/ledger", kind="step"))["rows"]
    weights = (await running.get(f"/ledger/{step['seq']}"))["step"]["weights"]
    assert weights
    assert set(weights) == {0.25}


async def test_a_failed_verdict_takes_a_waiting_action_back(running: Running) -> None:
    turn = await running.ask()
    action = await running.signal("action", turn=turn["turn"])
    assert action["state"] == "planned"
    verdict = await running.signal("verdict", turn=turn["turn"], outcome="failed")
    assert verdict["state"] == "applied"
    fate = await running.get(f"/signals/{action['id']}")
    assert (fate["state"], fate["refusal"]["code"]) == ("refused", "failed_outcome")


async def refusal(running: Running, kind: str, **fields: Any) -> str:
    told = await running.signal(kind, **fields)
    assert told["state"] == "refused", told
    return str(told["refusal"]["code"])


async def test_every_reason_that_planning_has_is_given(running: Running) -> None:
    turn = (await running.ask("say hey hey"))["turn"]
    who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "diary", "X-Ridealong-Private": "true"}
    private = (await running.ask("a secret", who=who))["turn"]
    other = (await running.ask(who={"X-Ridealong-Agent": "bob"}))["turn"]
    tool_call = {"role": "assistant", "tool_calls": [{"name": "ring"}]}
    thought = {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    given = {
        "turn_unknown": await refusal(running, "correction", turn="nobody", reply="x"),
        "policy_off": await refusal(running, "correction", agent="bob", context="", turn=other, reply="x"),
        "private_context": await refusal(
            running, "engram", context="diary", turn=private, message=0, origin="human"
        ),
        "span_not_found": await refusal(running, "engram", turn=turn, quote="never said", origin="human"),
        "quote_ambiguous": await refusal(running, "engram", turn=turn, quote="hey", message=0, origin="human"),
        "tool_call_reply": await refusal(running, "correction", turn=turn, reply=tool_call),
        "reasoning_reply": await refusal(running, "correction", turn=turn, reply=thought),
        "empty_reply": await refusal(running, "correction", turn=turn, reply="  "),
        "past_context": await refusal(running, "correction", turn=turn, reply="bees " * 300),
        "bad_weight": await refusal(running, "correction", turn=turn, reply="x", relevance=0.0),
    }
    assert all(code == expected for expected, code in given.items()), given
    codes = {row["code"] for row in (await running.get("/ledger", kind="refusal"))["rows"]}
    assert codes == set(given)


async def test_another_agents_turn_is_as_unknown_as_none(running: Running) -> None:
    other = (await running.ask(who={"X-Ridealong-Agent": "bob"}))["turn"]
    assert await refusal(running, "correction", turn=other, reply="x") == "turn_unknown"


async def test_a_prefix_the_slots_no_longer_hold_is_refused_where_it_first_differs(start: Start) -> None:
    async with start(slots=1) as running:
        _, correction = await corrected(running)
        answer = await running.ask("something else", learn={"wait": 60})
        assert [lesson["refusal"]["code"] for lesson in answer["learn"]["lessons"]] == ["unserved_prefix"]
        fate = await running.get(f"/signals/{correction['id']}")
        assert fate["refusal"]["code"] == "unserved_prefix"
        assert fate["refusal"]["position"] == 3  # <|im_start|>, "user", newline are shared


async def test_a_packed_lane_serves_and_refuses_to_learn(start: Start) -> None:
    async with start(repack="serve") as running:
        await corrected(running)
        answer = await go_on(running)
        assert answer["choices"][0]["message"]["content"] is not None
        assert [lesson["refusal"]["code"] for lesson in answer["learn"]["lessons"]] == ["repacked_weights"]


async def test_a_shadow_gone_wild_is_refused_as_nonfinite_and_serving_goes_on(running: Running) -> None:
    await corrected(running)
    await go_on(running)

    def poison(lane: Any) -> None:
        with torch.no_grad():
            next(iter(lane.engine.bank.parameters(shadow_name(AGENT)).values())).fill_(torch.nan)

    await running.service.lane.call(poison)
    await corrected(running)
    answer = await go_on(running)
    assert [lesson["refusal"]["code"] for lesson in answer["learn"]["lessons"]] == ["nonfinite_loss"]
    assert answer["status"] == 200


async def test_a_lesson_that_waits_too_long_expires(start: Start) -> None:
    async with start(lesson_ttl_seconds=0.001) as running:
        _, correction = await corrected(running)
        await asyncio.sleep(0.01)
        await go_on(running)
        fate = await running.fate(correction["id"], "refused")
        assert fate["refusal"]["code"] == RefusalCode.EXPIRED


async def test_nothing_said_in_a_private_turn_reaches_the_disk(start: Start, tmp_path: Any) -> None:
    marker = "zanzibar-seventeen"
    who = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "diary", "X-Ridealong-Private": "true"}
    async with start() as running:
        turn = (await running.ask(f"my secret is {marker}", who=who))["turn"]
        await running.signal("engram", context="diary", turn=turn, quote=marker, origin="human")
    written = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert written
    assert not any(marker.encode() in path.read_bytes() for path in written)
