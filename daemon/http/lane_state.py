"""What the lane is and what it holds now, as llama-server tells it: `GET /props` and `GET /slots`.

Nothing that was said is told: of a slot its counts, and to operators who has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from daemon import __version__
from daemon.dialects.llama_request import LlamaRequest
from daemon.http.access import caller_of
from daemon.serving.lane_thread import LaneThread
from daemon.text.chat_template import HuggingFaceChat
from engine.lane import Lane


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """What does not change while a lane is served. `model_path` is where its weights lie, or a hub id."""

    model: str
    model_path: str
    slots: int
    context_tokens: int


class LaneState:
    """Serves the routes."""

    def __init__(self, lane: LaneThread, chat: HuggingFaceChat, facts: LaneFacts) -> None:
        self._lane = lane
        self._chat = chat
        self._facts = facts

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [web.get("/props", self.props), web.get("/slots", self.slots)]

    async def props(self, _request: web.Request) -> web.Response:
        """The model, its template, and how a completion is drawn that says nothing of it."""
        defaults = LlamaRequest(prompt="").settings()
        facts = self._facts
        body = {
            "default_generation_settings": {"n_ctx": facts.context_tokens, "params": {**defaults, "seed": -1}},
            "total_slots": facts.slots,
            "n_ctx": facts.context_tokens,
            "model_alias": facts.model,
            "model_path": facts.model_path,
            "chat_template": self._chat.template,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"ridealong {__version__}",
        }
        return web.json_response(body)

    async def slots(self, request: web.Request) -> web.Response:
        """What each slot holds now; to an operator also its stable set, turn, and the lesson that walks on it."""
        held = await self._lane.call(_held)
        if not caller_of(request).is_operator:
            return web.json_response([slot | {"stable": None, "turn": None, "lesson": None} for slot in held])
        turns, lessons = self._lane.turns_by_slot(), self._lane.lessons_by_slot()
        users = ({"turn": turns.get(slot["id"]), "lesson": lessons.get(slot["id"])} for slot in held)
        return web.json_response([slot | who for slot, who in zip(held, users, strict=True)])


def _held(lane: Lane) -> Sequence[dict[str, Any]]:
    return [
        {
            "id": slot.index,
            "n_ctx": lane.engine.settings.context_tokens,
            "is_processing": slot.busy,
            "n_past": len(slot.tokens),
            "stable": slot.stable,
            "pinned_tokens": slot.pinned_tokens,
        }
        for slot in lane.engine.slots
    ]
