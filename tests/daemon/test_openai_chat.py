"""Chat completions, with the official client and with requests it would never send."""

import asyncio
from typing import Any

import aiohttp
import openai
import pytest

from tests.daemon.conftest import Running, Start

QUESTION: list[Any] = [{"role": "user", "content": "hello there"}]


async def test_the_official_client_gets_a_completion_with_turn_and_adapter(running: Running) -> None:
    async with running.openai() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="tiny-chat", messages=QUESTION, temperature=0, max_tokens=7
        )
    answer = raw.parse()
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert raw.headers["X-Ridealong-Turn"] == answer.id
    assert raw.headers["X-Ridealong-Adapter"] == "base"


async def test_a_stream_gives_the_same_reply_as_the_whole_answer(running: Running) -> None:
    options: dict[str, Any] = {"model": "tiny-chat", "messages": QUESTION, "temperature": 0, "max_tokens": 40}
    async with running.openai() as client:
        whole = await client.chat.completions.create(**options)
        stream = await client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] is not None
    assert chunks[-1].usage is not None
    assert [chunk for chunk in chunks if "learn" in (chunk.model_extra or {})] == chunks[-1:]


async def test_a_seed_makes_a_sampled_reply_the_same_again(running: Running) -> None:
    replies = [
        (await running.ask("hello", temperature=1.0, top_p=0.95, top_k=40, min_p=0.01, seed=seed, max_tokens=30))
        for seed in (5, 5, 6)
    ]
    texts = [reply["choices"][0]["message"]["content"] for reply in replies]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


async def test_a_stop_string_ends_the_reply_and_is_not_part_of_it(running: Running) -> None:
    whole = (await running.ask(max_tokens=40))["choices"][0]["message"]["content"]
    stop = whole[5:7]
    stopped = (await running.ask(max_tokens=40, stop=[stop]))["choices"][0]
    assert stopped["message"]["content"] == whole[: whole.index(stop)]
    assert stopped["finish_reason"] == "stop"


async def test_max_completion_tokens_is_the_limit(running: Running) -> None:
    answer = await running.ask(max_tokens=None, max_completion_tokens=3)
    assert answer["usage"]["completion_tokens"] <= 3


async def test_going_on_reuses_what_the_slot_holds(running: Running) -> None:
    first = await running.ask("hello")
    reply = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    history = [{"role": "user", "content": "hello"}, reply]
    second = await running.ask("and then?", history=history)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]


async def test_turns_at_once_get_their_own_replies(running: Running) -> None:
    texts = [f"question {number}" for number in range(6)]
    alone = [(await running.ask(text))["choices"][0]["message"]["content"] for text in texts]
    together = await asyncio.gather(*(running.ask(text) for text in texts))
    assert [answer["choices"][0]["message"]["content"] for answer in together] == alone


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"n": 2}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"stop": ""}, "stop"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages",
        ),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "messages"),
        ({"metadata": {"agent": "no spaces"}}, "metadata.agent"),
        ({"metadata": {"agent": "bob"}}, "metadata.agent"),
        ({"learn": {"wait": -1}}, "learn.wait"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    running: Running, change: dict[str, Any], param: str
) -> None:
    answer = await running.ask(**change)
    assert answer["status"] == 400
    assert str(answer["error"]["param"]).startswith(param)
    assert set(answer["error"]) == {"message", "type", "param", "code"}


async def test_an_unknown_model_is_a_404_that_names_the_one_served(running: Running) -> None:
    async with running.openai() as client:
        with pytest.raises(openai.NotFoundError, match="tiny-chat"):
            await client.chat.completions.create(model="gpt-4", messages=QUESTION)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": 1}', b"[" * 100_000])
async def test_a_body_that_is_no_request_is_a_400_and_the_next_one_is_served(
    running: Running, body: bytes
) -> None:
    async with running.http.post(f"{running.url}/v1/chat/completions", data=body) as answer:
        assert answer.status == 400
        assert "error" in await answer.json()
    assert (await running.ask())["status"] == 200


async def test_an_unknown_path_answers_in_the_one_error_shape(running: Running) -> None:
    async with running.http.get(f"{running.url}/v1/nothing") as answer:
        assert answer.status == 404
        assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_frees_its_slot(start: Start, stream: bool) -> None:
    async with start(slots=1) as running:
        body = {"model": "tiny-chat", "messages": QUESTION, "stream": stream, "temperature": 1.5, "seed": 1}
        body |= {"max_tokens": 200}
        async with aiohttp.ClientSession() as leaving:
            request = asyncio.create_task(_read_some(leaving, f"{running.url}/v1/chat/completions", body))
            await running.until(lambda: _processing(running))
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

        async def free() -> bool:
            return not await _processing(running)

        await running.until(free)
        assert (await running.ask())["status"] == 200


async def _read_some(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    async with http.post(url, json=body) as answer:
        await answer.read()


async def _processing(running: Running) -> bool:
    return any(slot["is_processing"] for slot in await running.get("/slots"))


async def test_models_health_and_slots_answer(running: Running) -> None:
    assert [model["id"] for model in (await running.get("/v1/models"))["data"]] == ["tiny-chat"]
    assert await running.get("/health") == {"status": "ok"}
    assert [slot["id"] for slot in await running.get("/slots")] == [0, 1]
