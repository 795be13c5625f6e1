"""Adapters from elsewhere: loaded from the exports, scaled, served to agents without one of their own."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from daemon.learning.stables import lora_lane_name, lora_stable
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.test_adapters import promoted, taught
from tests.daemon.test_learning import corrected, go_on

BOB = {"X-Ridealong-Agent": "bob", "X-Ridealong-Context": "room"}
QUESTION = "who lit the lighthouse?"


def adapter(tiny_chat: Path, directory: Path, **config: Any) -> Path:
    """Write a PEFT adapter that says something else than the base."""
    chosen: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
    base = AutoModelForCausalLM.from_pretrained(tiny_chat, dtype=torch.float32)
    torch.manual_seed(5)
    model = get_peft_model(base, LoraConfig(**(chosen | config), init_lora_weights=False, task_type="CAUSAL_LM"))
    model.save_pretrained(str(directory))
    return directory


@pytest.fixture
def exports(tmp_path: Path, tiny_chat: Path) -> Path:
    """The exports of a data directory, with an adapter `other` in it."""
    adapter(tiny_chat, tmp_path / "data" / "exports" / "other")
    return tmp_path / "data" / "exports"


async def loaded(running: Running, path: str = "other") -> Any:
    status, answer = await running.post("/lora-adapters/load", {"path": path})
    assert status == 200, answer
    return answer


async def scaled(running: Running, *scales: tuple[int, float]) -> None:
    body = [{"id": number, "scale": scale} for number, scale in scales]
    assert await running.post("/lora-adapters", body) == (200, {"success": True})


async def test_a_loaded_adapter_is_served_once_it_has_a_scale_and_no_longer_without(
    exports: Path, running: Running
) -> None:
    before = await running.ask(QUESTION, who=BOB)
    assert await loaded(running) == {"id": 0, "path": "other", "scale": 0.0}
    assert (await running.ask(QUESTION, who=BOB))["adapter"] == "base"
    await scaled(running, (0, 1))
    served = await running.ask(QUESTION, who=BOB)
    assert served["adapter"] == "lora:0:other@1.0"
    assert await running.get("/lora-adapters") == [{"id": 0, "path": "other", "scale": 1.0}]
    await scaled(running)
    after = await running.ask(QUESTION, who=BOB)
    assert after["choices"] == before["choices"] != served["choices"]
    assert after["adapter"] == "base"
    turns = (await running.get("/ledger", kind="turn", newest="true"))["rows"]
    assert [turn["body"]["adapter"] for turn in turns[:2]] == ["base", "lora:0:other@1.0"]


@pytest.mark.parametrize("config", [{"lora_alpha": 4}, {"use_rslora": True}])
async def test_what_is_served_is_what_peft_makes_of_it_times_the_scale(
    exports: Path, running: Running, tiny_chat: Path, config: dict[str, Any]
) -> None:
    directory = adapter(tiny_chat, exports / "mine", **config)
    await loaded(running, "mine")
    await scaled(running, (0, 0.5))
    await running.ask(QUESTION, who=BOB)
    tokens, logits = await running.service.lane.call(
        lambda lane: next(
            (list(slot.tokens), lane.engine.served_logits(slot.index, len(slot.tokens) - 1))
            for slot in lane.engine.slots
            if slot.stable != "base"
        )
    )
    base = AutoModelForCausalLM.from_pretrained(tiny_chat, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(directory))
    with torch.no_grad():
        whole = model(torch.tensor([tokens])).logits[0, -1]
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(0.5)
        half = model(torch.tensor([tokens])).logits[0, -1]
    assert torch.allclose(logits, half, atol=1e-4)  # prefill and decode sum in other orders
    assert not torch.allclose(logits, whole, atol=1e-2)


async def test_an_agent_with_an_adapter_of_her_own_is_served_with_that(exports: Path, running: Running) -> None:
    await taught(running, 1)
    await promoted(running)
    own = await running.ask(QUESTION)
    await loaded(running)
    await scaled(running, (0, 1))
    assert (await running.ask(QUESTION, who=BOB))["adapter"] == "lora:0:other@1.0"
    again = await running.ask(QUESTION)
    assert again["adapter"] == f"{AGENT}@1"
    assert again["choices"] == own["choices"]


async def test_a_promotion_leaves_the_adapter_that_is_used_in_the_lane(exports: Path, running: Running) -> None:
    await loaded(running)
    await scaled(running, (0, 1))
    served = await running.ask(QUESTION, who=BOB)
    await taught(running, 1)
    await promoted(running)
    await running.ask(QUESTION)
    again = await running.ask(QUESTION, who=BOB)
    assert again["adapter"] == "lora:0:other@1.0"
    assert again["choices"] == served["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_rows_of_another_scale_are_not_reused_and_its_set_is_forgotten(
    exports: Path, running: Running
) -> None:
    await loaded(running)
    cached = []
    for scale in (0.5, 0.25, 0.25):
        await scaled(running, (0, scale))
        answer = await running.ask(QUESTION, who=BOB)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[:2] == [0, 0]
    assert cached[2] > 0
    names = await running.service.lane.call(lambda lane: lane.engine.bank.names)
    assert names == {lora_stable(0, "other", 0.25).lane_name}


async def test_one_in_use_is_not_unloaded_and_its_id_does_not_come_again(exports: Path, running: Running) -> None:
    await loaded(running)
    await scaled(running, (0, 1))
    asked = running.ask(QUESTION, who=BOB, max_tokens=150, logit_bias={"1": -100, "2": -100})
    turn = asyncio.create_task(asked)
    await running.until(lambda: _busy(running))
    status, answer = await running.post("/lora-adapters/unload", {"id": 0})
    assert (status, answer["error"]["type"]) == (409, "conflict_error")
    assert [one["scale"] for one in await running.get("/lora-adapters")] == [1.0]
    assert (await turn)["adapter"] == "lora:0:other@1.0"
    assert (await running.post("/lora-adapters/unload", {"id": 0}))[0] == 200
    assert await running.get("/lora-adapters") == []
    assert await running.service.lane.call(lambda lane: lane.engine.bank.names) == frozenset()
    assert (await running.ask(QUESTION, who=BOB))["adapter"] == "base"
    assert [(await loaded(running))["id"] for _ in range(2)] == [1, 2]
    assert (await running.post("/lora-adapters/unload", {"id": 0}))[0] == 404


async def _busy(running: Running) -> bool:
    return any(slot["is_processing"] for slot in await running.get("/slots"))


async def test_a_lesson_about_a_turn_that_was_served_with_one_finds_its_prefix(
    exports: Path, running: Running
) -> None:
    await loaded(running)
    await scaled(running, (0, 1))
    turn, _ = await corrected(running)
    assert turn["adapter"] == "lora:0:other@1.0"
    (lesson,) = (await go_on(running))["learn"]["lessons"]
    assert lesson["status"] == "learned"


async def test_only_one_has_a_scale(exports: Path, running: Running) -> None:
    for _ in range(2):
        await loaded(running)
    await scaled(running, (0, 1))
    for body, status, says in [
        ([{"id": 0, "scale": 1}, {"id": 1, "scale": 0.5}], 400, "one adapter"),
        ([{"id": 0, "scale": 1}, {"id": 0, "scale": 0}], 400, "twice"),
        ([{"id": 2, "scale": 1}], 404, "no adapter 2"),
        ([{"id": 1, "scale": None}], 400, "scale"),
        ({"id": 1, "scale": 1}, 400, "list"),
    ]:
        refused = await running.post("/lora-adapters", body)
        assert refused[0] == status
        assert says in refused[1]["error"]["message"]
    assert [one["scale"] for one in await running.get("/lora-adapters")] == [1.0, 0.0]
    await scaled(running, (0, 0), (1, -0.5))
    assert (await running.ask(QUESTION, who=BOB))["adapter"] == "lora:1:other@-0.5"


@pytest.mark.parametrize(
    "path", ["", "../outside", "/etc", "a/../../outside", "./other", "other/", "missing", "link", "by-link"]
)
async def test_nothing_outside_the_exports_is_loaded(
    exports: Path, running: Running, tiny_chat: Path, path: str
) -> None:
    outside = adapter(tiny_chat, exports.parent / "outside")
    (exports / "link").symlink_to(outside)
    (exports / "by-link").mkdir()
    (exports / "by-link" / "adapter_config.json").write_text((outside / "adapter_config.json").read_text())
    (exports / "by-link" / "adapter_model.safetensors").symlink_to(outside / "adapter_model.safetensors")
    status, answer = await running.post("/lora-adapters/load", {"path": path})
    assert (status, answer["error"]["message"].split(":")[0]) == (400, "path")
    if "link" in path:
        assert "leads out of" in answer["error"]["message"]
    assert await running.get("/lora-adapters") == []


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"r": 4}, "shape (8, 48)"),
        ({"target_modules": ["q_proj"]}, "not at all"),
        ({"use_dora": True}, "use_dora True"),
        ({"bias": "all"}, "bias 'all'"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
    ],
)
async def test_an_adapter_that_does_not_fit_is_refused(
    exports: Path, running: Running, tiny_chat: Path, config: dict[str, Any], says: str
) -> None:
    adapter(tiny_chat, exports / "mine", **config)
    status, answer = await running.post("/lora-adapters/load", {"path": "mine"})
    assert status == 400
    assert says in answer["error"]["message"]
    assert await running.service.lane.call(lambda lane: lane.engine.bank.names) == frozenset()


async def test_a_damaged_adapter_is_refused(exports: Path, running: Running) -> None:
    weights, config = exports / "other" / "adapter_model.safetensors", exports / "other" / "adapter_config.json"
    tensors = load_file(weights)
    save_file({name: value * torch.inf for name, value in tensors.items()}, weights)
    assert "finite" in (await running.post("/lora-adapters/load", {"path": "other"}))[1]["error"]["message"]
    save_file(tensors, weights)
    told = json.loads(config.read_text())
    for broken in ("[]", "{", json.dumps(told | {"r": 0}), json.dumps(told | {"lora_alpha": float("nan")})):
        config.write_text(broken)
        status, answer = await running.post("/lora-adapters/load", {"path": "other"})
        assert (status, "is no PEFT adapter" in answer["error"]["message"]) == (400, True)
    weights.write_bytes(b"\x00" * 9)
    assert (await running.post("/lora-adapters/load", {"path": "other"}))[0] == 400


async def test_a_turn_that_was_served_with_one_that_is_gone_is_no_obstacle(exports: Path, start: Start) -> None:
    async with start() as running:
        await loaded(running)
        await scaled(running, (0, 1))
        _, correction = await corrected(running)
    async with start() as running:
        assert (await running.ask(QUESTION))["adapter"] == "base"
        assert (await running.get(f"/signals/{correction['id']}"))["state"] == "planned"


def test_a_label_tells_the_lanes_name() -> None:
    made = lora_stable(12, "some/where", -0.1)
    assert made.label == "lora:12:some/where@-0.1"
    assert lora_lane_name(made.label) == made.lane_name
    assert made.lane_name != lora_stable(1, "some/where", -0.1).lane_name
    assert "." not in made.lane_name
