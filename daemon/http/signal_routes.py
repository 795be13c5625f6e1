"""`POST /signals` and `GET /signals/{id}`: signals are taken, and what became of one is told.

- A list is taken whole or not at all. With `?each=true` each signal is answered by itself, with its `index` in the
  list: one that is wrong has an `error`, and the others are recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web
from pydantic import ValidationError

from daemon.http.access import caller_of
from daemon.http.bodies import body_of, parse_json, read_json
from daemon.http.error_answers import error_body
from daemon.http.errors import BadRequest, ServiceError, bad_field
from daemon.http.ledger_json import boolean_of, refusal_json, time_text
from daemon.http.speaker import Speaker, check_signals
from daemon.learning.boarding import Boarding
from daemon.learning.explaining import UNTOLD, explained
from daemon.learning.intake import Intake
from daemon.learning.policies import Policies
from daemon.learning.putting import conflict
from daemon.text.chat_template import HuggingFaceChat
from signals.policy import AgentPolicy
from signals.records import (
    MAX_SIGNALS,
    Action,
    Engram,
    Relevance,
    Signal,
    Verdict,
    parse_signal,
    parse_signals,
)
from signals.weights import Trust, origin_of, trust_in
from store import signals
from store.errors import Unknown
from store.records import KeptSignal
from store.store import Store

PATH = "/signals"


@dataclass(slots=True)
class _Given:
    """What a request has to say: signals, and by their index those that are none."""

    signals: dict[int, Signal]
    wrong: dict[int, ServiceError]
    form: Literal["one", "many"]


class SignalRoutes:
    """Takes signals, and tells what became of them."""

    def __init__(
        self, store: Store, intake: Intake, boarding: Boarding, policies: Policies, chat: HuggingFaceChat
    ) -> None:
        self._store = store
        self._intake = intake
        self._boarding = boarding
        self._policies = policies
        self._chat = chat

    def routes(self) -> list[web.RouteDef]:
        """What to serve."""
        return [
            web.post(PATH, self.take),
            web.get(f"{PATH}/{{id}}", self.one),
            web.get(f"{PATH}/{{id}}/explain", self.explain),
        ]

    async def take(self, request: web.Request) -> web.Response:
        """`POST /signals`: one, a list, or NDJSON."""
        if boolean_of(request.query, "each"):
            return await self._take_each(request)
        body = await _read(request)
        given = _parse_all(body)
        speaker = check_signals(request, given)
        taken = await self._intake.take(given, private=speaker.private, sender=speaker.sender)
        self._boarding.stir()
        bodies = [{"status": put.status} | signal_json(put.kept) for put in taken]
        return web.json_response(bodies if isinstance(body, list) else bodies[0])

    async def one(self, request: web.Request) -> web.Response:
        """`GET /signals/{id}`: what became of a signal."""
        kept = await self._seen(request)
        told = signal_json(kept) | told_by(kept, self._policies.of(kept.signal.agent))
        if kept.signal.kind == "engram":
            history = await self._store.read(signals.relevances_of, agent=kept.signal.agent, engram=kept.signal.id)
            told["relevances"] = [relevance_json(one) for one in history]
        return web.json_response(told)

    async def explain(self, request: web.Request) -> web.Response:
        """`GET /signals/{id}/explain`: the text of its lesson, and where each token's weight comes from."""
        kept = await self._seen(request)
        private = self._policies.is_private(kept.signal.agent, kept.signal.context)
        told = UNTOLD if private else await explained(self._store, self._chat, kept.signal.id)
        return web.json_response(signal_json(kept) | told)

    async def _seen(self, request: web.Request) -> KeptSignal:
        """The signal that a request names, if it is the caller's to see."""
        kept = await self._store.read(signals.signal_of, request.match_info["id"])
        if not caller_of(request).may_see(kept.signal.agent):
            raise Unknown("signal", request.match_info["id"])
        return kept

    async def _take_each(self, request: web.Request) -> web.Response:
        given = await _read_each(request)
        speaker = Speaker()
        for index, signal in list(given.signals.items()):
            try:
                speaker = check_signals(request, [signal])
                self._intake.check_tokens(signal)
            except ServiceError as error:
                given.wrong[index] = error
                del given.signals[index]
        told = {index: _error_json(error) for index, error in given.wrong.items()}
        if given.signals:
            private, sender = speaker.private, speaker.sender
            taken = await self._intake.take([*given.signals.values()], private=private, sender=sender, each=True)
            self._boarding.stir()
            for index, put in zip(given.signals, taken, strict=True):
                clash = _error_json(conflict(put.id, each=True)) if put.status == "conflict" else None
                told[index] = clash or {"status": put.status} | signal_json(put.kept)
        bodies = [{"index": index} | told[index] for index in sorted(told)]
        return web.json_response(bodies if given.form == "many" else bodies[0])


async def _read(request: web.Request) -> Any:
    """A JSON object, a JSON list, or a JSON object a line."""
    if request.content_type == "application/x-ndjson":
        return [parse_json(line) for line in _lines(request)]
    return await read_json(request)


def _parse_all(body: Any) -> list[Signal]:
    try:
        return parse_signals(body)
    except ValidationError as error:
        raise bad_field(error) from error


async def _read_each(request: web.Request) -> _Given:
    """The signals of a request, and what is wrong with the rest."""
    ndjson = request.content_type == "application/x-ndjson"
    body: Any = _lines(request) if ndjson else await read_json(request)
    many: Sequence[Any] = body if isinstance(body, list) else [body]
    if not 1 <= len(many) <= MAX_SIGNALS:
        raise BadRequest(f"{len(many)} signals were given; give 1 to {MAX_SIGNALS} in a request")
    given = _Given({}, {}, "many" if isinstance(body, list) else "one")
    for index, one in enumerate(many):
        try:
            given.signals[index] = parse_signal(parse_json(one) if ndjson else one)
        except ValidationError as error:
            given.wrong[index] = bad_field(error)
        except BadRequest as error:
            given.wrong[index] = error
    return given


def _lines(request: web.Request) -> list[bytes]:
    return [line for line in body_of(request).splitlines() if line.strip()]


def _error_json(error: ServiceError) -> dict[str, Any]:
    return {"status": "error"} | error_body(error, PATH)


def signal_json(kept: KeptSignal) -> dict[str, Any]:
    """A signal and its fate as JSON."""
    return {
        "id": kept.signal.id,
        "kind": kept.signal.kind,
        "agent": kept.signal.agent,
        "context": kept.signal.context,
        "state": kept.state,
        "received_at": time_text(kept.received_at_us),
        "lesson": kept.lesson,
        "refusal": refusal_json(kept.code, kept.message, kept.position),
        "step": kept.step_number,
        "loss_before": kept.loss_before,
        "loss_after": kept.loss_after,
    }


def told_by(kept: KeptSignal, policy: AgentPolicy) -> dict[str, Any]:
    """What a signal says of itself beside its words: of one that is private nothing is left but who sent it."""
    sender = Trust(kept.signal.sender)
    if kept.signal.body is None:
        return {"trust": sender}
    signal = parse_signal(dict(kept.signal.body))
    match signal:
        case Relevance() | Verdict():
            return {"trust": sender}
        case Engram():
            own: dict[str, Any] = {"engram_kind": signal.engram_kind, "await_verdict": signal.await_verdict}
        case Action():
            own = {"await_verdict": signal.await_verdict}
        case _:
            own = {}
    return {"trust": trust_in(origin_of(signal), sender, policy)} | own


def relevance_json(kept: KeptSignal) -> dict[str, Any]:
    """One of the relevances that were told of an engram."""
    assert kept.signal.body is not None, f"relevance {kept.signal.id} has no body"
    return {
        "id": kept.signal.id,
        "relevance": kept.signal.body["relevance"],
        "received_at": time_text(kept.received_at_us),
    }
