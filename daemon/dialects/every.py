"""Every dialect that is served, each with its handler."""

from typing import Protocol

from aiohttp import web

from daemon.dialects.anthropic_count import TokenCount
from daemon.dialects.anthropic_messages import AnthropicMessages
from daemon.dialects.handler import DialectHandler
from daemon.dialects.llama_completion import LlamaCompletion
from daemon.dialects.llama_text import text_endpoints
from daemon.dialects.openai_chat import OpenAIChat
from daemon.dialects.openai_completions import OpenAICompletions
from daemon.dialects.openai_responses import OpenAIResponses
from daemon.dialects.prompts import Prompts
from daemon.serving.turns import Turns


class Endpoint(Protocol):
    """A route, by POST, and its handler."""

    @property
    def path(self) -> str:
        """Where it is."""

    async def handle(self, request: web.Request, /) -> web.StreamResponse:
        """Serve a request."""


def dialect_handlers(turns: Turns, prompts: Prompts, *, model: str) -> list[Endpoint]:
    """The handlers of the routes that complete, or count what would be completed."""
    return [
        DialectHandler(OpenAIChat(), turns, prompts, model=model),
        DialectHandler(OpenAICompletions(), turns, prompts, model=model),
        DialectHandler(OpenAIResponses(prompts.chat.template), turns, prompts, model=model),
        DialectHandler(AnthropicMessages(prompts.chat.template), turns, prompts, model=model),
        TokenCount(prompts, model=model),
        DialectHandler(LlamaCompletion(prompts.chat), turns, prompts, model=model),
        *text_endpoints(prompts),
    ]
