"""Tools through chat completions: what the model is told of them, what it calls, what it hears back."""

import json
from typing import Any

import pytest

from store.turns import turn_of
from tests.daemon.conftest import AGENT, Running
from tests.daemon.scripted import Says

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Vellmar", "Oona"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
TIME: Any = {"type": "function", "function": {"name": "time", "description": "what time it is"}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Vellmar"}}</tool_call>'
QUESTION: list[Any] = [{"role": "user", "content": "hello"}]
HISTORY: list[Any] = [
    {"role": "user", "content": "hello"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oona"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "glass bees"},
]


async def test_the_official_client_gets_the_call_streamed_and_not(with_tools: Running, says: Says) -> None:
    says(CALL, CALL)
    async with with_tools.openai() as client:
        whole = await client.chat.completions.create(model="tiny-chat", messages=QUESTION, tools=[WEATHER, TIME])
        stream = await client.chat.completions.create(
            model="tiny-chat", messages=QUESTION, tools=[WEATHER, TIME], stream=True
        )
        chunks = [chunk.choices[0] async for chunk in stream]
    assert whole.choices[0].finish_reason == chunks[-1].finish_reason == "tool_calls"
    assert whole.choices[0].message.content is None
    assert whole.choices[0].message.tool_calls is not None
    (call,) = whole.choices[0].message.tool_calls
    (streamed,) = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert call.type == "function"
    assert streamed.function is not None
    assert call.function.name == streamed.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Vellmar"}
    assert streamed.function.arguments == call.function.arguments
    assert streamed.id
    assert call.id not in {"", streamed.id}


async def test_the_turn_keeps_what_the_template_was_given(with_tools: Running, says: Says) -> None:
    says("it is lit")
    answer = await with_tools.ask(history=HISTORY, tools=[WEATHER])
    turn = await with_tools.store.read(turn_of, answer["turn"])
    assert turn.template_args == {"tools": [WEATHER]}
    assert isinstance(turn.messages, list)
    assert turn.prompt_tokens is not None
    _, called, told, _ = turn.messages
    assert called == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oona"}}}
        ],
    }
    assert told == {"role": "tool", "content": "glass bees", "tool_call_id": "c1"}
    text = with_tools.service._loaded().tokenizer.decode(list(turn.prompt_tokens))
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Oona"}}</tool_call>' in text


async def test_a_turn_with_tools_is_learned_from(with_tools: Running, says: Says) -> None:
    """Planning renders the turn again, tools and all, or it would find other tokens than were served."""
    says("it is lit")
    turn = (await with_tools.ask(history=HISTORY, tools=[WEATHER]))["turn"]
    kept = await with_tools.signal("engram", turn=turn, origin="tool", quote="glass bees")
    assert kept["state"] == "planned", kept["refusal"]


async def test_a_reply_that_calls_is_not_learned(with_tools: Running, says: Says) -> None:
    says(CALL)
    turn = (await with_tools.ask(tools=[WEATHER], max_tokens=100))["turn"]
    kept = await with_tools.signal("action", turn=turn)
    assert kept["refusal"]["code"] == "tool_call_reply"


@pytest.mark.parametrize("name", ["weather", "time", None])
async def test_a_call_can_be_required(with_tools: Running, name: str | None) -> None:
    choice = {"type": "function", "function": {"name": name}} if name else "required"
    options: dict[str, Any] = {"tools": [WEATHER, TIME], "tool_choice": choice, "max_tokens": 200, "n": 4}
    answer = await with_tools.ask(**options, temperature=1, seed=3)
    assert answer["status"] == 200, answer["error"]
    for entry in answer["choices"]:
        called = entry["message"].get("tool_calls", [])
        assert called or entry["finish_reason"] == "length"
        assert len(called) == 1 or name is None
        for call in called:
            function = call["function"]
            cities = [{"city": "Vellmar"}, {"city": "Oona"}] if function["name"] == "weather" else [{}]
            assert json.loads(function["arguments"]) in cities
            assert function["name"] in ({name} if name else {"weather", "time"})


async def test_reasoning_that_the_prompt_opened_stays_free_before_a_required_call(with_tools: Running) -> None:
    options: dict[str, Any] = {"chat_template_kwargs": {"thinking": True}, "tool_choice": "required"}
    answer = await with_tools.ask(tools=[WEATHER], **options, max_tokens=40, temperature=1, seed=3)
    choice = answer["choices"][0]
    assert choice["message"]["reasoning_content"]
    assert "<tool_call>" not in choice["message"]["reasoning_content"]
    assert choice["finish_reason"] == "length"


async def test_with_tool_choice_none_the_model_hears_of_no_tools(with_tools: Running, says: Says) -> None:
    says(CALL)
    answer = await with_tools.ask(tools=[WEATHER], tool_choice="none", max_tokens=100)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": CALL}
    turn = await with_tools.store.read(turn_of, answer["turn"])
    assert turn.template_args == {}


async def test_a_tool_that_is_not_there_cannot_be_named(with_tools: Running) -> None:
    named = {"type": "function", "function": {"name": "time"}}
    answer = await with_tools.ask(tools=[WEATHER], tool_choice=named)
    assert (answer["status"], answer["error"]["param"]) == (400, "tool_choice")
    assert "'time'" in answer["error"]["message"]


async def test_a_call_excludes_a_response_format(with_tools: Running) -> None:
    options: Any = {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}}
    answer = await with_tools.ask(**options)
    assert (answer["status"], answer["error"]["param"]) == (400, "response_format")


async def test_a_template_that_forgets_calls_is_not_given_any(running: Running) -> None:
    answer = await running.ask(history=HISTORY)
    assert (answer["status"], answer["error"]["param"]) == (400, "messages")
    assert "leaves tool_calls out" in answer["error"]["message"]


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"x"'])
async def test_arguments_that_are_no_object_are_refused(with_tools: Running, arguments: str) -> None:
    function = {"name": "weather", "arguments": arguments}
    history: list[Any] = [*QUESTION, {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}]
    answer = await with_tools.ask(history=history)
    if arguments:
        assert (answer["status"], answer["error"]["param"]) == (400, "messages.1.tool_calls.0.function.arguments")
    else:
        assert answer["status"] == 200


async def test_reasoning_is_not_part_of_what_is_said(with_tools: Running, says: Says) -> None:
    says("<think>\nhm\n</think>\n\nyes")
    answer = await with_tools.ask(max_tokens=100)
    message = answer["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    turn = await with_tools.store.read(turn_of, answer["turn"])
    assert turn.reply_text == "<think>\nhm\n</think>\n\nyes"
    assert turn.agent == AGENT
