"""OpenAI's responses: the official client, what a request comes to, and what is refused by name."""

import asyncio
import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel, ValidationError

from daemon.dialects.asked import Asked, Conversation, JsonReply, ToolReply
from daemon.dialects.openai_responses import OpenAIResponses
from daemon.dialects.openai_responses_request import LOGPROBS, ResponsesRequest
from daemon.http.errors import BadRequest, ServiceError, bad_field
from engine.sampling import Sampling
from store.turns import turn_of
from tests.daemon.conftest import AGENT, Running
from tests.daemon.scripted import Says

PATH = "/v1/responses"
ASK: dict[str, Any] = {"model": "tiny-chat", "input": "hello there"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Vellmar", "Oona"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Vellmar"}}</tool_call>'
FORMAT: dict[str, Any] = {"type": "json_schema", "name": "answer", "schema": SCHEMA}


def asked(change: dict[str, Any], *, template: str = "") -> Asked:
    return OpenAIResponses(template).asked(ResponsesRequest.model_validate(ASK | change))


def rendered(items: list[Any], **change: Any) -> list[dict[str, object]]:
    prompt = asked({"input": items} | change).prompt
    assert isinstance(prompt, Conversation)
    return [message.for_template() for message in prompt.messages]


def refusal(change: dict[str, Any]) -> ServiceError:
    try:
        made = asked(change)
    except ValidationError as error:
        return bad_field(error)
    except BadRequest as error:
        return error
    pytest.fail(f"not refused: {made}")


async def test_the_official_client_gets_the_same_response_streamed_and_not(running: Running, says: Says) -> None:
    says("hello there", "hello there")
    async with running.openai() as client:
        raw = await client.responses.with_raw_response.create(**ASK, store=False)
        async with client.responses.stream(**ASK) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
    whole = raw.parse()
    assert raw.headers["X-Ridealong-Turn"] == whole.id
    assert whole.output_text == final.output_text == "hello there"
    assert (whole.status, whole.store) == ("completed", False)
    assert whole.usage is not None
    assert final.usage is not None
    assert whole.usage.output_tokens == final.usage.output_tokens == 4
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "hello there"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.model_extra is not None
    assert final.model_extra["learn"] == {"lessons": []}


async def test_the_client_without_asyncio_gets_its_events(running: Running, says: Says) -> None:
    says("hello there")

    def ask() -> list[Any]:
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            return list(client.responses.create(**ASK, stream=True))

    events = await asyncio.to_thread(ask)
    assert events[-1].type == "response.completed"
    assert [event for event in events if "learn" in json.dumps(event.to_dict())] == events[-1:]


async def test_the_client_gets_calls_and_tells_their_results(with_tools: Running, says: Says) -> None:
    says(f"I look\n{CALL}", CALL, "it is lit")
    async with with_tools.openai() as client:
        whole = await client.responses.create(**ASK, tools=[WEATHER])
        async with client.responses.stream(**ASK, tools=[WEATHER]) as stream:
            streamed = await stream.get_final_response()
        _, call = whole.output
        assert call.type == "function_call"
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "glass bees"}
        question = {"role": "user", "content": "hello there"}
        going_on: Any = [question, *whole.output, result]
        last = await client.responses.create(model="tiny-chat", input=going_on, tools=[WEATHER])
    arguments = {"city": "Vellmar"}
    assert (call.name, json.loads(call.arguments)) == ("weather", arguments)
    assert [item.arguments for item in streamed.output if item.type == "function_call"] == [call.arguments]
    turn = await with_tools.store.read(turn_of, last.id)
    called = {"id": call.call_id, "type": "function", "function": {"name": "weather", "arguments": arguments}}
    assert turn.messages == [
        question,
        {"role": "assistant", "content": "I look", "tool_calls": [called]},
        {"role": "tool", "content": "glass bees", "tool_call_id": call.call_id},
    ]
    assert last.usage is not None
    assert last.usage.input_tokens == turn.prompt_token_count
    assert last.usage.input_tokens_details.cached_tokens == turn.cached_token_count > 0


async def test_the_client_gets_what_its_type_says(running: Running, says: Says) -> None:
    class Answer(BaseModel):
        lit: bool

    says('{"lit":true}')
    async with running.openai() as client:
        response = await client.responses.parse(**ASK, text_format=Answer)
    assert response.output_parsed == Answer(lit=True)


async def test_a_function_that_must_be_called_is_called(with_tools: Running) -> None:
    choice = {"type": "function", "name": "weather"}
    _, body = await with_tools.post(PATH, ASK | {"tools": [WEATHER], "tool_choice": choice})
    (call,) = body["output"]
    assert call["name"] == "weather"
    assert json.loads(call["arguments"])["city"] in {"Vellmar", "Oona"}
    assert body["tool_choice"] == choice


async def test_a_schema_holds(running: Running) -> None:
    _, body = await running.post(PATH, ASK | {"text": {"format": FORMAT}})
    (told,) = body["output"][0]["content"]
    assert json.loads(told["text"])["city"] in {"Vellmar", "Oona"}
    assert body["text"] == {"format": FORMAT}


async def test_who_speaks_is_said_by_metadata(running: Running) -> None:
    who = {"agent": AGENT, "context": "room"}
    _, body = await running.post(PATH, ASK | {"metadata": who, "max_output_tokens": 3})
    turn = await running.store.read(turn_of, body["id"])
    assert (turn.agent, turn.context) == (AGENT, "room")
    assert body["metadata"] == who


def test_every_parameter_of_drawing_reaches_the_lane() -> None:
    drawing = {"temperature": 0.3, "top_p": 0.4, "include": [LOGPROBS], "top_logprobs": 5}
    made = asked(drawing | {"max_output_tokens": 6, "stream": True})
    assert made.limits.sampling == Sampling(temperature=0.3, top_p=0.4, logprobs=5)
    assert (made.limits.max_tokens, made.limits.stop, made.stream) == (6, (), True)


def test_items_become_messages() -> None:
    reasoning = {
        "type": "reasoning",
        "id": "rs",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    reply = {"type": "output_text", "text": "I look", "annotations": [], "logprobs": []}
    calls = [
        {"type": "function_call", "call_id": name, "name": "f", "arguments": '{"a": 1}', "id": None}
        for name in ("c1", "c2")
    ]
    results = [
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
    ]
    items = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "input_text", "text": "hel"}, {"type": "input_text", "text": "lo"}]},
        reasoning,
        {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [reply]},
        *calls,
        *results,
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    function = {"name": "f", "arguments": {"a": 1}}
    called = [{"id": name, "type": "function", "function": function} for name in ("c1", "c2")]
    assert rendered(items, instructions="be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "I look", "tool_calls": called, "reasoning_content": "hm"},
        {"role": "tool", "content": "one", "tool_call_id": "c1"},
        {"role": "tool", "content": "two", "tool_call_id": "c2"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]


@pytest.mark.parametrize(
    ("effort", "template", "args"),
    [
        ("none", "{% if enable_thinking %}", {"enable_thinking": False}),
        ("high", "{{ reasoning_effort }}", {"reasoning_effort": "high"}),
        (None, "{% if enable_thinking %}", {}),
    ],
)
def test_effort_is_the_templates_argument(effort: str | None, template: str, args: dict[str, Any]) -> None:
    prompt = asked({"reasoning": {"effort": effort}}, template=template).prompt
    assert isinstance(prompt, Conversation)
    assert prompt.template_args == args


@pytest.mark.parametrize(
    ("change", "must_be"),
    [
        ({"tool_choice": "auto", "text": {"format": {"type": "text"}}}, None),
        ({"tool_choice": "none"}, None),
        ({"tool_choice": "required"}, ToolReply()),
        ({"tool_choice": {"type": "function", "name": "weather"}}, ToolReply("weather")),
        ({"text": {"format": {"type": "json_object"}}}, JsonReply(param="text.format")),
        ({"text": {"format": FORMAT}}, JsonReply(SCHEMA, param="text.format")),
        ({"text": {"format": FORMAT | {"strict": False}}}, JsonReply(SCHEMA, strict=False, param="text.format")),
    ],
)
def test_what_a_reply_is_held_to(change: dict[str, Any], must_be: object) -> None:
    made = asked({"tools": [WEATHER]} | change)
    assert isinstance(made.prompt, Conversation)
    assert made.must_be == must_be
    assert len(made.prompt.tools) == (0 if change.get("tool_choice") == "none" else 1)


def test_what_clients_send_by_default_is_taken() -> None:
    nothing = {"previous_response_id": None, "conversation": None, "max_tool_calls": None, "reasoning": None}
    usual = {"store": False, "background": False, "truncation": "disabled", "include": [], "user": "u"}
    assert asked(nothing | usual | {"prompt_cache_key": "k", "safety_identifier": "s"}).must_be is None


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"input": [{"type": kind} | fields]}


def said(*content: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"input": None}, "input", "required"),
        ({"input": []}, "input", "1 item"),
        ({"input": 3}, "input", "list"),
        ({"input": "\ud800"}, "input.0.message.content", "surrogate"),
        (
            said({"type": "input_image", "image_url": "x"}),
            "input.0.message.content",
            "input_image is not supported",
        ),
        (said({"type": "input_file"}), "input.0.message.content", "input_file is not supported"),
        (said({"type": "input_audio"}), "input.0.message.content", "input_audio is not supported"),
        (said({"type": "refusal", "refusal": "x"}), "input.0.message.content", "refusal is not supported"),
        (item("item_reference", id="x"), "input", "item_reference is not supported"),
        (item("web_search_call"), "input", "web_search_call is not supported"),
        (item("computer_call"), "input", "computer_call is not supported"),
        (item("function_call", call_id="c", name="f", arguments="["), "input.0.function_call", "not JSON"),
        (item("function_call", name="f", arguments="{}"), "input.0.function_call.call_id", "required"),
        (item("function_call_output", output="x"), "input.0.function_call_output.call_id", "required"),
        (
            item("function_call_output", call_id="c", output=[{"type": "input_image"}]),
            "input.0.function_call_output.output",
            "input_image is not supported",
        ),
        (
            item("reasoning", summary=[], encrypted_content="x"),
            "input.0.reasoning.encrypted_content",
            "not supported",
        ),
        (
            item("reasoning", summary=[{"type": "summary_text", "text": "x"}]),
            "input.0.reasoning.summary",
            "0 items",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "1"),
        ({"temperature": 2.1}, "temperature", "2"),
        ({"top_p": 0}, "top_p", "0"),
        ({"tools": [{"type": "web_search"}]}, "tools.0", "web_search is not supported"),
        ({"tools": [{"type": "mcp"}]}, "tools.0", "mcp is not supported"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools.0", "custom is not supported"),
        ({"tools": [WEATHER | {"strict": True}]}, "tools.0.strict", "False"),
        ({"tools": [WEATHER | {"defer_loading": True}]}, "tools.0.defer_loading", "not supported"),
        ({"tool_choice": "required"}, "tool_choice", "tools has none"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "'x' is to be called"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "'required'"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "True"),
        (
            {"tools": [WEATHER], "tool_choice": "required", "text": {"format": {"type": "json_object"}}},
            "text.format",
            "must call a tool",
        ),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "json_schema"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.json_schema.name", "required"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "not supported"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "reasoning_effort"),
        ({"reasoning": {"effort": "none"}}, "reasoning.effort", "enable_thinking"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary", "not supported"),
        ({"include": ["reasoning.encrypted_content"]}, "include.0", LOGPROBS),
        ({"top_logprobs": 21, "include": [LOGPROBS]}, "top_logprobs", "20"),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"store": True}, "store", "no response is kept"),
        ({"background": True}, "background", "no response is kept"),
        ({"previous_response_id": "r"}, "previous_response_id", "send the whole conversation as input"),
        ({"conversation": "c"}, "conversation", "send the whole conversation as input"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"service_tier": "flex"}, "service_tier", "auto"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "False"),
        ({"prompt": {"id": "p"}}, "prompt", "not supported"),
        ({"max_tool_calls": 3}, "max_tool_calls", "not supported"),
        ({"context_management": []}, "context_management", "not supported"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention", "not supported"),
        ({"moderation": {}}, "moderation", "not supported"),
        ({"stop": ["x"]}, "stop", "not supported"),
        ({"metadata": {"colour": "red"}}, "metadata.colour", "not supported"),
        ({"learn": {"wait": -1}}, "learn.wait", "0"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], param: str, says: str) -> None:
    error = refusal(change)
    assert (error.param or "").startswith(param)
    assert says in error.message


@pytest.mark.parametrize(
    ("change", "status", "param", "says"),
    [
        ({"previous_response_id": "r"}, 400, "previous_response_id", "no response is kept"),
        ({"tools": [WEATHER]}, 400, "tools", "no place for tools"),
        ({"input": "x" * 2000}, 400, "input", "--ctx"),
        ({"text": {"format": FORMAT | {"schema": {"type": "nothing"}}}}, 400, "text.format", "text.format"),
        ({"model": "gpt-4"}, 404, "model", "tiny-chat"),
    ],
)
async def test_what_is_refused_is_answered_in_openais_shape(
    running: Running, change: dict[str, Any], status: int, param: str, says: str
) -> None:
    told, body = await running.post(PATH, ASK | change)
    assert (told, body["error"]["param"]) == (status, param)
    assert says in body["error"]["message"]
    assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_the_client_raises_what_it_knows(running: Running) -> None:
    async with running.openai() as client:
        with pytest.raises(openai.BadRequestError, match="no response is kept"):
            await client.responses.create(**ASK, previous_response_id="resp_1")
