"""Chat completions, with the official client and with requests it would never send."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import openai
import pytest

from daemon.dialects.openai_chat import ChatRequest, OpenAIChat
from daemon.serving.turns import Limits
from engine.sampling import Sampling
from store.turns import turn_of
from tests.daemon.conftest import Running, Start
from tests.daemon.scripted import Says

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


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
FUNCTION = {"type": "function", "function": {"name": "weather"}}


def said(content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} | fields]}


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"logit_bias": {"x": 5}}, "logit_bias", "integer"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "100"),
        ({"n": 9}, "n", "8"),
        ({"n": 0}, "n", "1"),
        ({"temperature": -1}, "temperature", "0"),
        ({"presence_penalty": 2.5}, "presence_penalty", "2"),
        ({"frequency_penalty": -3}, "frequency_penalty", "-2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "0"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"messages": []}, "messages", "1 item"),
        ({"stop": ""}, "stop", "1 character"),
        ({"stop": ["x"] * 17}, "stop", "16"),
        (said([IMAGE]), "messages", "image_url is not supported"),
        (said([{"type": "text", "text": "see"}, AUDIO]), "messages", "input_audio is not supported"),
        (said("x" * 2000), "messages", "--ctx"),
        (said("\ud800"), "messages", "surrogate"),
        (said(None), "messages", "content is missing"),
        (said("hi", tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{}"}}]), "messages", "user"),
        (said("hi", role="tool"), "messages", "tool_call_id"),
        (said("hi", function_call={"name": "f"}), "messages.0.function_call", "not supported"),
        ({"tools": [FUNCTION]}, "tools", "no place for tools"),
        ({"tools": [{"type": "web_search"}]}, "tools", "function"),
        ({"tool_choice": "required"}, "tool_choice", "tools has none"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "True"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs", "tokenize"),
        ({"stream_options": {"include_usage": True}}, None, "stream_options goes with stream"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, None, "max_completion_tokens differ"),
        ({"metadata": {"agent": "no spaces"}}, "metadata.agent", "pattern"),
        ({"metadata": {"agent": "bob"}}, "metadata.agent", "bob"),
        ({"store": True}, "store", "False"),
        ({"service_tier": "flex"}, "service_tier", "auto"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "not supported"),
        ({"functions": []}, "functions", "not supported"),
        ({"modalities": ["audio"]}, "modalities", "not supported"),
        ({"audio": {"voice": "x"}}, "audio", "not supported"),
        ({"prediction": {}}, "prediction", "not supported"),
        ({"learn": {"wait": -1}}, "learn.wait", "0"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    running: Running, change: dict[str, Any], param: str | None, says: str
) -> None:
    answer = await running.ask(**change)
    assert answer["status"] == 400
    assert str(answer["error"]["param"]).startswith(str(param))
    assert says in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


async def test_a_token_that_the_model_has_not_cannot_be_biased(running: Running) -> None:
    answer = await running.ask(logit_bias={"100000": 1})
    assert (answer["status"], answer["error"]["type"]) == (400, "invalid_request_error")
    assert "logit_bias names token 100000" in answer["error"]["message"]


async def test_what_clients_send_by_default_is_taken(running: Running) -> None:
    nothing: Any = {"tools": None, "stop": None, "reasoning_effort": None}
    reply: Any = {"content": "hi", "refusal": None, "annotations": [], "audio": None, "function_call": None}
    history: Any = [{"role": "user", "content": "hi"}, {"role": "assistant"} | reply | {"tool_calls": None}]
    given = nothing | {"user": "me", "store": False, "service_tier": "auto", "response_format": {"type": "text"}}
    assert (await running.ask(history=history, **given))["status"] == 200


def test_every_parameter_of_drawing_reaches_the_lane() -> None:
    drawing = {
        "temperature": 0.3,
        "top_p": 0.4,
        "top_k": 5,
        "min_p": 0.06,
        "seed": 7,
        "presence_penalty": 0.8,
        "frequency_penalty": 0.9,
        "repetition_penalty": 1.1,
    }
    body = {"model": "m", "messages": QUESTION, "logprobs": True, "top_logprobs": 12, "n": 2, "stop": "x"}
    request = ChatRequest.model_validate(body | drawing | {"logit_bias": {"13": 14}, "max_tokens": 15})
    asked = OpenAIChat().asked(request)
    first = Sampling(**drawing, logit_bias=((13, 14.0),), logprobs=12)  # type: ignore[arg-type]
    limits = list(asked.limits_of_choices(None))
    assert limits == [Limits(15, ("x",), first), Limits(15, ("x",), replace(first, seed=8))]


async def test_a_bias_decides_what_is_said(running: Running) -> None:
    token = running.service._loaded().tokenizer.convert_tokens_to_ids("the")
    answer = await running.ask(logit_bias={str(token): 100}, max_tokens=3)
    assert answer["choices"][0]["message"]["content"] == "thethethe"


async def test_each_choice_is_a_turn_of_its_own_seed(running: Running) -> None:
    options: Any = {"temperature": 1.0, "max_tokens": 12}
    several = await running.ask(n=3, seed=5, **options)
    alone = [await running.ask(seed=seed, **options) for seed in (5, 6, 7)]
    texts = [choice["message"]["content"] for choice in several["choices"]]
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert texts == [answer["choices"][0]["message"]["content"] for answer in alone]
    assert len(set(texts)) > 1
    turns = several["turn"].split(",")
    kept = [await running.store.read(turn_of, turn) for turn in turns]
    assert [turn.reply_text for turn in kept] == texts
    assert several["id"] == turns[0]
    assert several["usage"]["completion_tokens"] == sum(turn.reply_token_count for turn in kept)
    assert several["usage"]["prompt_tokens"] == kept[0].prompt_token_count


async def test_the_official_client_gets_log_probabilities(running: Running) -> None:
    options: dict[str, Any] = {"model": "tiny-chat", "messages": QUESTION, "temperature": 0, "max_tokens": 9}
    async with running.openai() as client:
        whole = await client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
        stream = await client.chat.completions.create(**options, logprobs=True, top_logprobs=2, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
    told = whole.choices[0].logprobs
    assert told is not None
    assert told.content
    assert "".join(token.token for token in told.content) == whole.choices[0].message.content
    for token in told.content:
        likeliest, second = token.top_logprobs
        assert (likeliest.token, likeliest.logprob) == (token.token, token.logprob)
        assert second.logprob <= token.logprob < 0
    streamed = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content or []]
    assert streamed == told.content


async def test_log_probabilities_of_a_stop_string_are_not_told(running: Running, says: Says) -> None:
    says("the harbour")
    answer = await running.ask(logprobs=True, stop=[" ha"])
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "the"
    assert [token["token"] for token in choice["logprobs"]["content"]] == ["the"]


async def test_a_schema_holds(running: Running) -> None:
    schema = {"name": "answer", "schema": {"enum": ["yes", "no"]}, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    choice = (await running.ask(response_format=wanted, max_tokens=30, temperature=1))["choices"][0]
    assert json.loads(choice["message"]["content"]) in {"yes", "no"}
    assert choice["finish_reason"] == "stop"


async def test_any_json_object_is_an_object(running: Running) -> None:
    brace = running.service._loaded().tokenizer.convert_tokens_to_ids("}")
    options: Any = {"response_format": {"type": "json_object"}, "logit_bias": {str(brace): 100}, "max_tokens": 30}
    choice = (await running.ask(**options))["choices"][0]
    assert json.loads(choice["message"]["content"]) == {}


async def test_a_schema_that_is_none_is_refused_by_name(running: Running) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}
    answer = await running.ask(response_format=wanted)
    assert (answer["status"], answer["error"]["param"]) == (400, "response_format")


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


@pytest.mark.parametrize(("stream", "choices"), [(False, 1), (True, 1), (False, 3), (True, 3)])
async def test_a_client_that_goes_away_frees_its_slots(start: Start, stream: bool, choices: int) -> None:
    async with start(slots=2) as running:
        body = {"model": "tiny-chat", "messages": QUESTION, "stream": stream, "temperature": 1.5, "seed": 1}
        body |= {"max_tokens": 200, "n": choices}
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
