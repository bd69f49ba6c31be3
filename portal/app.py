"""The application: parts opened, routes gathered, every error made a problem."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from db.errors import DatabaseError, Refused
from portal import accepting, batches, description, documents, event_routes, heads, health, jobs, previews
from portal.callers import SUBMIT, called
from portal.context import Portal
from portal.database import opened
from portal.door import Door, visit
from portal.express import Express, Handler, Stop
from portal.health import Readiness
from portal.identity import Identities
from portal.joint_commit import JointCommit
from portal.limits import Backlogs, Rates
from portal.problems import Fault, Problem, answer
from portal.streams import Hub
from runtime.blobs import BlobStore, BlobStoreFull, BlobStoreUnavailable
from runtime.logs import get_logger
from runtime.settings import Settings

log = get_logger(__name__)

_MODULES = (documents, accepting, jobs, previews, batches, event_routes, health)
ROUTERS = (*(m.router for m in _MODULES), heads.router(m.router for m in _MODULES))


def _lifespan(config: Settings) -> Any:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        blobs = await asyncio.to_thread(BlobStore, config.blobs)
        if swept := await asyncio.to_thread(blobs.sweep):
            log.info("swept what writers left behind", files=swept)
        async with opened(config.database_url.get_secret_value()) as database:
            streams = Hub(database)
            app.state.readiness = Readiness(database)
            app.state.portal = Portal(
                settings=config,
                database=database,
                blobs=blobs,
                identities=Identities(database),
                rates=Rates(config.team_requests_per_second),
                backlogs=Backlogs(database),
                joint=JointCommit(database),
                streams=streams,
            )
            task = asyncio.create_task(streams.run())
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                await app.state.portal.joint.close()
                app.state.portal.parser.shutdown(wait=False)

    return lifespan


def create(config: Settings) -> FastAPI:
    """Return the application for these settings; its parts are opened by its lifespan."""
    app = FastAPI(
        title="oncommit",
        version="1",
        description=description.TEXT,
        lifespan=_lifespan(config),
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    for router in ROUTERS:
        app.include_router(router)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _unexpected)
    app.openapi = lambda: description.described(app)  # type: ignore[method-assign]  # FastAPI's documented way
    return app


def doored(app: FastAPI) -> Door:
    """Return the application behind its door: what a server serves."""
    return Door(Express(app, {("POST", "/v1/jobs"): Stop(_route("post_job"), _post_job)}, HANDLERS))


def _route(name: str) -> BaseRoute:
    return next(route for route in accepting.router.routes if isinstance(route, Route) and route.name == name)


async def _post_job(request: Request) -> Response:
    """Do what FastAPI does for this route: ask what it depends on, and then it."""
    return await accepting.post_job(request, await called(request, SUBMIT))


def _told(request: Request, problem: Problem) -> Response:
    return answer(problem, visit(request).trace.trace_id)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101 -- registered for it
    return _told(request, error)


async def _invalid(request: Request, error: Exception) -> Response:
    """Tell wrong query parameters; bodies are judged elsewhere."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- registered for it
    found = [Fault("/".join(str(step)[:100] for step in e["loc"][1:]), str(e["msg"])) for e in error.errors()]
    return _told(request, Problem("invalid-request", errors=found))


async def _http(request: Request, error: Exception) -> Response:
    """Tell what Starlette raises: no route, no method."""
    assert isinstance(error, HTTPException)  # noqa: S101 -- registered for it
    if error.status_code == 405:  # noqa: PLR2004 -- its name follows
        return _told(request, Problem("method-not-allowed", headers={"Allow": _methods(request)}))
    slug = "not-found" if error.status_code == 404 else "malformed-http"  # noqa: PLR2004 -- see the slug
    return _told(request, Problem(slug, headers=dict(error.headers or {})))


def _methods(request: Request) -> str:
    """Return every method of the resource; Starlette names those of the first route that it finds."""
    pages: list[BaseRoute] = request.app.routes  # those of the description; the others are in the routers
    routes = [r for r in (*pages, *(r for one in ROUTERS for r in one.routes)) if isinstance(r, Route)]
    path = request.url.path
    return ", ".join(sorted({m for r in routes if r.path_regex.match(path) for m in r.methods or ()}))


async def _database(request: Request, error: Exception) -> Response:
    """Tell database trouble, always 503: the caller cannot mend it, and asking again finds out."""
    if isinstance(error, Refused):
        log.error("the database refused a statement", error=str(error), exc_info=error)
    else:
        log.warning("database trouble", error=str(error), kind=type(error).__name__)
    return _told(request, Problem("database-unavailable"))


async def _full(request: Request, _: Exception) -> Response:
    log.error("the blob store is full")
    return _told(request, Problem("storage-full"))


async def _no_store(request: Request, error: Exception) -> Response:
    log.error("the blob store does not work", exc_info=error)
    return _told(request, Problem("storage-unavailable"))


async def _unexpected(request: Request, _: Exception) -> Response:
    return _told(request, Problem("internal"))  # the door logs it: Starlette raises it again


HANDLERS: Mapping[type[Exception], Handler] = {
    Problem: _problem,
    RequestValidationError: _invalid,
    HTTPException: _http,
    DatabaseError: _database,
    BlobStoreFull: _full,
    BlobStoreUnavailable: _no_store,
}
