"""Legacy completions: a prompt as it stands, with the official client, and what becomes of signals about it."""

import asyncio
from typing import Any

import openai
import pytest

from store.turns import turn_of
from tests.daemon.conftest import Running
from tests.daemon.scripted import Says

PATH = "/v1/completions"
RAW: dict[str, Any] = {"model": "tiny-chat", "prompt": "hello there", "temperature": 0}
WHO = {"X-Ridealong-Agent": "ada", "X-Ridealong-Context": "room"}


async def test_the_official_client_gets_the_same_streamed_and_not(running: Running) -> None:
    async with running.openai() as client:
        whole = await client.completions.create(**RAW, logprobs=3)
        stream = await client.completions.create(
            **RAW, logprobs=3, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.text for choice in choices) == whole.choices[0].text
    assert choices[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens <= 16
    told = whole.choices[0].logprobs
    assert told is not None
    streamed = [choice.logprobs for choice in choices if choice.logprobs]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for logprobs in streamed for entry in getattr(logprobs, field)] == getattr(told, field)
    assert [chunk for chunk in chunks if "learn" in (chunk.model_extra or {})] == chunks[-1:]


async def test_the_client_without_asyncio_completes_and_chats(running: Running, says: Says) -> None:
    says(*["lit by glass bees"] * 4)
    chat: dict[str, Any] = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}]}

    def ask() -> list[str | None]:
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            texts = [client.completions.create(**RAW).choices[0].text]
            texts.append(client.chat.completions.create(**chat).choices[0].message.content)
            told = [piece.choices[0].text for piece in client.completions.create(**RAW, stream=True)]
            said = [
                piece.choices[0].delta.content for piece in client.chat.completions.create(**chat, stream=True)
            ]
            assert min(len(told), len(said)) > 2, "they came in one piece"
            return [*texts, "".join(told), "".join(piece or "" for piece in said)]

    assert await asyncio.to_thread(ask) == ["lit by glass bees"] * 4


async def test_text_and_its_tokens_are_the_same_prompt(running: Running) -> None:
    tokens = running.service._loaded().tokenizer.encode("hello there")
    bodies = [
        (await running.post(PATH, RAW | {"prompt": prompt}))[1]
        for prompt in ("hello there", tokens, ["hello there"], [tokens])
    ]
    assert len({body["choices"][0]["text"] for body in bodies}) == 1
    assert {body["usage"]["prompt_tokens"] for body in bodies} == {len(tokens)}


async def test_choices_are_turns(running: Running) -> None:
    async with running.openai() as client:
        raw = await client.completions.with_raw_response.create(**RAW | {"temperature": 1}, n=2, seed=4)
    turns = raw.headers["X-Ridealong-Turn"].split(",")
    texts = [choice.text for choice in raw.parse().choices]
    assert [(await running.store.read(turn_of, turn)).reply_text for turn in turns] == texts


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"prompt": ["a", "b"]}, "prompt", "2 prompts are not supported"),
        ({"prompt": ""}, "prompt", "prompt is 0 tokens"),
        ({"prompt": []}, "prompt", "prompt is 0 tokens"),
        ({"prompt": [330]}, "prompt", "no token 330"),
        ({"prompt": [-1]}, "prompt.tokens.0", "equal to 0"),
        ({"prompt": "x" * 2000}, "prompt", "--ctx"),
        ({"prompt": "\ud800"}, "prompt.text", "surrogate"),
        ({"prompt": None}, "prompt", "required"),
        ({"max_tokens": 0}, "max_tokens", "1"),
        ({"logprobs": 6}, "logprobs", "5"),
        ({"echo": True}, "echo", "False"),
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"messages": []}, "messages", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"n": 9}, "n", "8"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    running: Running, change: dict[str, Any], param: str, says: str
) -> None:
    status, body = await running.post(PATH, RAW | change)
    assert status == 400
    assert body["error"]["param"].startswith(param)
    assert says in body["error"]["message"]


async def test_a_turn_without_messages_is_learned_from_like_any_other(running: Running, says: Says) -> None:
    says("the harbour")
    async with running.http.post(running.url + PATH, json=RAW, headers=WHO) as answer:
        turn = answer.headers["X-Ridealong-Turn"]
    assert (await running.store.read(turn_of, turn)).messages == []
    action = await running.signal("action", turn=turn)
    correction = await running.signal("correction", turn=turn, reply="the lighthouse")
    of_reply = await running.signal("engram", turn=turn, origin="self", quote="harbour")
    async with running.http.post(running.url + PATH, json=RAW | {"learn": {"wait": 20}}, headers=WHO) as answer:
        lessons = (await answer.json())["learn"]["lessons"]
    assert {(lesson["kind"], lesson["status"]) for lesson in lessons} == {
        ("action", "learned"),
        ("engram", "learned"),
        ("correction", "learned"),
    }
    for signal in (action, correction, of_reply):
        assert (await running.fate(signal["id"], "learned"))["refusal"] is None


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("engram", {"origin": "human", "quote": "hello there"}, "span_not_found"),
        ("engram", {"origin": "human", "message": 1}, "span_not_found"),
    ],
)
async def test_a_prompt_without_messages_has_nothing_to_point_at(
    running: Running, kind: str, fields: dict[str, Any], code: str
) -> None:
    async with running.http.post(running.url + PATH, json=RAW, headers=WHO) as answer:
        turn = answer.headers["X-Ridealong-Turn"]
    refused = await running.signal(kind, turn=turn, **fields)
    assert refused["refusal"]["code"] == code
