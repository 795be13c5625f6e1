"""Who is speaking: the agent, her context, and whether it is private, from headers or the request's metadata.

- Headers and metadata may both be given if they agree; where they differ the request is refused.
- Where an agent's key was given, it is that agent, and naming another is refused.
- Without any of them the agent is `anonymous`, who does not learn unless the policy says so by that name.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from daemon.http.access import KEYS, caller_of
from daemon.http.errors import BadRequest
from signals.records import AgentName, ContextName, Signal
from signals.weights import Trust

HEADER = "X-Ridealong-"
ANONYMOUS = "anonymous"


class Metadata(BaseModel):
    """The keys of a request's `metadata` that the lane knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: AgentName | None = None
    context: ContextName | None = None
    private: Annotated[bool | None, Field(description="true: nothing of this turn is kept or learned")] = None


class Speaker(BaseModel):
    """An agent in a context."""

    model_config = ConfigDict(frozen=True)

    agent: str = ANONYMOUS
    context: str = ""
    private: bool = False
    sender: Trust = Trust.AUTHENTICATED


def sender_of(request: web.Request) -> Trust:
    """How far whoever sent the request is trusted as a source: an operator's key approves."""
    by_key = bool(request.app[KEYS])
    return Trust.APPROVED if by_key and caller_of(request).is_operator else Trust.AUTHENTICATED


def speaker_of(request: web.Request, metadata: Metadata | None = None) -> Speaker:
    """Who sent this request.

    Raises:
        BadRequest: a name is not allowed, or headers and metadata disagree.
        Forbidden: the key is another agent's.
    """
    said = {} if metadata is None else metadata.model_dump(exclude_none=True)
    heard = _from_headers(request.headers)
    for key in heard.keys() & said.keys():
        if heard[key] != said[key]:
            raise BadRequest(
                f"the header {HEADER}{key.title()} says {heard[key]!r} and metadata.{key} says {said[key]!r}; "
                "give one of them, or the same in both",
                param=f"metadata.{key}",
            )
    named = said | heard
    agent = caller_of(request).meant(named.get("agent"))
    return Speaker(**(named | {"agent": agent or ANONYMOUS, "sender": sender_of(request)}))


def check_signals(request: web.Request, signals: Sequence[Signal]) -> Speaker:
    """Who sends these signals: the headers, where given, must name the agent and context that the signals do.

    Raises:
        BadRequest: a signal names another.
        Forbidden: a signal is of another agent than the key.
    """
    heard, caller = _from_headers(request.headers), caller_of(request)
    for signal in signals:
        caller.meant(signal.agent)
        for key, named in (("agent", signal.agent), ("context", signal.context)):
            if heard.get(key, named) != named:
                raise BadRequest(
                    f"the header {HEADER}{key.title()} is {heard[key]!r}, signal {signal.id!r} says {named!r}; "
                    "leave the header out, or send each agent's and context's signals by themselves",
                    param=key,
                )
    return Speaker(private=bool(heard.get("private", False)), sender=sender_of(request))


def _from_headers(headers: Mapping[str, str]) -> dict[str, str | bool]:
    names = [name for name in Metadata.model_fields if HEADER + name.title() in headers]
    given = {name: headers[HEADER + name.title()] for name in names}
    try:
        checked = Metadata.model_validate(given)
    except ValidationError as error:
        key = str(error.errors(include_input=False, include_context=False)[0]["loc"][0])
        raise BadRequest(
            f"the header {HEADER}{key.title()} is {given[key]!r}: {error.errors()[0]['msg']}", param=key
        ) from error
    return checked.model_dump(exclude_none=True)
