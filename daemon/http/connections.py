"""The port: connections, how many there may be, and how long each may keep others waiting.

- A connection without a whole request head, from its opening or its last answer on, is closed after a while:
  it is idle, or its head comes a byte at a time.
- One that takes nothing of what is sent to it for a while is cut off, which cancels its handler and its turn.
- One too many is answered 503 and closed, whatever it asks.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from aiohttp import web

from daemon.config import Settings
from daemon.http.error_answers import error_body
from daemon.http.errors import Unavailable
from daemon.http.limits import RETRY_SECONDS

LINGER_SECONDS = 1.0
"""How long what comes after an answer is read and dropped, so that the answer is not lost by a reset."""

FLUSH_SECONDS = 0.5
"""How long an answer that is being written may take when the service stops; everything else has ended."""


class Connection(web.RequestHandler):
    """One client's connection."""

    def __init__(self, door: "Door", server: web.Server) -> None:
        settings = door.settings
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own way to have none
            keepalive_timeout=settings.keep_alive_seconds,
            lingering_time=min(LINGER_SECONDS, settings.read_seconds),
        )
        self._door = door
        self._wire: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is there. Whatever the system does not take at once counts as unsent."""
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has gone."""
        self._look_away()
        self._door.left(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Something is unsent."""
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        """Everything is sent."""
        self._look_away()
        super().resume_writing()

    def cut_off(self) -> None:
        """Close now, and drop what is unsent."""
        if self._wire is not None:
            _reset(self._wire)

    def _look_again(self) -> None:
        assert self._wire is not None, "a connection that was not made cannot be paused"
        seconds, unsent = self._door.settings.write_seconds, self._wire.get_write_buffer_size()
        self._watch = self._loop.call_later(seconds, self._judge, self._wire, unsent)

    def _judge(self, wire: asyncio.Transport, unsent: int) -> None:
        """Has the client taken anything since it was last looked at?"""
        if wire.get_write_buffer_size() < unsent:
            self._look_again()
        else:
            _reset(wire)

    def _look_away(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


class Door:
    """Lets connections in, so many at once."""

    def __init__(self, server: web.Server, settings: Settings) -> None:
        self.settings = settings
        self._server = server
        self._open: set[Connection] = set()

    def __call__(self) -> asyncio.Protocol:
        """The protocol of a connection that is being made."""
        if len(self._open) >= self.settings.max_connections:
            return _Refusal()
        connection = Connection(self, self._server)
        self._open.add(connection)
        return connection

    def left(self, connection: Connection) -> None:
        """A connection is closed."""
        self._open.discard(connection)

    def cut_off(self) -> None:
        """Close every connection that is still open."""
        for connection in self._open:
            connection.cut_off()


class _Refusal(asyncio.Protocol):
    """A connection too many: the first it says is answered 503. It is closed soon, even if it says nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        self._answered = False
        self._end = asyncio.get_running_loop().call_later(LINGER_SECONDS, transport.abort)

    def data_received(self, _data: bytes) -> None:
        if not self._answered:
            self._answered = True
            self._wire.write(_refusal())

    def connection_lost(self, _exc: BaseException | None) -> None:
        self._end.cancel()


def _refusal() -> bytes:
    error = Unavailable(
        "this lane has as many connections as it takes; close one, or raise --max-connections",
        retry_after_seconds=RETRY_SECONDS,
    )
    body = json.dumps(error_body(error, "")).encode()
    head = {
        **error.headers,
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"HTTP/1.1 {error.status} Service Unavailable\r\n{lines}\r\n".encode() + body


def _reset(wire: asyncio.Transport) -> None:
    """End a connection at once, on the other side too: the system is not left with what was never taken."""
    connection = wire.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.abort()


@asynccontextmanager
async def listening(app: web.Application, settings: Settings) -> AsyncIterator[str]:
    """Open the port and write the ready file; a client that goes away cancels its handler."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=FLUSH_SECONDS)
    await runner.setup()
    assert runner.server is not None, "the runner was set up"
    door = Door(runner.server, settings)
    try:
        port = await asyncio.get_running_loop().create_server(door, settings.host, settings.port)
        try:
            with _said(settings.ready_file, _url(port)) as url:
                yield url
        finally:
            port.close()
    finally:
        await runner.cleanup()
        door.cut_off()


def _url(port: asyncio.Server) -> str:
    host, number = port.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{number}" if ":" in host else f"http://{host}:{number}"


@contextmanager
def _said(ready_file: Path | None, url: str) -> Iterator[str]:
    """Have the ready file hold the URL for as long as the block runs."""
    if ready_file is None:
        yield url
        return
    aside = ready_file.with_name(ready_file.name + ".writing")
    aside.write_text(url + "\n")
    aside.replace(ready_file)
    try:
        yield url
    finally:
        ready_file.unlink(missing_ok=True)
