"""How many tokens a prompt is, without serving it: Anthropic's `POST /v1/messages/count_tokens`.

It is prepared exactly as `POST /v1/messages` prepares it, so that it is what a turn then has for its prompt.
"""

import asyncio

from aiohttp import web
from pydantic import ValidationError

from daemon.dialects.anthropic_request import CountRequest
from daemon.dialects.asked import Asked
from daemon.dialects.handler import check_model
from daemon.dialects.prompts import Prompts
from daemon.errors import bad_field, read_json
from daemon.turns import Limits
from engine.sampling import Sampling


class TokenCount:
    """Serves the route."""

    path = "/v1/messages/count_tokens"

    def __init__(self, prompts: Prompts, *, model: str) -> None:
        self._prompts = prompts
        self._model = model

    async def handle(self, request: web.Request) -> web.Response:
        """Count a prompt's tokens."""
        try:
            body = CountRequest.model_validate(await read_json(request))
        except ValidationError as error:
            raise bad_field(error) from error
        check_model(body.model, served=self._model)
        tokens = await asyncio.to_thread(self._count, body)
        return web.json_response({"input_tokens": tokens})

    def _count(self, body: CountRequest) -> int:
        prompt = body.conversation(self._prompts.chat.template)
        asked = Asked(model=body.model, prompt=prompt, limits=Limits(None, (), Sampling()), must_be=body.must_be())
        return len(self._prompts.prepare(asked).prompt.tokens)
