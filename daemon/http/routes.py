"""The routes: which path goes where, and the small handlers for adapters."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from daemon.config import Settings
from daemon.dialects.every import Endpoint
from daemon.http.access import KEYS, authorise, caller_of
from daemon.http.bodies import BODY_ROOM, MAX_MESSAGES, READ_SECONDS, BodyRoom, read_body, read_json
from daemon.http.error_answers import answer_errors
from daemon.http.errors import BadRequest, bad_field
from daemon.http.keys import Keys
from daemon.http.ledger_json import time_text
from daemon.http.open_requests import OpenRequests
from daemon.http.origins import Origins
from daemon.learning.adapters import AgentAdapters
from daemon.learning.learner import Learner
from daemon.learning.leasing import Leasing
from daemon.serving.lane_thread import LaneThread
from store import adapters as stored_adapters
from store import leases
from store.exports import tell_export
from store.leases import Lease
from store.records import Adapter, Adapters
from store.store import Store

M = TypeVar("M", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RollbackRequest(_Body):
    """Which version to serve again; 0 is the base."""

    version: Annotated[int, Field(ge=0)]


class ExportRequest(_Body):
    """The PEFT directory's name under the data directory's exports, and which version; without one, the shadow."""

    directory: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    version: Annotated[int, Field(ge=0)] | None = None


class Routes:
    """Every handler that isn't a completion's."""

    def __init__(
        self,
        store: Store,
        lane: LaneThread,
        learner: Learner,
        adapters: AgentAdapters,
        leasing: Leasing,
        *,
        exports: Path,
        model: str,
    ) -> None:
        self._store = store
        self._lane = lane
        self._learner = learner
        self._adapters = adapters
        self._leasing = leasing
        self._exports = exports
        self._model = model

    async def models(self, _request: web.Request) -> web.Response:
        """The one model that is served."""
        entry = {"id": self._model, "object": "model", "created": int(time.time()), "owned_by": "ridealong"}
        return web.json_response({"object": "list", "data": [entry]})

    async def health(self, _request: web.Request) -> web.Response:
        """Is the lane serving?"""
        status = 503 if self._lane.stopped else 200
        return web.json_response({"status": "stopped" if self._lane.stopped else "ok"}, status=status)

    async def all_adapters(self, request: web.Request) -> web.Response:
        """`GET /adapters`: every agent's shadow and versions; to an agent, her own."""
        caller = caller_of(request)
        agents = filter(caller.may_see, await self._store.read(stored_adapters.agents_with_adapters))
        kept = [await self._store.read(stored_adapters.adapters_of, agent) for agent in agents]
        whose = await self._store.read(leases.leases_of, [own.shadow.agent for own in kept])
        return web.json_response([adapters_json(own) | _lane_json(own, whose) for own in kept])

    async def promote(self, request: web.Request) -> web.Response:
        """`POST /adapters/{agent}/promote`: serve the shadow from the next turn on."""
        agent = request.match_info["agent"]
        await self._leasing.require(agent)
        await self._learner.settled()
        version = await self._adapters.promote(agent)
        return web.json_response({"agent": agent, "version": version, "adapter": f"{agent}@{version}"})

    async def rollback(self, request: web.Request) -> web.Response:
        """`POST /adapters/{agent}/rollback`: serve an earlier version again, and learn on from it."""
        asked, agent = await _parse(request, RollbackRequest), request.match_info["agent"]
        await self._leasing.require(agent)
        kept = await self._learner.rollback(agent, asked.version)
        return web.json_response(adapters_json(kept))

    async def export(self, request: web.Request) -> web.Response:
        """`POST /adapters/{agent}/export`: write a PEFT adapter directory inside the data directory."""
        asked, agent = await _parse(request, ExportRequest), request.match_info["agent"]
        target = self._exports / asked.directory
        try:
            exported = await self._adapters.export(agent, target, version=asked.version)
        except OSError as error:
            raise BadRequest(f"directory: {target} cannot be written: {error}", param="directory") from error
        body = {"name": asked.directory, "version": exported.version, "sha": exported.sha}
        await self._store.write(
            tell_export, agent, name=asked.directory, version=exported.version, sha=exported.sha
        )
        return web.json_response({"agent": agent, "directory": str(target)} | body)


def application(
    routes: Routes,
    endpoints: Sequence[Endpoint],
    others: Sequence[web.RouteDef],
    *,
    settings: Settings,
    keys: Keys,
    requests: OpenRequests,
) -> web.Application:
    """The HTTP application."""
    origins = Origins(settings.allow_origin, guarded=not keys)
    app = web.Application(
        middlewares=[answer_errors, origins.check, requests.admit, authorise, read_body],
        client_max_size=int(settings.max_body_mib * 2**20),
    )
    app.on_response_prepare.append(origins.say_who_may_read)
    app[BODY_ROOM] = BodyRoom(int(settings.max_bodies_mib * 2**20))
    app[KEYS], app[MAX_MESSAGES], app[READ_SECONDS] = keys, settings.max_messages, settings.read_seconds
    app.add_routes(
        [
            *(web.post(endpoint.path, endpoint.handle) for endpoint in endpoints),
            *others,
            web.get("/v1/models", routes.models),
            web.get("/health", routes.health),
            web.get("/adapters", routes.all_adapters),
            web.post("/adapters/{agent}/promote", routes.promote),
            web.post("/adapters/{agent}/rollback", routes.rollback),
            web.post("/adapters/{agent}/export", routes.export),
        ]
    )
    return app


async def _parse(request: web.Request, model: type[M]) -> M:
    try:
        return model.model_validate(await read_json(request))
    except ValidationError as error:
        raise bad_field(error) from error


def adapters_json(kept: Adapters) -> dict[str, Any]:
    """An agent's adapters as JSON."""
    return {
        "agent": kept.shadow.agent,
        "shadow": _adapter_json(kept.shadow),
        "stable": _adapter_json(kept.stable),
        "versions": [_adapter_json(version) for version in kept.versions],
    }


def _lane_json(own: Adapters, whose: Mapping[str, Lease]) -> dict[str, Any]:
    """The lane that an agent belongs to, where lanes share a database."""
    lease = whose.get(own.shadow.agent)
    return {"lane": None if lease is None else {"name": lease.lane, "live": lease.live}}


def _adapter_json(adapter: Adapter) -> dict[str, Any]:
    return {
        "version": adapter.version,
        "state": adapter.state,
        "steps": adapter.step_number,
        "sha": adapter.sha,
        "created_at": time_text(adapter.created_at_us),
    }
