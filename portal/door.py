"""The door: what happens to every request, whatever it asks for.

A trace and one log line; metrics with bounded labels; headers that every answer carries; a body that
was not read is not read (the answer goes out first, and the connection ends); a mistake of ours is an
answer as well.
"""

import asyncio
import logging
import time
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from portal import request_lines, tracing, wellformed
from portal.problems import Problem, answer
from runtime import metrics
from runtime.logs import get_logger
from runtime.tracing import Here, span

log = get_logger(__name__)

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
#: Probes and scrapes come every few seconds for ever; they are logged at debug.
QUIET = frozenset({"/livez", "/readyz", "/metrics"})
#: A client that is still sending gets the answer only if somebody takes its bytes for a moment: closing
#: with unread bytes resets the connection, and the answer with it. Thrown away, never kept.
LINGER_SECONDS = 1.0
LINGER_BYTES = 1 << 20
#: nginx's number for: the client left. Nobody is sent it; it is counted.
LEFT = 499
#: An unknown path is somebody's guess; enough of it to recognise.
LOGGED_PATH = 100


class Visit:
    """What is noted about one request while it lasts."""

    def __init__(self, headers: Headers, recorded: str | None) -> None:
        # Where spans are recorded, this request's span is the recorder's; else it is only a name.
        self.trace = tracing.named(recorded) if recorded else tracing.join(headers.get("traceparent"))
        #: Headers that the answer will carry, whoever makes it.
        self.headers: dict[str, str] = {}
        self.status = 0
        self.unread = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def visit(request: Request) -> Visit:
    """Return the notes on this request."""
    found: Visit = request.state.visit
    return found


class Door:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = wellformed.in_origin_form(scope)
        headers = Headers(scope=scope)
        if scope["path"] in QUIET:  # a trace of every probe would bury the others
            await self._serve(scope, receive, send, Visit(headers, None), None)
            return
        with span("request", headers.get("traceparent")) as here:
            await self._serve(scope, receive, send, Visit(headers, here.traceparent), here)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, found: Visit, here: Here | None
    ) -> None:
        scope.setdefault("state", {})["visit"] = found
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(trace=found.trace.trace_id)
        passage = _Passage(found, receive, send)
        started = time.perf_counter()
        try:
            refused = wellformed.refusal(scope)
            app = answer(refused, found.trace.trace_id) if refused else self.app
            await app(scope, passage.receive, passage.send)
        except ClientDisconnect:
            log.info("the client left before its request was complete")
            found.status = LEFT  # on the way here Starlette answers 500, to nobody
        except asyncio.CancelledError:
            # The grace of a stop is over: uvicorn would answer 500, in plain text. What this request came to
            # is not known here; sent again with its key it finds out.
            if not found.status:
                await answer(Problem("overloaded"), found.trace.trace_id)(
                    scope, passage.receive, passage.send
                )
        except Exception:
            log.exception("unexpected")
            if not found.status:
                await answer(Problem("internal"), found.trace.trace_id)(scope, passage.receive, passage.send)
        finally:
            _tell(scope, found, time.perf_counter() - started, here)
            structlog.contextvars.clear_contextvars()


class _Passage:
    """One request's receive and send, with an eye on what passes."""

    def __init__(self, found: Visit, receive: Receive, send: Send) -> None:
        self.visit = found
        self._receive = receive
        self._send = send
        self._closing = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.visit.unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.visit.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Cache-Control", "no-store")
            for name, value in self.visit.headers.items():
                headers[name] = value
            if self.visit.unread:
                self._closing = True
                headers["Connection"] = "close"
        elif self._closing and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _linger(self) -> None:
        left = LINGER_BYTES
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while self.visit.unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass


def _tell(scope: Scope, found: Visit, seconds: float, here: Here | None) -> None:
    route: Any = scope.get("route")
    template = str(getattr(route, "path", "other"))
    method = scope["method"] if scope["method"] in METHODS else "other"
    status = found.status or LEFT
    metrics.count("http_requests_total", method=method, route=template, status=str(status))
    metrics.observe("http_request_seconds", seconds, method=method, route=template)
    if here is not None:
        here.tell(f"{method} {template}", **{"http.response.status_code": status})
    where = scope["path"][:LOGGED_PATH] if template == "other" else template
    request_lines.tell(
        logging.DEBUG if template in QUIET else logging.INFO,
        method=method,
        route=where,
        status=status,
        milliseconds=round(seconds * 1000, 2),
    )
