"""The server: uvicorn, with an end to slow headers and with problems for what is no HTTP.

h11 rather than httptools: pure Python of one behaviour everywhere, with a bound on the header's size. What is
asked most, in the form in which nearly all ask it, is read before h11 sees it: portal/short_requests.py.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from portal import problems, short_requests
from portal.problems import Problem
from portal.short_requests import Headers, ShortCycle

#: A request line and headers have so long to arrive, seconds, from the connection or the first byte.
HEADER_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 5


class Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, which by itself waits for headers for ever and answers junk with plain text."""

    _header_timer: asyncio.TimerHandle | None = None
    #: What came while a short request was answered.
    _later = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the first request its time."""
        super().connection_made(transport)
        self._wait_for_header()

    def data_received(self, data: bytes) -> None:
        """Take bytes, and give a request that has begun its time."""
        if isinstance(self.cycle, ShortCycle) and not self.cycle.response_complete:
            self._later += data
            self.flow.pause_reading()
            return
        if self._idle() and (short := short_requests.read(data)) is not None:
            self._stop_waiting()
            self._unset_keepalive_if_required()
            self._answer(*short)
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._header_timer is None:
            self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer with the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Go on with what came meanwhile."""
        super().on_response_complete()
        if self._later and not self.transport.is_closing():
            later, self._later = self._later, b""
            self.data_received(later)

    def _idle(self) -> bool:
        """Tell whether h11 has nothing in hand."""
        both = self.conn.states
        return both[h11.CLIENT] is h11.IDLE is both[h11.SERVER] and not self.conn.trailing_data[0]

    def _answer(self, headers: Headers, body: bytes) -> None:
        """Have a short request answered, as uvicorn does any."""
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": short_requests.METHOD,
            "root_path": self.root_path,
            "path": short_requests.PATH,
            "raw_path": short_requests.PATH.encode(),
            "query_string": b"",
            "headers": headers,
            "state": self.app_state.copy(),
        }
        self.scope, self.headers = scope, headers
        self.cycle = ShortCycle(
            body=body,
            scope=scope,
            conn=self.conn,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            on_response=self.on_response_complete,
        )
        app = cast("Any", self.app)  # pyright: ignore[reportUnknownMemberType] -- uvicorn loads any kind
        task = self.loop.create_task(self.cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as a problem: 400, or 431 for too much of it."""
        del msg
        error = sys.exception()
        too_large = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431  # noqa: PLR2004
        self._refuse(Problem("headers-too-large" if too_large else "malformed-http"))

    def _wait_for_header(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_slow(self) -> None:
        self._header_timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._refuse(Problem("too-slow"))

    def _refuse(self, problem: Problem) -> None:
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = problems.encoded(problem, None)
            head = [
                *self.server_state.default_headers,  # the date
                (b"Content-Type", problems.MEDIA_TYPE.encode()),
                (b"Content-Length", b"%d" % len(body)),
                (b"X-Content-Type-Options", b"nosniff"),
                (b"Connection", b"close"),
            ]
            for event in (
                h11.Response(status_code=problem.kind.status, headers=head),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server, which tells when it listens and when it is about to stop."""

    def __init__(
        self, config: uvicorn.Config, listening: Callable[[], None], stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._listening = listening
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, then say so."""
        await super().startup(sockets)
        if self.started:
            self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams first: uvicorn waits for every answer that has begun."""
        self._stopping()
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to (host, port); port 0 takes any free one.

    Raises:
        OSError: the address is taken or not this machine's.

    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError:
        found.close()
        raise
    return found
