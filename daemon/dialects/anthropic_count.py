"""How many tokens a prompt is, without serving it: Anthropic's `POST /v1/messages/count_tokens`.

It is prepared exactly as `POST /v1/messages` prepares it, so that it is what a turn then has for its prompt.
"""

import asyncio

from aiohttp import web
from pydantic import TypeAdapter

from daemon.dialects.anthropic_request import CountRequest
from daemon.dialects.asked import Asked
from daemon.dialects.handler import check_model
from daemon.dialects.prompts import Prompts
from daemon.http.bodies import read_as
from daemon.serving.turns import Limits
from engine.sampling import Sampling

_BODY = TypeAdapter(CountRequest)


class TokenCount:
    """Serves the route."""

    path = "/v1/messages/count_tokens"

    def __init__(self, prompts: Prompts, *, model: str) -> None:
        self._prompts = prompts
        self._model = model

    async def handle(self, request: web.Request) -> web.Response:
        """Count a prompt's tokens."""
        body = await read_as(request, _BODY)
        check_model(body.model, served=self._model)
        tokens = await asyncio.to_thread(self._count, body)
        return web.json_response({"input_tokens": tokens})

    def _count(self, body: CountRequest) -> int:
        prompt = body.conversation(self._prompts.chat.template)
        asked = Asked(model=body.model, prompt=prompt, limits=Limits(None, (), Sampling()), must_be=body.must_be())
        return len(self._prompts.prepare(asked).prompt.tokens)
