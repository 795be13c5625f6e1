"""Promotion, rollback and export: what was learned takes effect, is taken back, and goes elsewhere."""

import asyncio
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from daemon.learning.adapters import shadow_name
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_learning import corrected, go_on


async def taught(running: Running, lessons: int = 3) -> None:
    for _ in range(lessons):
        await corrected(running)
        answer = await go_on(running)
        assert [lesson["status"] for lesson in answer["learn"]["lessons"]] == ["learned"]


async def promoted(running: Running) -> None:
    status, answer = await running.post(f"/adapters/{AGENT}/promote", {})
    assert status == 200, answer


async def test_a_promotion_serves_the_shadow_from_the_next_turn_on(running: Running) -> None:
    before = await running.ask("who lit the lighthouse?")
    await taught(running, 8)
    await promoted(running)
    after = await running.ask("who lit the lighthouse?")
    assert (before["adapter"], after["adapter"]) == ("base", f"{AGENT}@1")
    assert before["choices"][0]["message"]["content"] != after["choices"][0]["message"]["content"]
    turns = (await running.get("/ledger", kind="turn", newest="true"))["rows"]
    assert turns[0]["body"]["adapter"] == f"{AGENT}@1"


async def test_a_promotion_does_not_reuse_rows_that_were_served_with_another_set(running: Running) -> None:
    await taught(running)
    await promoted(running)
    first = await running.ask("who lit the lighthouse?")
    again = await running.ask("who lit the lighthouse?")
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_another_agent_is_served_as_before(running: Running) -> None:
    who = {"X-Ridealong-Agent": "bob"}
    before = await running.ask("who lit the lighthouse?", who=who)
    await taught(running)
    await promoted(running)
    after = await running.ask("who lit the lighthouse?", who=who)
    assert after["adapter"] == "base"
    assert after["choices"] == before["choices"]


async def test_a_rollback_serves_the_version_again_and_moves_the_shadow_back(running: Running) -> None:
    await taught(running)
    await promoted(running)
    (own,) = await running.get("/adapters")
    first = own["shadow"]["sha"]
    served = await running.ask("who lit the lighthouse?")
    await taught(running)
    await promoted(running)
    status, own = await running.post(f"/adapters/{AGENT}/rollback", {"version": 1})
    assert status == 200
    assert own["shadow"]["sha"] == first
    again = await running.ask("who lit the lighthouse?")
    assert again["adapter"] == f"{AGENT}@1"
    assert again["choices"] == served["choices"]
    sha = await running.service.lane.call(lambda lane: lane.engine.shadows[shadow_name(AGENT)].sha256())
    assert sha == first


async def test_a_rollback_to_the_base_serves_the_base_and_learning_begins_anew(running: Running) -> None:
    before = await running.ask("who lit the lighthouse?")
    await taught(running)
    await promoted(running)
    await running.post(f"/adapters/{AGENT}/rollback", {"version": 0})
    after = await running.ask("who lit the lighthouse?")
    assert after["adapter"] == "base"
    assert after["choices"] == before["choices"]
    await taught(running, 1)


async def test_promoting_nothing_new_and_versions_that_are_not_there_are_refused(running: Running) -> None:
    assert (await running.post("/adapters/nobody/promote", {}))[0] == 404
    await taught(running, 1)
    await promoted(running)
    assert (await running.post(f"/adapters/{AGENT}/promote", {}))[0] == 409
    assert (await running.post(f"/adapters/{AGENT}/rollback", {"version": 7}))[0] == 404


async def test_what_was_promoted_is_served_after_a_restart(start: Start) -> None:
    async with start() as running:
        await taught(running)
        await promoted(running)
        served = await running.ask("who lit the lighthouse?")
    async with start() as running:
        again = await running.ask("who lit the lighthouse?")
        assert again["adapter"] == f"{AGENT}@1"
        assert again["choices"] == served["choices"]
        await taught(running, 1)


async def test_an_export_loads_in_peft_and_gives_the_logits_that_were_served(
    start: Start, tiny_chat: Path
) -> None:
    async with start() as running:
        await taught(running)
        await promoted(running)
        status, exported = await running.post(f"/adapters/{AGENT}/export", {"directory": "mine", "version": 1})
        assert status == 200, exported
        await running.ask("who lit the lighthouse?")
        tokens, logits = await running.service.lane.call(
            lambda lane: next(
                (list(slot.tokens), lane.engine.served_logits(slot.index, len(slot.tokens) - 1))
                for slot in lane.engine.slots
                if slot.stable != "base"
            )
        )
    base = AutoModelForCausalLM.from_pretrained(tiny_chat, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, exported["directory"])
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0, -1]
        plain = model.get_base_model()
        with model.disable_adapter():
            unlearned = plain(torch.tensor([tokens])).logits[0, -1]
    assert torch.allclose(logits, expected, atol=1e-4)  # prefill and decode sum in other orders
    assert not torch.allclose(logits, unlearned, atol=1e-2)


async def test_an_export_cannot_leave_the_exports_directory(running: Running) -> None:
    await taught(running, 1)
    status, answer = await running.post(f"/adapters/{AGENT}/export", {"directory": "../../elsewhere"})
    assert status == 400
    assert answer["error"]["param"] == "directory"


async def test_a_rollback_ends_the_lessons_on_their_way_and_says_why(start: Start) -> None:
    async with start(duty=0.001) as running:
        await taught(running, 1)
        _, correction = await corrected(running)
        history = [{"role": "user", "content": "who lit the lighthouse?"}]
        turn = asyncio.create_task(running.ask("go on", history=history, max_tokens=150, temperature=1.9, seed=3))
        await running.fate(correction["id"], "riding")
        status, _ = await running.post(f"/adapters/{AGENT}/rollback", {"version": 0})
        assert status == 200
        fate = await running.fate(correction["id"], "refused", "learned")
        assert (fate["state"], fate["refusal"]["code"]) == ("refused", "pending_rollback")
        assert (await turn)["status"] == 200
