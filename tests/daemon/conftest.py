"""A service of the tests' own, in this process, on a free port, with a tiny chat model."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from tokenizers import Tokenizer

from daemon.commands.child import Child, serving_child
from daemon.config import Settings
from daemon.running import open_store
from daemon.service import Service
from store.store import Store
from tests.daemon.scripted import Says, scripted
from tests.daemon.tiny_chat import TOOLS_TEMPLATE, write_tiny_chat

AGENT = "ada"


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("model") / "tiny-chat")


@pytest.fixture(scope="session")
def tiny_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a template that knows tools and reasoning."""
    return write_tiny_chat(tmp_path_factory.mktemp("tools") / "tiny-chat", TOOLS_TEMPLATE)


@dataclass(slots=True)
class Running:
    """A service that serves, and ways to speak with it."""

    url: str
    service: Service
    store: Store
    http: aiohttp.ClientSession

    def openai(self, agent: str = AGENT, context: str = "room", **headers: str) -> openai.AsyncOpenAI:
        """The official client, speaking for an agent."""
        who = {"X-Ridealong-Agent": agent, "X-Ridealong-Context": context}
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, default_headers=who | headers
        )

    async def ask(
        self, text: str = "hello", *, history: list[dict[str, str]] | None = None, **options: Any
    ) -> Any:
        """One greedy turn; the JSON of the answer, with the turn's id and adapter in it."""
        who = options.pop("who", {"X-Ridealong-Agent": AGENT, "X-Ridealong-Context": "room"})
        messages = [*(history or []), {"role": "user", "content": text}]
        body = {"model": "tiny-chat", "messages": messages, "temperature": 0, "max_tokens": 8} | options
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=who) as answer:
            told = await answer.json()
            told["status"] = answer.status
            told["turn"] = answer.headers.get("X-Ridealong-Turn")
            told["adapter"] = answer.headers.get("X-Ridealong-Adapter")
            return told

    async def signal(self, kind: str, **fields: Any) -> Any:
        """Send a signal; what became of it."""
        body = {"id": uuid.uuid4().hex, "agent": AGENT, "context": "room", "kind": kind} | fields
        return (await self.post("/signals", body))[1]

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        async with self.http.post(self.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str, **params: str) -> Any:
        async with self.http.get(self.url + path, params=params) as answer:
            return await answer.json()

    async def events(self, path: str, body: Any, **headers: str) -> list[dict[str, Any]]:
        """The events of a stream: the JSON of each, or its text, with its name where it has one."""
        async with self.http.post(self.url + path, json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            *events, rest = (await answer.text()).split("\n\n")
        assert not rest
        return [_event(event) for event in events]

    async def until(self, condition: Callable[[], Awaitable[bool]], *, seconds: float = 20.0) -> None:
        """Wait for a condition, at most so long."""
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.01)

    async def fate(self, signal: str, *states: str) -> Any:
        """Wait until a signal is in one of those states; what became of it."""

        async def reached() -> bool:
            return (await self.get(f"/signals/{signal}"))["state"] in states

        await self.until(reached)
        return await self.get(f"/signals/{signal}")


def _event(text: str) -> dict[str, Any]:
    fields = dict(line.split(": ", 1) for line in text.split("\n"))
    data = fields["data"]
    return fields | {"data": json.loads(data) if data.startswith("{") else data}


Start = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def start(tiny_chat: Path, tmp_path: Path) -> Start:
    """Start a service; settings by name. The data directory stays for the next start of the same test."""

    @asynccontextmanager
    async def started(**settings: Any) -> AsyncIterator[Running]:
        chosen: dict[str, Any] = {
            "data_dir": tmp_path / "data",
            "model": str(tiny_chat),
            "port": 0,
            "ctx": 256,
            "slots": 2,
            "learn": (AGENT,),
            "lr": 1e-2,
            "idle_seconds": 3600,
        }
        made = Settings(**(chosen | settings))
        made.data_dir.mkdir(exist_ok=True)
        failures: list[BaseException] = []
        hurry = asyncio.Event()
        store = await asyncio.to_thread(open_store, made)
        try:
            service = Service(made, store, say=lambda _line: None, on_failure=failures.append, hurry=hurry)
            async with (
                service.serving() as url,
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http,
            ):
                yield Running(url, service, store, http)
        finally:
            await asyncio.to_thread(store.close)
        assert not failures, f"the service failed: {failures}"

    return started


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., AbstractContextManager[Child]]:
    """Start a child process on the test's data directory."""

    def started(*flags: str) -> AbstractContextManager[Child]:
        return serving_child(tmp_path / "data", ["--learn", AGENT, "--lr", "1e-3", *flags])

    return started


@pytest.fixture
async def running(start: Start) -> AsyncIterator[Running]:
    """A service as most tests need it: `ada` learns, lessons ride turns only."""
    async with start() as made:
        yield made


@pytest.fixture
async def with_tools(start: Start, tiny_tools: Path) -> AsyncIterator[Running]:
    """A service whose template knows tools and reasoning."""
    async with start(model=str(tiny_tools), ctx=512) as made:
        yield made


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tiny_chat: Path) -> Says:
    """Say what the next turns reply."""
    tokenizer = Tokenizer.from_file(str(tiny_chat / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    return scripted(monkeypatch, lambda text: tokenizer.encode(text, add_special_tokens=False).ids, end)
