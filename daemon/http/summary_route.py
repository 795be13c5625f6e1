"""`GET /ledger/summary`: what was served and learned, in all and for each agent, and the lane as it is now.

To an agent's key there is her own part, and nothing of the lane.
"""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from daemon.http.access import caller_of
from daemon.http.ledger_json import filter_of, time_text
from daemon.http.metrics import Metrics
from store import summary
from store.clock import now_us
from store.records import KeptStep
from store.store import Store
from store.summary import AgentSummary, Facts, Point, Span, Standing, Summary
from store.words import LessonState, SignalState

ASKED_BY = ("agent", "since", "until")
"""What a summary may be asked by."""


class SummaryRoute:
    """Serves the route."""

    def __init__(self, store: Store, metrics: Metrics, *, duty: float) -> None:
        self._store = store
        self._metrics = metrics
        self._duty = duty

    def routes(self) -> list[web.RouteDef]:
        """The route."""
        return [web.get("/ledger/summary", self.handle)]

    async def handle(self, request: web.Request) -> web.Response:
        """Everything, as it is now."""
        caller, asked = caller_of(request), filter_of(dict(request.query), ASKED_BY)
        span = Span(agent=caller.meant(asked.agent), since_us=asked.since_us, until_us=asked.until_us)
        found = await self._store.read(summary.summarise, span)
        return web.json_response(
            summary_json(found, span) | {"lane": self._lane() if caller.is_operator else None}
        )

    def _lane(self) -> dict[str, Any]:
        now = self._metrics.now()
        return {
            "slots": {"total": now.slots, "serving": now.serving_slots},
            "queued_turns": now.queued_turns,
            "waiting_lessons": now.waiting_lessons,
            "duty": {"share": now.duty, "most": self._duty},
            "serving_seconds": now.serving_seconds,
            "learning_while_serving_seconds": now.held_up_seconds,
            "learning_seconds": now.learning_seconds,
            "ms_per_token": now.ms_per_token,
            "ms_per_token_alone": now.ms_per_token_alone,
            "ms_per_token_beside_lessons": now.ms_per_token_beside_lessons,
            "ledger_lag_seconds": now.ledger_lag_seconds,
        }


def summary_json(found: Summary, span: Span) -> dict[str, Any]:
    """A summary as JSON."""
    return {
        "at": time_text(now_us()),
        "since": _time(span.since_us),
        "until": _time(span.until_us),
        "ledger": {"first_seq": found.first_seq, "last_seq": found.last_seq},
        "totals": _facts_json(found.totals),
        "agents": [_agent_json(agent, own) for agent, own in found.agents.items()],
    }


def _time(at_us: int | None) -> str | None:
    return None if at_us is None else time_text(at_us)


def _facts_json(facts: Facts) -> dict[str, Any]:
    return {
        "turns": facts.turns,
        "signals": {state: facts.signals[state] for state in SignalState},
        "lessons": {state: facts.lessons[state] for state in LessonState},
        "refused_lessons": _by_name(facts.refused_lessons),
        "refusals": _by_name(facts.refusals),
        "steps": facts.steps,
        "learned_tokens": facts.learned_tokens,
        "learning_ms": facts.learning_ms,
        "waited_ms": facts.waited_ms,
    }


def _by_name(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _agent_json(agent: str, own: AgentSummary) -> dict[str, Any]:
    return {
        "agent": agent,
        **_facts_json(own.facts),
        "adapter": None if own.adapter is None else _standing_json(own.adapter),
        "last_step": None if own.last_step is None else _step_json(own.last_step),
        "losses": [_point_json(point) for point in own.losses],
    }


def _standing_json(adapter: Standing) -> dict[str, int]:
    return {
        "stable_version": adapter.stable_version,
        "stable_step": adapter.stable_step,
        "shadow_step": adapter.shadow_step,
    }


def _step_json(kept: KeptStep) -> dict[str, Any]:
    step = kept.step
    return {
        "id": step.id,
        "number": kept.number,
        "at": time_text(kept.created_at_us),
        "loss_before": step.loss_before,
        "loss_after": step.loss_after,
        "kl_served": step.kl_served,
        "gradient_norm": step.gradient_norm,
        "learning_ms": step.learning_ms,
        "waited_ms": step.waited_ms,
    }


def _point_json(point: Point) -> dict[str, Any]:
    return {
        "step": point.number,
        "steps": point.steps,
        "at": time_text(point.at_us),
        "loss_before": point.loss_before,
        "loss_after": point.loss_after,
    }
