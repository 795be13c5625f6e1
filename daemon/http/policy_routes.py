"""`/policy`: what operators let each agent learn."""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from daemon.http.bodies import read_as
from daemon.http.errors import BadRequest
from daemon.learning.policies import Policies
from signals.policy import AgentPolicy, PolicyTable
from signals.records import AgentName

_TABLE = TypeAdapter(PolicyTable)
_AGENT: TypeAdapter[str] = TypeAdapter(AgentName)

Weigh = Callable[[str], Awaitable[None]]
"""Has what waits of an agent's planned anew."""


class PolicyRoutes:
    """Tells policies and changes them; what waits is held to the change at once."""

    def __init__(self, policies: Policies, weigh_anew: Weigh) -> None:
        self._policies = policies
        self._weigh_anew = weigh_anew

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [
            web.get("/policy", self.all),
            web.put("/policy/agents/{agent}", self.put),
            web.delete("/policy/agents/{agent}", self.take_back),
        ]

    async def all(self, _request: web.Request) -> web.Response:
        """`GET /policy`: the default, and every agent's own."""
        now = self._policies.now
        agents = {agent: self._told(agent, policy) for agent, policy in sorted(now.agents.items())}
        return web.json_response({"default": now.default.model_dump(mode="json"), "agents": agents})

    async def put(self, request: web.Request) -> web.Response:
        """`PUT /policy/agents/{agent}`: her policy from now on."""
        agent, table = _agent(request), await read_as(request, _TABLE)
        policy = await self._policies.put(agent, table)
        await self._weigh_anew(agent)
        return web.json_response({"agent": agent} | self._told(agent, policy))

    async def take_back(self, request: web.Request) -> web.Response:
        """`DELETE /policy/agents/{agent}`: as file and flags say again."""
        agent = _agent(request)
        policy = await self._policies.take_back(agent)
        await self._weigh_anew(agent)
        return web.json_response({"agent": agent} | self._told(agent, policy))

    def _told(self, agent: str, policy: AgentPolicy) -> dict[str, Any]:
        return policy.model_dump(mode="json") | {"from": "api" if self._policies.is_put(agent) else "start"}


def _agent(request: web.Request) -> str:
    name = request.match_info["agent"]
    try:
        return _AGENT.validate_python(name)
    except ValidationError as error:
        raise BadRequest(f"{name!r} is no agent's name: {error.errors()[0]['msg']}", param="agent") from error
