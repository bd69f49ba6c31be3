"""Jobs: one, many, cancelled."""

from typing import Annotated
from uuid import UUID

import structlog
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from db import reads
from db.jobs import JobStatus
from portal import cursors, ids
from portal.answers import as_json, told, with_headers
from portal.callers import Canceller, Reader
from portal.context import portal
from portal.problems import Problem
from portal.resources import Job, JobPage, Kind, job_json

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
RATES = with_headers("RateLimit", "RateLimit-Policy")


class JobQuery(BaseModel):
    """What a list may be asked for."""

    model_config = ConfigDict(extra="forbid")

    status: JobStatus | None = Field(default=None, description="only jobs in this status now")
    kind: Kind | None = Field(default=None, description="only jobs of this kind")
    batch: UUID | None = Field(default=None, description="only jobs of this batch")
    cursor: str | None = Field(default=None, max_length=100, description="`next` of the page before")
    limit: int = Field(default=50, ge=1, le=100, description="jobs on a page")

    def question(self, team: str) -> str:
        """Return what the list is of, whatever the page."""
        return f"{team}|{self.status}|{self.kind}|{self.batch}"


def known_id(job_id: str) -> UUID:
    """Return the id of a path. A malformed, an unknown and a foreign one are told alike.

    Raises:
        Problem: not-found.

    """
    found = ids.parse(job_id)
    if found is None:
        raise Problem("not-found")
    structlog.contextvars.bind_contextvars(job=str(found))
    return found


async def known_job(request: Request, team: str, job_id: str) -> reads.JobRow:
    """Return the team's job; raises as `known_id` does."""
    wanted = known_id(job_id)
    row = await portal(request).database.run(lambda conn: reads.job(conn, team, wanted))
    if row is None:
        raise Problem("not-found")
    return row


@router.get(
    "",
    response_model=JobPage,
    responses={200: {"headers": RATES}, **told("invalid-request")},
    summary="List the team's jobs",
)
async def list_jobs(request: Request, query: Annotated[JobQuery, Query()], caller: Reader) -> Response:
    """Answer a page of jobs, newest first.

    Following `next` shows each job that was accepted before the first page exactly once, however many
    arrive meanwhile. A filter by status looks at the status at the time of each page.
    """
    question = query.question(caller.team)
    below = None if query.cursor is None else cursors.decode(query.cursor, question)
    rows = await portal(request).database.run(
        lambda conn: reads.jobs(
            conn,
            caller.team,
            status=query.status,
            kind=query.kind,
            batch=query.batch,
            below=below,
            limit=query.limit + 1,  # one more tells whether there is a next page
        )
    )
    page = rows[: query.limit]
    last = reads.Position(page[-1].created_at, page[-1].id) if len(rows) > query.limit else None
    cursor = None if last is None else cursors.encode(last, question)
    return as_json({"jobs": [job_json(row) for row in page], "next": cursor})


@router.get(
    "/{job_id}",
    response_model=Job,
    responses={200: {"headers": RATES}, **told("not-found")},
    summary="Look at a job",
)
async def get_job(request: Request, job_id: str, caller: Reader) -> Response:
    """Answer the job as it is now."""
    return as_json(job_json(await known_job(request, caller.team, job_id)))


@router.post(
    "/{job_id}/cancel",
    response_model=Job,
    responses={
        200: {"description": "cancelled, now or before", "headers": RATES},
        202: {"model": Job, "description": "it is being rendered, and was told to stop", "headers": RATES},
        **told("not-found", "already-finished"),
    },
    summary="Cancel a job",
)
async def cancel_job(request: Request, job_id: str, caller: Canceller) -> Response:
    """Cancel the job; doing it again changes nothing, so no Idempotency-Key is needed."""
    wanted = known_id(job_id)
    database = portal(request).database
    outcome = await database.run(
        lambda conn: reads.cancel(conn, caller.team, wanted, caller.who, "asked for over the API")
    )
    if outcome == "unknown":
        raise Problem("not-found")
    if outcome == "finished":
        raise Problem("already-finished")
    row = await known_job(request, caller.team, job_id)
    return as_json(job_json(row), 202 if outcome == "asked" else 200)
