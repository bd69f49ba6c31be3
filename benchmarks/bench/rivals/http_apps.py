"""FastAPI applications, served by `uvicorn --no-access-log` with uvloop and httptools (`uvicorn[standard]`).

`empty` answers 202 and knows no database. `statement` executes the statement of acceptance, one for each
request, on a pool of as many connections as the portal has; psycopg prepares it on the server.
"""

import os
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import FastAPI, Header
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

from db.accept import ACCEPT

POOL_SIZE = 16
TEAM = "acme"


class Wanted(BaseModel):
    """What a job's request holds."""

    document: str
    kind: Literal["page", "thumbnail"]
    priority: int = 5


Key = Annotated[str, Header(alias="Idempotency-Key")]
empty = FastAPI()


@empty.post("/v1/jobs", status_code=202)
async def post_nothing(wanted: Wanted, key: Key) -> dict[str, str]:
    """Answer without having done anything."""
    return {"id": str(uuid.uuid4()), "kind": wanted.kind, "key": key, "status": "queued"}


@asynccontextmanager
async def _pool(app: FastAPI) -> AsyncGenerator[None]:
    pool = AsyncConnectionPool(
        os.environ["RIVAL_DATABASE_URL"], min_size=POOL_SIZE, max_size=POOL_SIZE, open=False,
        kwargs={"autocommit": True},
    )  # fmt: skip
    async with pool:
        app.state.pool = pool
        yield


statement = FastAPI(lifespan=_pool)


@statement.post("/v1/jobs", status_code=202)
async def post_job(wanted: Wanted, key: Key) -> dict[str, str]:
    """Accept one job by one statement, which is one transaction."""
    job = uuid.uuid4()
    parameters = [
        TEAM, key, b"f" * 32, None, False, [job], [wanted.kind], [wanted.document], [None], [wanted.priority],
        [None], [None], None, "rival",
    ]  # fmt: skip
    async with statement.state.pool.connection() as conn:
        row = await (await conn.execute(ACCEPT, parameters)).fetchone()
    assert row is not None
    assert row[0] == "new"
    return {"id": str(job), "kind": wanted.kind, "key": key, "status": "queued"}
