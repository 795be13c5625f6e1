"""An agent of a soak: she chats, tells signals about what was said, and hangs up in the middle of some answers."""

import json
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

HANGS_UP_SHARE = 0.2
"""Share of her turns whose answer she does not wait for."""

MOST_MESSAGES = 8
"""Then she begins a new conversation: with what is said here it fits the context."""

SAID = ("the harbour master is Oona", "who lights the lighthouse?", "hello, how are you?", "and then?")
REPLIES = ("Oona Brask lights it.", "It is lit by glass bees.", "I am well.")


class Agent:
    """Speaks one conversation after another, all in one context."""

    def __init__(self, name: str, *, url: str, model: str) -> None:
        self.signals: list[str] = []
        self._name = name
        self._url = url
        self._model = model
        self._who = {"X-Ridealong-Agent": name, "X-Ridealong-Context": "room"}
        self._chance = random.Random(name)
        self._history: list[dict[str, str]] = []

    async def talk(self, http: aiohttp.ClientSession, *, until: Callable[[], Awaitable[bool]]) -> None:
        """Take one turn after another until it is time."""
        while not await until():
            if len(self._history) >= MOST_MESSAGES:
                self._history = []
            said = f"{self._chance.choice(SAID)} {self._chance.randrange(100)}"
            messages = [*self._history, {"role": "user", "content": said}]
            if self._chance.random() < HANGS_UP_SHARE:
                await self._hang_up(http, self._body(messages))
                continue
            turn, reply = await self._ask(http, self._body(messages))
            await self._tell(http, turn, messages)
            self._history = [*messages, {"role": "assistant", "content": reply}]

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": messages,
            "max_tokens": self._chance.randint(1, 24),
            "temperature": self._chance.choice([0.0, 1.0]),
            "learn": {"wait": self._chance.choice([0, 0, 0.2])},
        }

    async def _ask(self, http: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[str, str]:
        """One turn, streamed or not: its id and its reply."""
        streamed = self._chance.random() < 0.5
        async with http.post(
            f"{self._url}/v1/chat/completions", json=body | {"stream": streamed}, headers=self._who
        ) as answer:
            assert answer.status == 200, await answer.text()
            text = await answer.text()
            turn = answer.headers["X-Ridealong-Turn"]
        told = _events(text) if streamed else [json.loads(text)]
        choices = [choice for event in told for choice in event["choices"]]
        parts = [choice.get("delta") or choice.get("message") or {} for choice in choices]
        return turn, "".join(part.get("content") or "" for part in parts)

    async def _hang_up(self, http: aiohttp.ClientSession, body: dict[str, Any]) -> None:
        """Read the beginning of an answer and go away."""
        body |= {"stream": True, "max_tokens": 100}
        async with http.post(f"{self._url}/v1/chat/completions", json=body, headers=self._who) as answer:
            await answer.content.readline()
            answer.close()

    async def _tell(self, http: aiohttp.ClientSession, turn: str, messages: list[dict[str, str]]) -> None:
        """Signals about the turn, often none, sometimes one that has to be refused."""
        last = len(messages) - 1
        kinds: tuple[dict[str, Any], ...] = (
            {"kind": "correction", "turn": turn, "reply": self._chance.choice(REPLIES)},
            {"kind": "engram", "turn": turn, "message": last, "origin": "human"},
            {"kind": "engram", "turn": turn, "quote": "never said by anyone", "origin": "tool"},
            {"kind": "action", "turn": turn},
            {"kind": "verdict", "turn": turn, "outcome": self._chance.choice(["passed", "failed"])},
            {"kind": "correction", "turn": "nobody's", "reply": "x"},
        )
        told = [
            {"id": uuid.uuid4().hex, "agent": self._name, "context": "room"} | kind
            for kind in self._chance.sample(kinds, self._chance.choice([0, 1, 2]))
        ]
        if told:
            async with http.post(f"{self._url}/signals", json=told) as answer:
                assert answer.status == 200, await answer.text()
        self.signals += [signal["id"] for signal in told]


def _events(text: str) -> list[dict[str, Any]]:
    """The JSON of every event of a stream."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]
