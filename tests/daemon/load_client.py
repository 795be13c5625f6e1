"""A client of a load: it asks the same of one dialect again and again, and must get its own answer or a 429.

What tells a mix-up: the reply is the one that its prompt got when nobody else was asking, or the very word that it
was held to; and the turn that the answer names is kept as this client's own.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

AGENTS = ("ada", "bob", "eve")
"""Whom the clients speak for, in turn; each client in a context of its own."""

REPLY_TOKENS = 12
HANGS_UP_SHARE, HELD_SHARE, LEARNS_SHARE = 0.1, 0.3, 0.2
BACK_OFF_SECONDS = 0.1
"""How long a refused client waits: less than it is told, so that the queue stays full."""

_WORDS = ("harbour", "lighthouse", "glass bees", "Oona Brask", "thank you", "who is there", "Vellmar")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one API is asked, and where its answers have the reply's text."""

    path: str
    body: Callable[[str], Json]
    whole: Callable[[Json], str]
    piece: Callable[[Json], str]


def _messages(said: str) -> Json:
    return {"messages": [{"role": "user", "content": said}], "max_tokens": REPLY_TOKENS}


def _of_items(told: Json) -> str:
    return "".join(part["text"] for item in told["output"] for part in item["content"])


DIALECTS = (
    Dialect(
        "/v1/chat/completions",
        _messages,
        lambda told: str(told["choices"][0]["message"]["content"]),
        lambda event: "".join(choice["delta"].get("content") or "" for choice in event["choices"]),
    ),
    Dialect(
        "/v1/completions",
        lambda said: {"prompt": said, "max_tokens": REPLY_TOKENS},
        lambda told: str(told["choices"][0]["text"]),
        lambda event: "".join(choice["text"] for choice in event["choices"]),
    ),
    Dialect(
        "/v1/responses",
        lambda said: {"input": said, "max_output_tokens": REPLY_TOKENS},
        _of_items,
        lambda event: str(event["delta"]) if event["type"] == "response.output_text.delta" else "",
    ),
    Dialect(
        "/v1/messages",
        _messages,
        lambda told: "".join(block["text"] for block in told["content"]),
        lambda event: str(event["delta"]["text"]) if event["type"] == "content_block_delta" else "",
    ),
    Dialect(
        "/completion",
        lambda said: {"prompt": said, "n_predict": REPLY_TOKENS},
        lambda told: str(told["content"]),
        lambda event: str(event["content"]),
    ),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client was answered, and what it had to be."""

    turn: str
    text: str
    expected: str


class Client:
    """One of many; `number` decides what it says, in which dialect, and for whom."""

    def __init__(self, number: int, *, url: str, model: str) -> None:
        self.answers: list[Answer] = []
        self.counts: Counter[str] = Counter()
        self.agent, self.context = AGENTS[number % len(AGENTS)], f"room-{number}"
        self._chance = random.Random(number)
        self.said = f"{' '.join(self._chance.choices(_WORDS, k=6))} {number}?"
        self.alone = ""
        self._word = f"word-{number}"
        self._dialect = DIALECTS[number % len(DIALECTS)]
        self._url = url + self._dialect.path
        self._model = model
        self._who = {"X-Ridealong-Agent": self.agent, "X-Ridealong-Context": self.context}

    async def ask_alone(self, http: aiohttp.ClientSession) -> None:
        """Ask while nobody else does: what the reply has to be from now on."""
        told = await self._ask(http, self._body())
        assert told is not None, "refused though nobody else asks"
        self.alone = told.text

    async def ask_on(self, http: aiohttp.ClientSession, *, until: Callable[[], bool]) -> None:
        """Ask again and again until it is time."""
        while not until():
            self.counts["asked"] += 1
            body, expected = self._body(), self.alone
            if "n_predict" in body and self._chance.random() < HELD_SHARE:
                body, expected = body | {"grammar": f'root ::= "{self._word}"', "n_predict": 40}, self._word
            elif self._chance.random() < LEARNS_SHARE:
                body["learn"] = {"reply": "it is lit by glass bees", "wait": 0.2}
            if self._chance.random() < HANGS_UP_SHARE:
                await self._hang_up(http, body)
                continue
            told = await self._ask(http, body, stream=self._chance.random() < 0.5)
            if told is None:
                self.counts["refused"] += 1
                await asyncio.sleep(BACK_OFF_SECONDS)
            else:
                self.counts["served"] += 1
                self.answers.append(Answer(told.turn, told.text, expected))

    def _body(self) -> Json:
        return self._dialect.body(self.said) | {"model": self._model, "temperature": 0}

    async def _ask(self, http: aiohttp.ClientSession, body: Json, *, stream: bool = False) -> "_Told | None":
        async with http.post(self._url, json=body | {"stream": stream}, headers=self._who) as answer:
            text = await answer.text()
        if answer.status == 429:
            assert answer.headers["Retry-After"], "a refusal that does not say when to ask again"
            return None
        assert answer.status == 200, text
        reply = (
            "".join(map(self._dialect.piece, _events(text))) if stream else self._dialect.whole(json.loads(text))
        )
        return _Told(answer.headers["X-Ridealong-Turn"], reply)

    async def _hang_up(self, http: aiohttp.ClientSession, body: Json) -> None:
        """Go away somewhere between the request and the end of its answer."""
        self.counts["hung up"] += 1
        asking = asyncio.create_task(self._ask(http, body | {"n_predict": 60} if "n_predict" in body else body))
        await asyncio.wait({asking}, timeout=self._chance.choice([0, 0.01, 0.1, 0.5]))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Told:
    turn: str
    text: str


def _events(text: str) -> Iterator[Json]:
    """The JSON of every event of a stream."""
    for line in text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
