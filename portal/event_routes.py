"""Events: GET /v1/jobs/{id}/events and /v1/batches/{id}/events, as JSON or as a stream.

The stream is text/event-stream (WHATWG HTML, "Server-sent events"): the id of an event is what
`Last-Event-ID` gives back, a comment every 15 s keeps the connection, and the end follows the
terminal event. A client that asks again after it gets 204, which tells an EventSource to stop.
"""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from db import reads
from db.jobs import Event
from db.reads import BatchRow
from portal.answers import as_json, told, with_headers
from portal.batches import known_batch
from portal.callers import Reader
from portal.context import portal
from portal.jobs import known_job
from portal.problems import Fault, Problem
from portal.resources import Batch, JobEvents, batch_json, event_json
from portal.streams import Watch

router = APIRouter(prefix="/v1", tags=["events"])

STREAM = "text/event-stream"
#: Proxies commonly cut a connection after 30 to 60 s of silence.
HEARTBEAT_SECONDS = 15.0
#: Then the client comes back with Last-Event-ID: connections spread anew over the portals.
LONGEST_SECONDS = 3600.0
#: What a client waits before it comes back, milliseconds.
COME_BACK = b"retry: 1000\n\n"
MAX_SEQ = 2**31 - 1
MAX_EVENTS = 2**63 - 1  # of a whole batch
RATES = with_headers("RateLimit", "RateLimit-Policy")


def _comes_back(most: int) -> dict[str, Any]:
    """Return the declaration of Last-Event-ID."""
    return {
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "description": "the last id that the client has of this stream",
                "schema": {"type": "integer", "minimum": 0, "maximum": most},
            }
        ]
    }


class EventQuery(BaseModel):
    """Which events."""

    model_config = ConfigDict(extra="forbid")

    after: int = Field(default=0, ge=0, le=MAX_SEQ, description="only events with a higher seq")
    limit: int = Field(default=1000, ge=1, le=1000, description="events on a page (JSON only)")


def _responses(what: str) -> dict[int | str, dict[str, Any]]:
    stream = {"schema": {"type": "string"}, "example": f"id: 3\nevent: {what}\ndata: {{}}\n\n"}
    return {
        200: {"content": {STREAM: stream}, "headers": RATES | with_headers("X-Accel-Buffering")},
        204: {"description": "the stream was followed to its end", "headers": RATES},
        **told("not-found", "invalid-request", "overloaded"),
    }


@router.get(
    "/jobs/{job_id}/events",
    response_model=JobEvents,
    responses=_responses("succeeded"),
    openapi_extra=_comes_back(MAX_SEQ),
    summary="See what happened to a job, or follow it",
)
async def get_job_events(
    request: Request, job_id: str, query: Annotated[EventQuery, Query()], caller: Reader
) -> Response:
    """Answer the job's events: as JSON, or as a stream to a client that accepts `text/event-stream`."""
    after = _last_event_id(request, query.after, MAX_SEQ)
    job = await known_job(request, caller.team, job_id)
    if _wants_stream(request):
        if job.terminal and after >= job.version:
            return Response(status_code=204)
        return _stream(request, "job", job.id, after, caller.token)
    events = await portal(request).database.run(
        lambda conn: reads.events(conn, caller.team, job.id, query.after, query.limit + 1)
    )
    page = events[: query.limit]
    following = page[-1].seq if len(events) > query.limit else None
    return as_json({"events": [event_json(e) for e in page], "next": following})


@router.get(
    "/batches/{batch_id}/events",
    response_model=Batch,
    responses=_responses("progress"),
    openapi_extra=_comes_back(MAX_EVENTS),
    summary="See how far a batch is, or follow it",
)
async def get_batch_events(request: Request, batch_id: str, caller: Reader) -> Response:
    """Answer the batch as it is; or a stream of `progress`, and `finished` at the end.

    An event's id is the number of events that the batch's jobs have had. Several changes between two
    looks are one event: it shows the state, and nothing is lost by missing one.
    """
    after = _last_event_id(request, 0, MAX_EVENTS)
    batch = await known_batch(request, caller.team, batch_id)
    if not _wants_stream(request):
        return as_json(batch_json(batch))
    if batch.finished and after >= batch.events:
        return Response(status_code=204)
    return _stream(request, "batch", batch.id, after, caller.token)


def _wants_stream(request: Request) -> bool:
    accepted = (
        part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")
    )
    return STREAM in accepted


def _last_event_id(request: Request, otherwise: int, most: int) -> int:
    header = request.headers.get("last-event-id")
    if header is None:
        return otherwise
    if not (header.isascii() and header.isdigit() and len(header) < 20 and int(header) <= most):  # noqa: PLR2004
        raise Problem("invalid-request", errors=[Fault("Last-Event-ID", "not an id of this stream")])
    return int(header)


def _stream(
    request: Request, of: Literal["job", "batch"], subject: UUID, after: int, token: UUID
) -> Response:
    if request.method == "HEAD":
        return _streamed(_nothing())
    place = portal(request).streams.watch(of, subject, after, token)
    found = place.__enter__()  # before the answer begins, so that too many streams are a 503

    async def body() -> AsyncIterator[bytes]:
        try:
            yield COME_BACK
            async for part in _parts(found):
                yield part
        finally:
            place.__exit__(None, None, None)

    return _streamed(body())


def _streamed(body: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(body, media_type=STREAM, headers={"X-Accel-Buffering": "no"})


async def _nothing() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for part in nothing:
        yield part


async def _parts(found: Watch) -> AsyncIterator[bytes]:
    until = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < until:
        news = await found.take(HEARTBEAT_SECONDS)
        for one in news:
            yield _encoded(one)
        if found.over and not found.news:
            return
        if not news:
            yield b":\n\n"


def _encoded(one: Event | BatchRow) -> bytes:
    if isinstance(one, Event):
        number, name, data = one.seq, one.type.value, event_json(one)
    else:
        number, name, data = one.events, "finished" if one.finished else "progress", batch_json(one)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), orjson.dumps(data))
