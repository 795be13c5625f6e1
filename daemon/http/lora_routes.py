"""The routes of loaded adapters: llama-server's `GET` and `POST /lora-adapters`, and ours to load and unload."""

from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from daemon.http.bodies import read_as
from daemon.http.errors import BadRequest
from daemon.serving.lora_adapters import Loaded, LoraAdapters
from signals.records import Index

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LoadRequest(_Body):
    """A PEFT directory under the data directory's exports."""

    path: Annotated[str, Field(pattern=rf"^{_PART}(/{_PART})*$", max_length=200)]


class UnloadRequest(_Body):
    """A loaded adapter."""

    id: Index


class ScaleRequest(_Body):
    """A loaded adapter, and how much of its term is added."""

    id: Index
    scale: Annotated[float, Field(strict=True, allow_inf_nan=False)]


_Load, _Unload = TypeAdapter(LoadRequest), TypeAdapter(UnloadRequest)
_Scales = TypeAdapter(list[ScaleRequest])


class LoraRoutes:
    """Serves the routes."""

    def __init__(self, loras: LoraAdapters) -> None:
        self._loras = loras

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [
            web.get("/lora-adapters", self.all),
            web.post("/lora-adapters", self.scale),
            web.post("/lora-adapters/load", self.load),
            web.post("/lora-adapters/unload", self.unload),
        ]

    async def all(self, _request: web.Request) -> web.Response:
        """Every loaded adapter with its scale."""
        return web.json_response([_json(loaded) for loaded in self._loras.loaded])

    async def scale(self, request: web.Request) -> web.Response:
        """Set the scales; an adapter that isn't named gets 0."""
        asked = await read_as(request, _Scales)
        scales = {one.id: one.scale for one in asked}
        if len(scales) < len(asked):
            raise BadRequest("id: an adapter is named twice; give each one scale", param="id")
        await self._loras.scale(scales)
        return web.json_response({"success": True})

    async def load(self, request: web.Request) -> web.Response:
        """Load an adapter; it is used once it has a scale."""
        asked = await read_as(request, _Load)
        return web.json_response(_json(await self._loras.load(asked.path)))

    async def unload(self, request: web.Request) -> web.Response:
        """Forget an adapter that nothing uses."""
        asked = await read_as(request, _Unload)
        await self._loras.unload(asked.id)
        return web.json_response({"success": True})


def _json(loaded: Loaded) -> dict[str, Any]:
    return {"id": loaded.id, "path": loaded.path, "scale": loaded.scale}
