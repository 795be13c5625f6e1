"""llama-server's ways between text, tokens and conversations: `POST /tokenize`, `/detokenize`, `/apply-template`.

They are the lane's own: the same tokenizer and the same rendering as those of the turns it serves.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from aiohttp import web
from pydantic import Field, TypeAdapter

from daemon.dialects.asked import Asked, Conversation
from daemon.dialects.openai_messages import ChatMessage
from daemon.dialects.openai_tools import ChatTool
from daemon.dialects.prompts import Prompts
from daemon.dialects.strict import GivenOnly
from daemon.http.bodies import read_as
from daemon.http.errors import BadRequest
from daemon.serving.turns import Limits
from engine.sampling import Sampling
from signals.records import Index, JsonObject, Text

T = TypeVar("T")


class TokenizeRequest(GivenOnly):
    """A text to be cut into tokens."""

    content: Text
    add_special: bool = False
    parse_special: Literal[True] = True
    with_pieces: bool = False


class DetokenizeRequest(GivenOnly):
    """Tokens to be written out."""

    tokens: tuple[Index, ...]


class ApplyTemplateRequest(GivenOnly):
    """A conversation to be rendered as a turn's prompt is."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: tuple[ChatTool, ...] = ()
    chat_template_kwargs: JsonObject = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextEndpoint(Generic[T]):
    """A route that turns one JSON object into another, on a thread."""

    path: str
    body: TypeAdapter[T]
    answer: Callable[[T], Mapping[str, Any]]

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request."""
        asked = await read_as(request, self.body)
        return web.json_response(await asyncio.to_thread(self.answer, asked))


def text_endpoints(prompts: Prompts) -> list[TextEndpoint[Any]]:
    """The three routes."""
    texts = _Texts(prompts)
    return [
        TextEndpoint("/tokenize", TypeAdapter(TokenizeRequest), texts.tokenize),
        TextEndpoint("/detokenize", TypeAdapter(DetokenizeRequest), texts.detokenize),
        TextEndpoint("/apply-template", TypeAdapter(ApplyTemplateRequest), texts.apply_template),
    ]


class _Texts:
    """The answers."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._chat = prompts.chat

    def tokenize(self, asked: TokenizeRequest) -> Mapping[str, Any]:
        """The tokens of a text, with what each stands for if asked."""
        self._prompts.texts.check(asked.content, param="content")
        encode = self._chat.encode_prompt if asked.add_special else lambda text: self._chat.encode(text).ids
        tokens = encode(asked.content)
        if not asked.with_pieces:
            return {"tokens": tokens}
        texts = self._chat.token_texts
        return {"tokens": [{"id": token, "piece": _piece(texts.bytes_of(token))} for token in tokens]}

    def detokenize(self, asked: DetokenizeRequest) -> Mapping[str, Any]:
        """The text of tokens, special ones included."""
        most = self._chat.vocabulary_tokens - 1
        unknown = next((token for token in asked.tokens if token > most), None)
        if unknown is not None:
            raise BadRequest(f"tokens: there is no token {unknown}; this model's are 0 to {most}", param="tokens")
        return {"content": self._chat.decode(asked.tokens)}

    def apply_template(self, asked: ApplyTemplateRequest) -> Mapping[str, Any]:
        """The prompt that a turn of this conversation would have."""
        messages = tuple(message.for_template() for message in asked.messages)
        tools = tuple(tool.for_template() for tool in asked.tools)
        prompt = Conversation(messages, tools, asked.chat_template_kwargs)
        turn = Asked(model=None, prompt=prompt, limits=Limits(None, (), Sampling()))
        return {"prompt": self._prompts.prepare(turn).text}


def _piece(piece: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are no whole character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
