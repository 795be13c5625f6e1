"""Anthropic's messages: the official client, what a request comes to, and what is refused by name."""

import asyncio
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel, ValidationError

from daemon.dialects.anthropic_messages import AnthropicMessages
from daemon.dialects.anthropic_request import MessagesRequest
from daemon.dialects.asked import Asked, Conversation, JsonReply, ToolReply
from daemon.http.error_answers import error_body
from daemon.http.errors import BadRequest, HttpError, ServiceError, bad_field
from daemon.http.speaker import Metadata
from engine.sampling import Sampling
from store.turns import turn_of
from tests.daemon.conftest import AGENT, Running, Start
from tests.daemon.scripted import Says

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
QUESTION: list[Any] = [{"role": "user", "content": "hello there"}]
ASK: dict[str, Any] = {"model": "tiny-chat", "max_tokens": 100, "messages": QUESTION}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Vellmar", "Oona"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"name": "weather", "description": "how it is", "input_schema": SCHEMA}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Vellmar"}}</tool_call>'
USED: list[Any] = [
    {"role": "user", "content": "hello"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look"},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oona"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "glass bees"}]},
            {"type": "text", "text": "so?"},
        ],
    },
]


def client(running: Running, **headers: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=running.url, api_key="none", max_retries=0, default_headers={"X-Ridealong-Agent": AGENT} | headers
    )


def asked(change: dict[str, Any], *, template: str = "") -> Asked:
    return AnthropicMessages(template).asked(MessagesRequest.model_validate(ASK | change))


def rendered(messages: list[Any], **change: Any) -> list[dict[str, object]]:
    prompt = asked({"messages": messages} | change).prompt
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


async def test_the_official_client_gets_the_same_message_streamed_and_not(running: Running, says: Says) -> None:
    says("hello there", "hello there")
    async with client(running) as own:
        raw = await own.messages.with_raw_response.create(**ASK)
        async with own.messages.stream(**ASK) as stream:
            pieces = [piece async for piece in stream.text_stream]
            final = await stream.get_final_message()
        whole = await raw.parse()
    assert raw.headers["X-Ridealong-Turn"] == whole.id
    assert raw.headers["X-Ridealong-Adapter"] == "base"
    assert [block.text for block in whole.content if block.type == "text"] == ["hello there"]
    assert "".join(pieces) == "hello there"
    assert final.id != whole.id
    assert final.content[0].to_dict() == whole.content[0].to_dict()
    assert (final.stop_reason, final.role, final.model) == (whole.stop_reason, whole.role, whole.model)
    assert final.usage.output_tokens == whole.usage.output_tokens == 4


async def test_the_client_without_asyncio_gets_its_events(running: Running, says: Says) -> None:
    says("hello there")

    def ask() -> list[Any]:
        with anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0) as own:
            return list(own.messages.create(**ASK, stream=True))

    events = await asyncio.to_thread(ask)
    told = [event for event in events if event.type == "message_delta"]
    assert [event.type for event in events][-2:] == ["message_delta", "message_stop"]
    assert [event.model_extra for event in told] == [{"learn": {"lessons": []}}]


async def test_the_client_gets_calls_and_tells_their_results(with_tools: Running, says: Says) -> None:
    says(CALL, CALL, "it is lit")
    async with client(with_tools) as own:
        whole = await own.messages.create(**ASK, tools=[WEATHER])
        async with own.messages.stream(**ASK, tools=[WEATHER]) as stream:
            streamed = await stream.get_final_message()
        (call,) = whole.content
        assert call.type == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "glass bees"}
        going_on: Any = [*QUESTION, whole.to_param(), {"role": "user", "content": [result]}]
        last = await own.messages.create(**ASK | {"messages": going_on}, tools=[WEATHER])
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert (call.name, call.input) == ("weather", {"city": "Vellmar"})
    assert [block.input for block in streamed.content if block.type == "tool_use"] == [call.input]
    turn = await with_tools.store.read(turn_of, last.id)
    assert isinstance(turn.messages, list)
    called = {"id": call.id, "type": "function", "function": {"name": "weather", "arguments": call.input}}
    assert turn.messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "glass bees", "tool_call_id": call.id},
    ]


async def test_the_client_gets_what_its_type_says(running: Running, says: Says) -> None:
    class Answer(BaseModel):
        lit: bool

    says('{"lit":true}')
    async with client(running) as own:
        message = await own.messages.parse(**ASK, output_format=Answer)
    assert message.parsed_output == Answer(lit=True)


async def test_a_tool_that_must_be_called_is_called(with_tools: Running) -> None:
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    _, body = await with_tools.post(PATH, ASK | {"tools": [WEATHER], "tool_choice": choice})
    (call,) = body["content"]
    assert call["name"] == "weather"
    assert call["input"]["city"] in {"Vellmar", "Oona"}


COUNTED: list[dict[str, Any]] = [
    {},
    {"system": "be brief", "metadata": {"user_id": "u"}},
    {"system": [{"type": "text", "text": "be brief"}, {"type": "text", "text": "be kind"}]},
    {"messages": USED, "tools": [WEATHER]},
    {"tools": [WEATHER], "tool_choice": {"type": "none"}},
    {"tools": [WEATHER], "tool_choice": {"type": "any"}},
]


@pytest.mark.parametrize("change", COUNTED)
async def test_the_count_is_what_a_turn_then_uses(with_tools: Running, change: dict[str, Any]) -> None:
    counted = {key: value for key, value in change.items() if key != "metadata"}
    options: Any = {"model": "tiny-chat", "messages": QUESTION} | counted
    async with client(with_tools) as own:
        count = await own.messages.count_tokens(**options)
        message = await own.messages.create(**ASK | change)
    turn = await with_tools.store.read(turn_of, message.id)
    assert count.input_tokens == message.usage.input_tokens == turn.prompt_token_count


async def test_what_only_a_turn_needs_is_not_counted(running: Running) -> None:
    status, body = await running.post(COUNT, ASK)
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert "max_tokens: this parameter is not supported" in body["error"]["message"]


async def test_who_speaks_is_said_by_metadata(running: Running) -> None:
    who = {"user_id": "u1", "agent": AGENT, "context": "room"}
    _, body = await running.post(PATH, ASK | {"metadata": who})
    turn = await running.store.read(turn_of, body["id"])
    assert (turn.agent, turn.context, turn.private) == (AGENT, "room", False)


async def test_anthropics_headers_are_taken(running: Running) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "anything-2030-01-01", "x-api-key": "none"}
    assert (await running.post(PATH, ASK, **headers))[0] == 200


def test_every_parameter_of_drawing_reaches_the_lane() -> None:
    drawing: dict[str, Any] = {"temperature": 0.3, "top_p": 0.4, "top_k": 5, "stream": True}
    made = asked(drawing | {"stop_sequences": ["x", "y"], "metadata": {"user_id": "u", "private": True}})
    assert made.limits.sampling == Sampling(temperature=0.3, top_p=0.4, top_k=5)
    assert (made.limits.max_tokens, made.limits.stop, made.stream) == (100, ("x", "y"), True)
    assert made.metadata == Metadata(private=True)


def test_blocks_become_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oona"}}}
    assert rendered(USED, system=[{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]) == [
        {"role": "system", "content": "be\nbrief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "I look", "tool_calls": [call]},
        {"role": "tool", "content": "glass bees", "tool_call_id": "c1"},
        {"role": "user", "content": "so?"},
    ]


def test_messages_of_one_role_in_a_row_are_one() -> None:
    said = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]
    assert rendered(said) == [{"role": "user", "content": "a\nb"}]


def test_a_result_that_is_an_error_says_so() -> None:
    result = {"type": "tool_result", "tool_use_id": "c", "content": "no such city", "is_error": True}
    assert rendered([{"role": "user", "content": [result]}]) == [
        {"role": "tool", "content": "Error: no such city", "tool_call_id": "c"}
    ]


def test_what_was_thought_goes_to_the_template() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    reply = {"role": "assistant", "content": [thought, {"type": "text", "text": "hi"}]}
    assert rendered([QUESTION[0], reply, QUESTION[0]])[1] == {
        "role": "assistant",
        "content": "hi",
        "reasoning_content": "hm",
    }


@pytest.mark.parametrize(
    ("thinking", "template", "args"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, "{% if enable_thinking %}", {"enable_thinking": True}),
        ({"type": "disabled"}, "{% if enable_thinking %}", {"enable_thinking": False}),
        ({"type": "adaptive"}, "{% if enable_thinking %}", {}),
        ({"type": "disabled"}, "", {}),
        ({"type": "adaptive"}, "", {}),
    ],
)
def test_thinking_is_the_templates_argument(thinking: Any, template: str, args: dict[str, Any]) -> None:
    prompt = asked({"thinking": thinking}, template=template).prompt
    assert isinstance(prompt, Conversation)
    assert prompt.template_args == args


@pytest.mark.parametrize(
    ("change", "must_be"),
    [
        ({"tool_choice": {"type": "auto"}}, None),
        ({"tool_choice": {"type": "none"}}, None),
        ({"tool_choice": {"type": "any"}}, ToolReply()),
        ({"tool_choice": {"type": "tool", "name": "weather"}}, ToolReply("weather")),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            JsonReply(SCHEMA, param="output_config.format"),
        ),
    ],
)
def test_what_a_reply_is_held_to(change: dict[str, Any], must_be: object) -> None:
    made = asked({"tools": [WEATHER]} | change)
    assert isinstance(made.prompt, Conversation)
    assert made.must_be == must_be
    assert len(made.prompt.tools) == (0 if change.get("tool_choice") == {"type": "none"} else 1)


def test_what_clients_send_by_default_is_taken() -> None:
    cached = {"type": "ephemeral"}
    block = {"type": "text", "text": "hi", "cache_control": cached | {"ttl": "1h"}, "citations": None}
    said = [{"role": "user", "content": [block]}, {"role": "assistant", "content": []}, QUESTION[0]]
    tool = WEATHER | {"type": "custom", "cache_control": cached, "strict": False}
    least: dict[str, Any] = {"messages": said, "tools": [tool], "system": [block]}
    nothing = {"container": None, "speed": None, "cache_control": cached, "service_tier": "standard_only"}
    assert asked(least | nothing).must_be is None


def said(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(content)}]}


TOOL_USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"max_tokens": None}, "max_tokens", "required"),
        ({"max_tokens": 0}, "max_tokens", "1"),
        ({"messages": []}, "messages", "1 item"),
        (said({"type": "image", "source": {}}), "messages.0.content", "image is not supported"),
        (said({"type": "document", "source": {}}), "messages.0.content", "document is not supported"),
        (said({"type": "search_result"}), "messages.0.content", "search_result is not supported"),
        (said({"type": "redacted_thinking", "data": "x"}), "messages.0.content", "redacted_thinking is not"),
        (said({"type": "server_tool_use"}), "messages.0.content", "server_tool_use is not supported"),
        (
            said({"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}),
            "messages.0.content.0.tool_result.content",
            "image is not supported",
        ),
        (said(TOOL_USE), "messages.0", "tool_use is not for the role user"),
        (said({"type": "thinking", "thinking": "x"}), "messages.0", "thinking is not for the role user"),
        (said("hi"), "messages.0.content.0", "dictionary"),
        (said({"type": "text", "text": "\ud800"}), "messages.0.content.0.text", "surrogate"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'user', 'assistant'"),
        ({"messages": [*QUESTION, {"role": "assistant", "content": "I"}]}, "messages", "prefill"),
        ({"system": [{"type": "image"}]}, "system", "image is not supported"),
        ({"stop_sequences": [""]}, "stop_sequences.0", "1 character"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences", "16"),
        ({"temperature": 1.1}, "temperature", "1"),
        ({"top_p": 0}, "top_p", "0"),
        ({"top_k": -1}, "top_k", "0"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking", "enable_thinking"),
        ({"thinking": {"type": "enabled"}}, "thinking.enabled.budget_tokens", "required"),
        ({"thinking": {"type": "between_tools"}}, "thinking", "'enabled', 'disabled', 'adaptive'"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.adaptive.display", "not supported"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools.0", "web_search_20250305 is not"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema", "required"),
        ({"tools": [WEATHER | {"strict": True}]}, "tools.0.strict", "False"),
        ({"tools": [WEATHER | {"defer_loading": True}]}, "tools.0.defer_loading", "not supported"),
        ({"tools": [WEATHER | {"name": "no spaces"}]}, "tools.0.name", "pattern"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "tools has none"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice", "'x' is to be called"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            "tool_choice.auto.disable_parallel_tool_use",
            "False",
        ),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "any"},
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            },
            "output_config.format",
            "must call a tool",
        ),
        ({"output_config": {"effort": "high"}}, "output_config.effort", "not supported"),
        ({"metadata": {"colour": "red"}}, "metadata.colour", "not supported"),
        ({"metadata": {"agent": "no spaces"}}, "metadata.agent", "pattern"),
        ({"service_tier": "priority"}, "service_tier", "auto"),
        ({"container": "c"}, "container", "not supported"),
        ({"mcp_servers": []}, "mcp_servers", "not supported"),
        ({"context_management": {}}, "context_management", "not supported"),
        ({"inference_geo": "eu"}, "inference_geo", "not supported"),
        ({"speed": "fast"}, "speed", "not supported"),
        ({"diagnostics": {}}, "diagnostics", "not supported"),
        ({"learn": {"wait": -1}}, "learn.wait", "0"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], param: str, says: str) -> None:
    error = refusal(change)
    assert (error.param or "").startswith(param)
    assert says in error.message


@pytest.mark.parametrize("path", [PATH, COUNT])
async def test_what_is_refused_is_answered_in_anthropics_shape(running: Running, path: str) -> None:
    refused: list[tuple[dict[str, Any], int, str, str]] = [
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"tools": [WEATHER]}, 400, "invalid_request_error", "no place for tools"),
        ({"messages": USED}, 400, "invalid_request_error", "leaves tool_calls out"),
        ({"model": "claude"}, 404, "not_found_error", "tiny-chat"),
    ]
    least = ASK if path == PATH else {"model": "tiny-chat", "messages": QUESTION}
    for change, status, kind, says in refused:
        told, body = await running.post(path, least | change)
        assert (told, body["type"], body["error"]["type"]) == (status, "error", kind)
        assert says in body["error"]["message"]
        assert set(body) == {"type", "error", "request_id"}


async def test_a_prompt_that_does_not_fit_is_refused(running: Running) -> None:
    status, body = await running.post(PATH, ASK | {"system": "x" * 2000})
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert "--ctx" in body["error"]["message"]


async def test_the_client_raises_what_it_knows(running: Running) -> None:
    async with client(running) as own:
        with pytest.raises(anthropic.NotFoundError, match="tiny-chat") as missing:
            await own.messages.create(**ASK | {"model": "claude"})
        with pytest.raises(anthropic.BadRequestError) as bad:
            await own.messages.create(**ASK | {"max_tokens": 0})
    assert (missing.value.type, bad.value.type) == ("not_found_error", "invalid_request_error")


async def test_a_body_that_is_too_large_is_a_413(start: Start) -> None:
    async with start(max_body_mib=0.001) as running:
        status, body = await running.post(PATH, ASK | {"system": "x" * 2000})
    assert (status, body["error"]["type"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_every_status_has_anthropics_type(status: int, kind: str) -> None:
    assert error_body(HttpError(status, "no"), PATH)["error"] == {"type": kind, "message": "no"}
