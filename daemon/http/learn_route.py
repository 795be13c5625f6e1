"""`POST /learn`: what should have been said after something that was served, learned at once.

- What comes before the reply is a turn's prompt, the first tokens that a slot holds, or a conversation, which is
  rendered as completions are and found among what the agent was served.
- The request is a correction, recorded like any other. Its `id` is the idempotency key: the same request again is
  the same lesson, and is answered with what became of it.
- A refusal is an answer about the lesson. A lesson that has not ended in time is asked for again later, here or at
  `GET /signals/{id}`.
"""

import asyncio
import math
import uuid
from typing import Annotated, Any, Self

from aiohttp import web
from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter, model_validator

from daemon.dialects.asked import Asked, Conversation
from daemon.dialects.learn import MAX_LEARN_WAIT_SECONDS, Messages, ReplyText, reply_of, split_reply
from daemon.dialects.openai_messages import ChatMessage
from daemon.dialects.openai_tools import ChatTool
from daemon.dialects.prompts import Prompts
from daemon.dialects.strict import GivenOnly
from daemon.http.bodies import read_as
from daemon.http.errors import BadRequest, NotFound
from daemon.http.limits import RETRY_SECONDS
from daemon.http.speaker import Metadata, Speaker, speaker_of
from daemon.learning.asked_lessons import AskedLessons
from daemon.learning.fates import Fate
from daemon.serving.lane_thread import LaneThread
from daemon.serving.turns import Limits
from engine.sampling import Sampling
from signals.records import (
    MAX_TEXT_CHARS,
    AgentName,
    ContextName,
    Correction,
    Index,
    JsonObject,
    LearningRate,
    Name,
    ReplyMessage,
    TokenIds,
    fingerprint_of,
)
from store import turns
from store.errors import Unknown
from store.records import Turn
from store.store import Store


def _as_message(reply: object) -> object:
    """A reply in the form of a message is an assistant's, whether it says so or not."""
    return {"role": "assistant", **reply} if isinstance(reply, dict) else reply


def _kind(reply: object) -> str:
    return "text" if isinstance(reply, str) else "message"


_Text = Annotated[ReplyText, Tag("text")]
_Message = Annotated[ChatMessage, Tag("message")]
Reply = Annotated[_Text | _Message, Discriminator(_kind), BeforeValidator(_as_message)]

_WAYS = ("turn", "id_slot", "messages")


class LearnRequest(GivenOnly):
    """A reply, and what it comes after: `turn`, or `id_slot` with `n_prefix`, or the messages that it ends."""

    id: Name | None = None
    agent: AgentName | None = None
    context: ContextName | None = None
    private: bool | None = None
    wait: Annotated[float, Field(ge=0, le=MAX_LEARN_WAIT_SECONDS)] = 0.0
    """Seconds that the answer may wait for the lesson's end."""
    lr: LearningRate | None = None
    turn: Name | None = None
    id_slot: Index | None = None
    n_prefix: Annotated[int, Field(strict=True, ge=1)] | None = None
    """How many of the slot's tokens come before the reply."""
    messages: Messages | None = None
    tools: tuple[ChatTool, ...] = ()
    chat_template_kwargs: JsonObject | None = None
    reply: Reply | None = None
    reply_tokens: Annotated[TokenIds, Field(min_length=1, max_length=MAX_TEXT_CHARS)] | None = None

    @model_validator(mode="after")
    def _says_one_reply_after_one_thing(self) -> Self:
        ways = [name for name in _WAYS if getattr(self, name) is not None]
        if len(ways) != 1:
            raise ValueError("give one of turn, id_slot with n_prefix, and messages: what the reply comes after")
        if (self.id_slot is None) != (self.n_prefix is None):
            raise ValueError("id_slot and n_prefix go together: so many tokens of that slot")
        if [self.reply, self.reply_tokens, self.messages].count(None) != 2:
            raise ValueError("give one of reply and reply_tokens; of messages, the last is the reply")
        if self.messages is None and (self.tools or self.chat_template_kwargs is not None):
            raise ValueError("tools and chat_template_kwargs go with messages; a turn has its own")
        if self.messages is not None:
            split_reply(self.messages)
        if isinstance(self.reply, ChatMessage) and self.reply.role != "assistant":
            raise ValueError(f"the reply is an assistant's, not {self.reply.role}'s")
        return self

    @property
    def reply_alone(self) -> str | ReplyMessage | None:
        """The reply, where it is given by itself and not in tokens."""
        if not isinstance(self.reply, ChatMessage):
            return self.reply
        return reply_of(self.reply.for_template())

    def fingerprint(self, speaker: Speaker) -> str:
        """What tells this request from another of the same id. How long it waits is no part of it."""
        said_by = speaker.model_dump(mode="json", exclude={"sender"})
        return fingerprint_of(self.model_dump(mode="json", exclude={"wait"}) | said_by)


_BODY = TypeAdapter(LearnRequest)


class LearnRoute:
    """Serves the route."""

    def __init__(
        self, store: Store, lane: LaneThread, prompts: Prompts, asked: AskedLessons, *, slots: int
    ) -> None:
        self._store = store
        self._lane = lane
        self._prompts = prompts
        self._asked = asked
        self._slots = slots

    def routes(self) -> list[web.RouteDef]:
        """The route."""
        return [web.post("/learn", self.handle)]

    async def handle(self, request: web.Request) -> web.Response:
        """Have a reply learned, and tell what became of it."""
        body = await read_as(request, _BODY)
        said = Metadata(agent=body.agent, context=body.context, private=body.private)
        speaker = speaker_of(request, said)
        identity, sent = body.id or f"learn-{uuid.uuid4().hex}", body.fingerprint(speaker)
        fate = await self._asked.again(identity, sent=sent, wait_seconds=body.wait)
        if fate is None:
            correction = await self._correction(identity, body, speaker)
            private, sender = speaker.private, speaker.sender
            fate = await self._asked.learn(
                correction, private=private, sender=sender, sent=sent, wait_seconds=body.wait
            )
        return await self._answer(identity, fate)

    async def _correction(self, identity: str, body: LearnRequest, speaker: Speaker) -> Correction:
        said: dict[str, Any] = {"reply": body.reply_alone, "reply_tokens": body.reply_tokens, "lr": body.lr}
        if body.turn is not None:
            said |= {"turn": (await self._turn(body.turn, speaker)).id}
        elif body.id_slot is not None:
            turn = await self._last_on_slot(body.id_slot, speaker)
            said |= {"turn": turn.id, "prefix_tokens": body.n_prefix}
        else:
            said |= await self._conversation(body, speaker)
        return Correction(id=identity, agent=speaker.agent, context=speaker.context, **said)

    async def _turn(self, named: str, speaker: Speaker) -> Turn:
        try:
            turn = await self._store.read(turns.turn_of, named)
        except Unknown:
            turn = None
        if turn is None or turn.agent != speaker.agent or turn.finish_reason is None:
            raise NotFound(
                f"turn: {speaker.agent} has no turn {named!r} that has ended; give what X-Ridealong-Turn told",
                param="turn",
                code="turn_unknown",
            )
        return turn

    async def _last_on_slot(self, slot: int, speaker: Speaker) -> Turn:
        if slot >= self._slots:
            raise BadRequest(f"id_slot: this lane has slots 0 to {self._slots - 1}, not {slot}", param="id_slot")
        turn = await self._store.read(turns.last_on_slot, slot)
        if turn is None or turn.agent != speaker.agent:
            raise NotFound(
                f"id_slot: the last turn of slot {slot} is none of {speaker.agent}'s; name the turn instead",
                param="id_slot",
                code="turn_unknown",
            )
        return turn

    async def _conversation(self, body: LearnRequest, speaker: Speaker) -> dict[str, Any]:
        """The conversation as it is rendered, the turn that was served it, and the reply that it ends in."""
        assert body.messages is not None, "there is nothing else that the reply comes after"
        before, reply = split_reply(body.messages)
        tools = tuple(tool.for_template() for tool in body.tools)
        conversation = Conversation(before, tools, template_args=body.chat_template_kwargs or {})
        asked = Asked(model=None, prompt=conversation, limits=Limits(None, (), Sampling()))
        prompt = (await asyncio.to_thread(self._prompts.prepare, asked)).prompt
        turn = await self._store.read(turns.begun_with, agent=speaker.agent, tokens=prompt.tokens)
        return {
            "turn": None if turn is None else turn.id,
            "messages": before,
            "template_args": dict(prompt.template_args),
            "reply": reply,
        }

    async def _answer(self, identity: str, fate: Fate) -> web.Response:
        told = {"id": identity, **fate.as_json()}
        if fate.ended:
            return web.json_response(told)
        seconds = await self._lane.call(lambda lane: lane.wait_seconds()) if fate.status == "riding" else 0.0
        headers = {"Retry-After": str(math.ceil(max(seconds, RETRY_SECONDS))), "Location": f"/signals/{identity}"}
        return web.json_response(told, status=202, headers=headers)
