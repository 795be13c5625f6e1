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
from daemon.http.ledger_json import boolean_of, time_text
from daemon.http.speaker import check_signals
from daemon.learning.boarding import Boarding
from daemon.learning.intake import Intake, conflict
from signals.records import MAX_SIGNALS, Signal, parse_signal, parse_signals
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

    def __init__(self, store: Store, intake: Intake, boarding: Boarding) -> None:
        self._store = store
        self._intake = intake
        self._boarding = boarding

    def routes(self) -> list[web.RouteDef]:
        """What to serve."""
        return [web.post(PATH, self.take), web.get(f"{PATH}/{{id}}", self.one)]

    async def take(self, request: web.Request) -> web.Response:
        """`POST /signals`: one, a list, or NDJSON."""
        if boolean_of(request.query, "each"):
            return await self._take_each(request)
        body = await _read(request)
        given = _parse_all(body)
        speaker = check_signals(request, given)
        taken = await self._intake.take(given, private=speaker.private)
        self._boarding.stir()
        bodies = [{"status": put.status} | signal_json(kept) for put, kept in taken]
        return web.json_response(bodies if isinstance(body, list) else bodies[0])

    async def one(self, request: web.Request) -> web.Response:
        """`GET /signals/{id}`: what became of a signal."""
        kept = await self._store.read(signals.signal_of, request.match_info["id"])
        if not caller_of(request).may_see(kept.signal.agent):
            raise Unknown("signal", request.match_info["id"])
        return web.json_response(signal_json(kept))

    async def _take_each(self, request: web.Request) -> web.Response:
        given = await _read_each(request)
        private = False
        for index, signal in list(given.signals.items()):
            try:
                private = check_signals(request, [signal]).private
                self._intake.check_tokens(signal)
            except ServiceError as error:
                given.wrong[index] = error
                del given.signals[index]
        told = {index: _error_json(error) for index, error in given.wrong.items()}
        if given.signals:
            taken = await self._intake.take([*given.signals.values()], private=private, each=True)
            self._boarding.stir()
            for index, (put, kept) in zip(given.signals, taken, strict=True):
                clash = put.status == "conflict"
                fate = (
                    _error_json(conflict(put.id, each=True))
                    if clash
                    else {"status": put.status} | signal_json(kept)
                )
                told[index] = fate
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
    refusal = None
    if kept.code is not None:
        refusal = {"code": kept.code, "message": kept.message, "position": kept.position}
    return {
        "id": kept.signal.id,
        "kind": kept.signal.kind,
        "agent": kept.signal.agent,
        "context": kept.signal.context,
        "state": kept.state,
        "received_at": time_text(kept.received_at_us),
        "lesson": kept.lesson,
        "refusal": refusal,
        "step": kept.step_number,
        "loss_before": kept.loss_before,
        "loss_after": kept.loss_after,
    }
