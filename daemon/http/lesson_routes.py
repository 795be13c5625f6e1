"""`GET /lessons` and `GET /lessons/{id}`: lessons as a list, and one of them token by token.

- To an agent's key there are her own lessons and no others.
- Of what is forgotten, or was said where it is private by now, counts and losses are told and no word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from aiohttp import web
from sqlalchemy.orm import Session

from daemon.http.access import caller_of
from daemon.http.errors import BadRequest
from daemon.http.ledger_json import filter_of, integer_of, refusal_json, time_text
from daemon.learning.policies import Policies
from daemon.text.token_text import TokenTexts
from store import lesson_list, lessons, steps, turns
from store.errors import Unknown
from store.lesson_list import ListedLesson, Wanted
from store.records import KeptLesson, KeptStep
from store.scopes import FORGOTTEN
from store.store import Store
from store.words import LessonState

LISTED_BY = ("agent", "context", "state", "code", "cursor", "limit")
"""What lessons may be asked by."""

DEFAULT_LESSONS = 50
"""Lessons of a page that names no limit."""

BEFORE_TOKENS = 48
"""How much of what comes before a lesson is told with it: enough to see what it answers."""

Hidden = Literal["private", "forgotten"]


@dataclass(frozen=True, slots=True)
class Facts:
    """A lesson, its step if it is learned, and whether a turn made its context private."""

    listed: ListedLesson
    lesson: KeptLesson
    step: KeptStep | None
    private: bool

    @classmethod
    def of(cls, session: Session, lesson: str) -> "Facts":
        """What the store has of it. Raises `Unknown` when there is none."""
        listed = lesson_list.listed(session, lesson)
        kept, step = lessons.lesson_of(session, lesson), steps.step_of_lesson(session, lesson)
        private = turns.context_is_private(session, agent=listed.agent, context=listed.context)
        return cls(listed, kept, step, private)


class LessonRoutes:
    """Serves the routes."""

    def __init__(self, store: Store, policies: Policies, texts: TokenTexts) -> None:
        self._store = store
        self._policies = policies
        self._texts = texts

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [web.get("/lessons", self.page), web.get("/lessons/{id}", self.one)]

    async def page(self, request: web.Request) -> web.Response:
        """`GET /lessons`: a page of lessons, the newest first."""
        query = dict(request.query)
        wanted, limit = wanted_of(query), integer_of(query, "limit")
        wanted = replace(wanted, agent=caller_of(request).meant(wanted.agent))
        limit = DEFAULT_LESSONS if limit is None else limit
        page = await self._store.read(lesson_list.page, wanted, cursor=query.get("cursor"), limit=limit)
        return web.json_response({"lessons": [*map(listed_json, page.lessons)], "next_cursor": page.next_cursor})

    async def one(self, request: web.Request) -> web.Response:
        """`GET /lessons/{id}`: one lesson, with each token's weight and its loss before and after the step."""
        identity = request.match_info["id"]
        facts = await self._store.read(Facts.of, identity)
        if not caller_of(request).may_see(facts.listed.agent):
            raise Unknown("lesson", identity)
        return web.json_response(facts_json(facts, self._hidden(facts), self._texts))

    def _hidden(self, facts: Facts) -> Hidden | None:
        """Why its words are not told, if they are not."""
        if facts.private or self._policies.is_private(facts.listed.agent, facts.listed.context):
            return "private"
        return "forgotten" if facts.listed.code == FORGOTTEN else None


def wanted_of(query: Mapping[str, str]) -> Wanted:
    """Which lessons are asked for.

    Raises:
        BadRequest: a filter is unknown, or its value is not one it takes.
    """
    asked, state = filter_of(query, LISTED_BY), query.get("state")
    if state is not None and state not in set(LessonState):
        raise BadRequest(f"state: {state!r} is none of {', '.join(LessonState)}", param="state")
    own = None if state is None else LessonState(state)
    return Wanted(agent=asked.agent, context=asked.context, state=own, code=asked.code)


def listed_json(one: ListedLesson) -> dict[str, Any]:
    """A lesson of the list as JSON."""
    return {
        "id": one.id,
        "agent": one.agent,
        "context": one.context,
        "turn": one.turn,
        "kind": one.kind,
        "state": one.state,
        "rows": one.rows,
        "planned_at": time_text(one.planned_at_us),
        "ridden_turn": one.ridden_turn,
        "refusal": refusal_json(one.code, one.message, one.position),
        "step": one.step_number,
        "loss_before": one.loss_before,
        "loss_after": one.loss_after,
    }


def facts_json(facts: Facts, hidden: Hidden | None, texts: TokenTexts) -> dict[str, Any]:
    """A lesson with all that is known of it, as JSON."""
    kept = facts.lesson
    return listed_json(facts.listed) | {
        "prefix_tokens": kept.lesson.prefix_token_count,
        "signals": {link.signal: link.role for link in kept.links},
        "measured": None if facts.step is None else measured_json(facts.step),
        "hidden": hidden,
        "before": "" if hidden else _text((*kept.prefix, *kept.lesson.tokens[:1])[-BEFORE_TOKENS:], texts),
        "tokens": [] if hidden else tokens_json(kept, facts.step, texts),
    }


def measured_json(kept: KeptStep) -> dict[str, Any]:
    """What a lesson's step measured, as JSON."""
    step = kept.step
    return {
        "id": step.id,
        "at": time_text(kept.created_at_us),
        "kl_served": step.kl_served,
        "gradient_norm": step.gradient_norm,
        "lr": step.lr,
        "learning_ms": step.learning_ms,
        "waited_ms": step.waited_ms,
        "peak_bytes": step.peak_bytes,
    }


def tokens_json(kept: KeptLesson, step: KeptStep | None, texts: TokenTexts) -> list[dict[str, Any]]:
    """The tokens that a lesson's rows predict: weight, and loss before and after its step where there is one.

    A row without a target predicts what came next, and learns nothing of it.
    """
    lesson, nothing = kept.lesson, (None,) * len(kept.lesson.tokens)
    before = nothing if step is None else step.step.row_losses_before
    after = nothing if step is None else step.step.row_losses_after or nothing
    came = (*lesson.tokens[1:], None)
    rows = zip(lesson.targets, came, lesson.weights, before, after, strict=True)
    return [
        {
            "position": position,
            "token": token,
            "text": texts.text_of(token),
            "weight": weight,
            "loss_before": loss_before,
            "loss_after": loss_after,
        }
        for position, (target, next_token, weight, loss_before, loss_after) in enumerate(
            rows, start=lesson.prefix_token_count + 1
        )
        if (token := next_token if target is None else target) is not None
    ]


def _text(tokens: Sequence[int], texts: TokenTexts) -> str:
    return b"".join(map(texts.bytes_of, tokens)).decode(errors="replace")
