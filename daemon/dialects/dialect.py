"""What a dialect is: a request model, what such a request asks, and how its answer is written."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from daemon.dialects.answer import Answer, Delta, Event, Opening
from daemon.dialects.asked import Asked
from daemon.http.errors import ServiceError

R = TypeVar("R", bound=BaseModel)


class EventWriter(Protocol):
    """Writes one streamed answer. Nothing here adds `learn`: the handler puts it into an event of `end`."""

    def begin(self) -> Iterable[Event]:
        """The events before the first token."""

    def delta(self, delta: Delta, /) -> Iterable[Event]:
        """The events of what came."""

    def end(self, answer: Answer, /) -> Iterable[Event]:
        """The last events, at least one; the turns are recorded by then. Without a mark the last tells `learn`."""

    def error(self, error: ServiceError, /) -> Event:
        """The event that ends a stream which has begun and failed."""


class Dialect(Protocol[R]):
    """One way to ask for completions."""

    @property
    def path(self) -> str:
        """Where it is asked, by POST."""

    @property
    def request(self) -> type[R]:
        """The body, as it is parsed; a field it doesn't have is refused by name."""

    @property
    def closing(self) -> bytes:
        """What ends a stream, after its last event."""

    def asked(self, request: R, /) -> Asked:
        """What the request asks for.

        Raises:
            BadRequest: it cannot be served as asked; the parameter is named.
        """

    def body(self, request: R, answer: Answer, /) -> Mapping[str, Any]:
        """The answer that isn't streamed, without `learn`: the handler adds it."""

    def writer(self, request: R, opening: Opening, /) -> EventWriter:
        """Whatever writes the answer that is streamed."""
