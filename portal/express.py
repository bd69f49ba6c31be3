"""Express: the route that is asked most goes to its endpoint directly.

FastAPI's layers (middleware, routers in routers, dependencies, an exit stack) cost a request more than all
that the endpoint itself does with it. They stay what they are for every other route, and the description is
theirs; an endpoint here is the same function behind the same door, and its errors go to the same handlers.
tests/portal/test_express.py asks both ways and compares.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, Exception], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the express stops: the route as the application has it, and what answers in its place."""

    route: BaseRoute
    endpoint: Endpoint


class Express:
    """The application, with some of its routes by the short way: (method, path) -> stop."""

    def __init__(
        self,
        app: FastAPI,
        stops: Mapping[tuple[str, str], Stop],
        handlers: Mapping[type[Exception], Handler],
    ) -> None:
        self._app = app
        self._stops = stops
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        stop = self._stops.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if stop is None:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        scope["route"] = stop.route
        request = Request(scope, receive, send)
        try:
            response = await stop.endpoint(request)
        except Exception as error:
            handler = self._handler(error)
            if handler is None:  # a mistake of ours, or the client left: the door's to tell
                raise
            response = await handler(request, error)
            error.__traceback__ = None  # of one that several requests share it would grow
        await response(scope, receive, send)

    def _handler(self, error: Exception) -> Handler | None:
        return next((self._handlers[kind] for kind in type(error).__mro__ if kind in self._handlers), None)
