"""Acceptance: POST /v1/jobs and POST /v1/batches. A 202 is sent after the commit, or not at all."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import structlog
from fastapi import APIRouter
from psycopg import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response

from db import accept as acceptance
from db import reads
from db.accept import Acceptance, Decision, Outcome
from portal import asked, examples, idempotency, ids
from portal.answers import as_json, told, with_headers
from portal.asked import MAX_BATCH_BYTES, MAX_JOB_BYTES, MAX_LINES_BYTES, Asked
from portal.bodies import require_type, whole
from portal.callers import Submitter
from portal.context import Portal, portal
from portal.database import WORK_SECONDS
from portal.door import visit
from portal.identity import Caller
from portal.problems import Fault, Problem
from portal.resources import Batch, Job, batch_json, job_json
from runtime import metrics
from runtime.failpoints import failpoint
from runtime.logs import get_logger

T = TypeVar("T")

log = get_logger(__name__)
router = APIRouter(prefix="/v1", tags=["acceptance"])

JSON, NDJSON = "application/json", "application/x-ndjson"
#: The forms of a batch: how many bytes are taken, and who understands them.
FORMS = {JSON: (MAX_BATCH_BYTES, asked.many), NDJSON: (MAX_LINES_BYTES, asked.lines)}
#: A batch gets longer than one job: 10,000 took 4 to 8 s on two cores shared by a dozen busy processes.
JOBS_PER_SECOND = 1_000
#: When a job of a second or so is worth asking for, seconds.
ASK_AGAIN = "1"

KEY_PARAMETER: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "names this request inside the team: the same key again gives the same job",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
    "example": "0b9f1c9e-1f0c-4b55-9c0e-8f0f6c6f7a10",
}
REFUSALS = (
    "malformed-json", "idempotency-key", "too-slow", "key-busy", "too-large", "unsupported-media-type",
    "invalid-request", "key-reused", "unknown-document", "simulation-off", "backlog-full", "overloaded",
)  # fmt: skip
JOB_LINKS = ("get_job", "get_job_events", "get_preview", "head_get_preview", "cancel_job")
BATCH_LINKS = ("get_batch", "get_batch_events")


def _declared(parameter: str, operations: tuple[str, ...]) -> dict[str, Any]:
    """Return the declaration of a 202, with links to what can be done with the id in it."""
    names = ("Location", "Retry-After", "Idempotent-Replayed", "RateLimit", "RateLimit-Policy")
    links = {
        name: {"operationId": name, "parameters": {parameter: "$response.body#/id"}} for name in operations
    }
    return {
        "description": "committed; with Idempotent-Replayed: what the key was decided to be, as it is now",
        "headers": with_headers(*names),
        "links": links,
    }


@router.post(
    "/jobs",
    status_code=202,
    response_model=Job,
    responses={202: _declared("job_id", JOB_LINKS), **told(*REFUSALS)},
    summary="Ask for a preview",
    openapi_extra={
        "parameters": [KEY_PARAMETER],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": {"$ref": "#/components/schemas/JobRequest"}, "example": examples.JOB_REQUEST}
            },
        },
    },
)
async def post_job(request: Request, caller: Submitter) -> Response:
    """Accept one job. The key decides: the same key and meaning is the same job."""
    key = _key(request)
    require_type(request, JSON)
    with portal(request).budget.share(caller.team) as share:
        body = await whole(request, MAX_JOB_BYTES, share)
        wanted = asked.one(body)
    decision, row = await _accept(request, caller, key, wanted, None)
    job: reads.JobRow = row
    structlog.contextvars.bind_contextvars(job=str(job.id))
    return _accepted(f"/v1/jobs/{job.id}", job_json(job), decision)


@router.post(
    "/batches",
    status_code=202,
    response_model=Batch,
    responses={202: _declared("batch_id", BATCH_LINKS), **told(*REFUSALS)},
    summary="Ask for many previews at once",
    openapi_extra={
        "parameters": [KEY_PARAMETER],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {
                    "schema": {"$ref": "#/components/schemas/BatchRequest"},
                    "example": {"jobs": [examples.JOB_REQUEST]},
                },
                NDJSON: {
                    "schema": {"type": "string", "description": "one job a line; same meaning"},
                    "example": examples.LINES,
                },
            },
        },
    },
)
async def post_batch(request: Request, caller: Submitter) -> Response:
    """Accept up to 10,000 jobs, all or none, in one transaction."""
    key = _key(request)
    media_type = require_type(request, *FORMS)
    found = portal(request)
    with found.budget.share(caller.team) as share:
        limit, understand = FORMS[media_type]
        body = await whole(request, limit, share)
        # In a thread, so that others are answered meanwhile; one at a time, so that memory is bounded.
        loop = asyncio.get_running_loop()
        wanted = await loop.run_in_executor(found.parser, understand, body)
        decision, row = await _accept(request, caller, key, wanted, ids.uuid7())
    batch: reads.BatchRow = row
    structlog.contextvars.bind_contextvars(batch=str(batch.id))
    return _accepted(f"/v1/batches/{batch.id}", batch_json(batch), decision)


def _key(request: Request) -> str:
    key = idempotency.key(request)
    structlog.contextvars.bind_contextvars(key=key)
    return key


async def _accept(
    request: Request, caller: Caller, key: str, wanted: Asked, batch: UUID | None
) -> tuple[Decision, Any]:
    """Decide the key; return the decision and the row of the job or batch.

    Raises:
        Problem: the request is refused.
        db.errors.DatabaseError: it was not decided, or that is not known.

    """
    found = portal(request)
    _check_simulation(found, wanted, batch)
    everything = Acceptance(
        team=caller.team,
        key=key,
        fingerprint=wanted.fingerprint,
        jobs=wanted.new_jobs(),
        batch=batch,
        over_quota=await found.backlogs.over(caller.team, len(wanted.jobs)),
        traceparent=visit(request).trace.traceparent,
        who=caller.who,
    )

    async def look(seconds: float) -> tuple[Decision, Any]:
        if batch is None:
            return _unless_pruned(*await _single(found, everything, seconds))
        within = WORK_SECONDS + len(wanted.jobs) / JOBS_PER_SECOND
        async with found.turns.turn(caller.team, key, seconds):
            whole = partial(_whole, everything)
            return _unless_pruned(*await found.database.run(whole, wait=seconds, within=within))

    decision, row = await idempotency.decided(key, look)
    metrics.count("requests_decided_total", outcome=decision.outcome)
    _refuse(decision, batch)
    if decision.outcome is Outcome.NEW:
        kinds = [job.kind for job in wanted.jobs]
        for kind in set(kinds):
            metrics.count("jobs_accepted_total", kinds.count(kind), kind=kind)
    return decision, row


def _check_simulation(found: Portal, wanted: Asked, batch: UUID | None) -> None:
    if found.settings.simulation:
        return
    places = [n for n, job in enumerate(wanted.jobs) if job.simulate is not None]
    if places:
        raise Problem(
            "simulation-off", errors=[Fault(f"{_at(batch, n)}/simulate", "not accepted") for n in places]
        )


def _at(batch: UUID | None, n: int) -> str:
    return f"/jobs/{n}" if batch else ""


async def _single(found: Portal, wanted: Acceptance, seconds: float) -> tuple[Decision, reads.JobRow | None]:
    """Decide a single job, jointly with those that came at the same moment."""
    decision = await found.joint.accept(wanted, seconds)
    if decision.outcome is Outcome.NEW:
        return decision, acceptance.new_row(wanted, decision)
    job = decision.job
    if job is None:
        return decision, None
    return decision, await found.database.run(lambda conn: reads.job(conn, wanted.team, job))


async def _whole(wanted: Acceptance, conn: AsyncConnection[Any]) -> tuple[Decision, reads.BatchRow | None]:
    """Decide a batch."""
    decision = await acceptance.accept(conn, wanted)
    failpoint("accept.after_commit")
    if decision.batch is None:
        return decision, None
    return decision, next(iter(await reads.batches(conn, [decision.batch], wanted.team)), None)


def _unless_pruned(decision: Decision, row: T | None) -> tuple[Decision, T | None]:
    """Take an OLD key as undecided when its job went, and the key with it, before the row was read."""
    if decision.outcome is Outcome.OLD and row is None:
        decision = replace(decision, outcome=Outcome.BUSY)
    return decision, row


def _refuse(decision: Decision, batch: UUID | None) -> None:
    match decision.outcome:
        case Outcome.MISMATCH:
            raise Problem("key-reused")
        case Outcome.UNKNOWN_DOCUMENTS:
            places = [Fault(f"{_at(batch, n)}/document", "not put by this team") for n in decision.items]
            raise Problem("unknown-document", errors=places)
        case Outcome.BACKLOG_FULL:
            raise Problem("backlog-full")
        case _:
            pass


def _accepted(location: str, content: dict[str, Any], decision: Decision) -> Response:
    headers = {"Location": location, "Retry-After": ASK_AGAIN}
    if decision.outcome is Outcome.OLD:
        headers["Idempotent-Replayed"] = "true"
    return as_json(content, 202, headers)
