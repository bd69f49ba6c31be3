"""Batches: how far one is."""

from uuid import UUID

import structlog
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from db import reads
from portal import ids
from portal.answers import as_json, told, with_headers
from portal.callers import Reader
from portal.context import portal
from portal.problems import Problem
from portal.resources import Batch, batch_json

router = APIRouter(prefix="/v1/batches", tags=["batches"])


async def known_batch(request: Request, team: str, batch_id: str) -> reads.BatchRow:
    """Return the team's batch. A malformed, an unknown and a foreign id are told alike.

    Raises:
        Problem: not-found.

    """
    wanted: UUID | None = ids.parse(batch_id)
    if wanted is None:
        raise Problem("not-found")
    structlog.contextvars.bind_contextvars(batch=str(wanted))
    rows = await portal(request).database.run(lambda conn: reads.batches(conn, [wanted], team))
    if not rows:
        raise Problem("not-found")
    return rows[0]


@router.get(
    "/{batch_id}",
    response_model=Batch,
    responses={200: {"headers": with_headers("RateLimit", "RateLimit-Policy")}, **told("not-found")},
    summary="Look at a batch",
)
async def get_batch(request: Request, batch_id: str, caller: Reader) -> Response:
    """Answer how many jobs of the batch are in each status now."""
    return as_json(batch_json(await known_batch(request, caller.team, batch_id)))
