"""Clients that speak OpenAI's API without being OpenAI's: LangChain's, and Simon Willison's `llm`.

Each is set up as its documentation says for a server of one's own, and must find what it asks for: a reply, its
pieces, a call of a tool and the reply after it, a reply by schema, and what became of a lesson.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, SecretStr

from store.turns import turn_of
from tests.daemon.conftest import AGENT, Running
from tests.daemon.scripted import Says
from tests.daemon.test_tools import CALL

WHO = {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "room"}
LESSON = {"learn": {"reply": "it is lit by glass bees", "wait": 60}}
COMMAND_SECONDS = 60.0


class Harbour(BaseModel):
    """What a reply is held to."""

    master: bool


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"fog over {city}"


@asynccontextmanager
async def chat(running: Running, **options: Any) -> AsyncIterator[ChatOpenAI]:
    """LangChain's chat model, as its documentation sets it up for a server of one's own."""
    model = ChatOpenAI(
        model="tiny-chat",
        base_url=f"{running.url}/v1",
        api_key=SecretStr("none"),
        max_retries=0,
        temperature=0,
        default_headers=WHO,
        max_completion_tokens=100,
        **options,
    )
    try:
        yield model
    finally:
        await model.root_async_client.close()


@pytest.mark.parametrize("responses", [False, True])
async def test_langchain_gets_a_reply_whole_and_in_pieces(running: Running, says: Says, responses: bool) -> None:
    says("lit by glass bees", "lit by glass bees")
    async with chat(running, use_responses_api=responses) as model:
        whole = await model.ainvoke("hello")
        pieces = [piece async for piece in model.astream("hello")]
    assert whole.text == "".join(piece.text for piece in pieces) == "lit by glass bees"
    assert sum(piece.text != "" for piece in pieces) > 1, "it came in one piece"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 1


@pytest.mark.parametrize("responses", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_langchain_gets_calls_and_tells_their_results(
    with_tools: Running, says: Says, responses: bool, streamed: bool
) -> None:
    says(CALL, "fog, then")
    async with chat(with_tools, use_responses_api=responses, streaming=streamed) as plain:
        model = plain.bind_tools([weather])
        called = await model.ainvoke("hello")
        assert isinstance(called, AIMessage)
        (call,) = called.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Vellmar"})
        result = await weather.ainvoke(call)
        assert isinstance(result, ToolMessage)
        reply = await model.ainvoke([HumanMessage("hello"), called, result])
    assert reply.text == "fog, then"


async def test_langchain_gets_what_its_type_says(running: Running) -> None:
    async with chat(running) as model:
        typed = model.with_structured_output(Harbour, method="json_schema")
        assert isinstance(await typed.ainvoke("hello"), Harbour)


async def test_langchain_completes_a_prompt(running: Running, says: Says) -> None:
    says("lit by glass bees", "lit by glass bees")
    model = OpenAI(model="tiny-chat", base_url=f"{running.url}/v1", api_key=SecretStr("none"), max_tokens=100)
    try:
        assert await model.ainvoke("it is") == "lit by glass bees"
        assert "".join([piece async for piece in model.astream("it is")]) == "lit by glass bees"
    finally:
        await model.async_client._client.close()


@pytest.mark.parametrize("streamed", [False, True])
async def test_langchain_asks_for_a_lesson_and_finds_the_turn_that_it_rode(
    running: Running, streamed: bool
) -> None:
    async with chat(running, extra_body=LESSON, include_response_headers=True, streaming=streamed) as model:
        reply = await model.ainvoke("hello")
    turn = reply.response_metadata["headers"]["x-ridealong-turn"]
    assert (await running.get(f"/signals/learn-{turn}"))["state"] == "learned"


MODELS: list[dict[str, Any]] = [
    {"model_id": "tiny", "supports_tools": True, "supports_schema": True},
    {"model_id": "tiny-responses", "responses": True, "supports_tools": True, "supports_schema": True},
    {"model_id": "tiny-completion", "completion": True},
]
FUNCTION = """
def weather(city: str) -> str:
    "The weather of a city."
    return f"fog over {city}"
"""


@dataclass(frozen=True, slots=True)
class Llm:
    """The command `llm` with a directory of its own, in which a service's URL is written."""

    home: Path

    def knows(self, running: Running) -> None:
        own = {"model_name": "tiny-chat", "api_base": f"{running.url}/v1", "headers": WHO}
        (self.home / "extra-openai-models.yaml").write_text(json.dumps([model | own for model in MODELS]))

    async def __call__(self, *args: str) -> str:
        """What the command prints. It loads no plugins: the bundled model's wheel is one, and wants a runtime."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "llm", *args),
            env=os.environ | {"LLM_USER_PATH": str(self.home), "LLM_LOAD_PLUGINS": ""},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, failed = await asyncio.wait_for(process.communicate(), COMMAND_SECONDS)
        assert process.returncode == 0, failed.decode()
        return said.decode().strip()


@pytest.fixture
def llm(tmp_path: Path) -> Llm:
    return Llm(tmp_path)


@pytest.mark.parametrize("name", [model["model_id"] for model in MODELS])
async def test_llm_gets_a_reply_whole_and_in_pieces(running: Running, says: Says, llm: Llm, name: str) -> None:
    llm.knows(running)
    says("lit by glass bees", "lit by glass bees")
    assert await llm("-m", name, "hello") == await llm("-m", name, "--no-stream", "hello") == "lit by glass bees"
    rows = (await running.get("/ledger", kind="turn"))["rows"]
    assert [row["agent"] for row in rows] == [AGENT, AGENT], "its headers did not come"


@pytest.mark.parametrize("name", ["tiny", "tiny-responses"])
@pytest.mark.parametrize("how", ["--stream", "--no-stream"])
async def test_llm_gets_calls_and_tells_their_results(
    with_tools: Running, says: Says, llm: Llm, name: str, how: str
) -> None:
    llm.knows(with_tools)
    says(CALL, "fog, then")
    flags = ["--no-stream"] if how == "--no-stream" else []
    said = await llm("-m", name, *flags, "--functions", FUNCTION, "hello")
    assert said.endswith("fog, then")
    (*_, last) = (await with_tools.get("/ledger", kind="turn"))["rows"]
    turn = await with_tools.store.read(turn_of, last["subject"])
    assert isinstance(turn.messages, list)
    assert turn.messages[-1] == {"role": "tool", "content": "fog over Vellmar", "tool_call_id": ANY}


async def test_llm_gets_what_its_schema_says_and_keeps_learn(running: Running, llm: Llm) -> None:
    llm.knows(running)
    said = await llm("-m", "tiny", "--no-stream", "--schema", json.dumps({"enum": ["lit", "dark"]}), "hello")
    assert json.loads(said) in ("lit", "dark")
    (kept,) = json.loads(await llm("logs", "-n", "1", "--json"))
    assert kept["response_json"]["learn"] == {"lessons": []}
