"""`POST /forget`: a signal, a context or an agent, taken out of adapters and tables while the lane serves."""

from typing import Any, Self

from aiohttp import web
from pydantic import TypeAdapter, model_validator

from daemon.dialects.strict import GivenOnly
from daemon.http.bodies import read_as
from daemon.learning.live_forget import LiveForget
from signals.records import AgentName, ContextName, Name
from store.forget import Change, counts
from store.scopes import Found, Scope


class ForgetRequest(GivenOnly):
    """What is to be forgotten: a signal; or a context, of every agent or of one; or an agent."""

    signal: Name | None = None
    context: ContextName | None = None
    agent: AgentName | None = None
    dry_run: bool = False
    """Only tell what there is to forget."""

    @model_validator(mode="after")
    def _names_one_thing(self) -> Self:
        if (self.signal is None) == (self.context is None and self.agent is None):
            raise ValueError("name a signal; or a context, of every agent or of one; or an agent")
        return self

    def scope(self) -> Scope:
        """The same for the store."""
        return Scope(signal=self.signal, context=self.context, agent=self.agent)


_BODY = TypeAdapter(ForgetRequest)


class ForgetRoute:
    """Serves the route."""

    def __init__(self, forget: LiveForget) -> None:
        self._forget = forget

    def routes(self) -> list[web.RouteDef]:
        """The route."""
        return [web.post("/forget", self.forget)]

    async def forget(self, request: web.Request) -> web.Response:
        """Answered when all of it is done, by agent; an empty list where nothing of it is left."""
        asked = await read_as(request, _BODY)
        if asked.dry_run:
            told = [_found(each) for each in await self._forget.find(asked.scope())]
        else:
            told = [_forgotten(each) for each in await self._forget.run(asked.scope())]
        return web.json_response({"dry_run": asked.dry_run, "agents": told})


def _found(found: Found) -> dict[str, Any]:
    return {
        "agent": found.agent,
        "turns": len(found.turns),
        "signals": len(found.signals),
        "lessons": len(found.lessons),
        "lessons_shared": len(found.shared),
        "steps": len(found.steps),
    }


def _forgotten(change: Change) -> dict[str, Any]:
    moved = change.moved
    return {
        "agent": change.found.agent,
        **counts(change),
        "exact": moved is None or moved.exact,
        "shadow": None if moved is None else moved.adapters[None].sha,
    }
