"""Acceptance: request key, jobs, `accepted` events and intents in one statement and one commit.

The statement is the function `accept_jobs` (db/functions/20_accept.sql) for one request, whether it asks for
one job or ten thousand, and `accept_each` (21_accept_each.sql) for single jobs of many requests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.errors import ActiveSqlTransaction
from psycopg.pq import TransactionStatus

from db.errors import DatabaseError, translated
from db.jobs import JobStatus
from db.reads import JobRow


@dataclass(frozen=True, slots=True)
class NewJob:
    """One job as asked for; `max_attempts` None takes the kind's; `simulate` is JSON text or None."""

    id: UUID
    kind: str
    document: str
    title: str | None
    priority: int
    max_attempts: int | None
    simulate: str | None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One request: its team, key and fingerprint (SHA-256, 32 bytes), and its jobs.

    `batch` is the id of a new batch, or None for a single job. `over_quota` says that the caller
    found the team's backlog full; a key that was decided before is answered all the same.
    """

    team: str
    key: str
    fingerprint: bytes
    jobs: Sequence[NewJob]
    batch: UUID | None = None
    over_quota: bool = False
    traceparent: str | None = None
    who: str = "portal"


class Outcome(StrEnum):
    """What acceptance decided; see db/functions/20_accept.sql."""

    NEW = "new"
    OLD = "old"
    MISMATCH = "mismatch"
    BUSY = "busy"
    UNKNOWN_DOCUMENTS = "unknown_documents"
    BACKLOG_FULL = "backlog_full"


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome, and for NEW and OLD the job or batch and when it was created.

    `items` are the indexes of jobs whose document the team has not put. `max_attempts` is that of a NEW job
    of `accept_each`.
    """

    outcome: Outcome
    job: UUID | None
    batch: UUID | None
    created_at: datetime | None
    items: Sequence[int]
    max_attempts: int | None = None


ACCEPT = """
SELECT outcome, job, batch, at, detail
  FROM accept_jobs(%s::text, %s::text, %s::bytea, %s::uuid, %s::boolean, %s::uuid[], %s::text[], %s::text[],
                   %s::text[], %s::smallint[], %s::int[], %s::text[], %s::text, %s::text)
"""


async def accept(conn: AsyncConnection[Any], a: Acceptance) -> Decision:
    """Write all rows of `a`, or find what its key was decided to be; committed when this returns.

    Raises:
        Unavailable, Conflict, Refused: see db.errors; whether a commit took may be unknown.

    """
    jobs = a.jobs
    parameters = [
        a.team,
        a.key,
        a.fingerprint,
        a.batch,
        a.over_quota,
        [j.id for j in jobs],
        [j.kind for j in jobs],
        [j.document for j in jobs],
        [j.title for j in jobs],
        [j.priority for j in jobs],
        [j.max_attempts for j in jobs],
        [j.simulate for j in jobs],
        a.traceparent,
        a.who,
    ]
    with translated():
        # BEGIN carries READ COMMITTED: a server or role default of SERIALIZABLE cannot weaken the key's lock.
        async with conn.transaction():
            cursor = await conn.execute(ACCEPT, parameters)
            row = await cursor.fetchone()
    if row is None:
        raise DatabaseError("accept_jobs returned nothing")
    outcome, job, batch, at, detail = row
    items: Sequence[int] = detail["items"] if detail else ()
    return Decision(Outcome(outcome), job, batch, at, items)


def array(values: Iterable[str | None]) -> str:
    """Return PostgreSQL's text of an array of these texts; the statement says of which type it is.

    psycopg looks for the type of each element and quotes by expression, which costs four times as much.
    """
    quoted = [
        "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for value in values
    ]
    return "{" + ",".join(quoted) + "}"


ACCEPT_EACH = """
SELECT outcome, job, at, max_attempts
  FROM accept_each(%s::text[], %s::text[], %s::bytea[], %s::boolean[], %s::uuid[], %s::text[], %s::text[],
                   %s::text[], %s::smallint[], %s::int[], %s::text[], %s::text[], %s::text[])
 ORDER BY n
"""


async def accept_each(conn: AsyncConnection[Any], together: Sequence[Acceptance]) -> list[Decision]:
    """Decide requests of one job each in one commit; return a decision for each, in order.

    `conn` is in autocommit: the statement is a transaction of its own, which is two round trips less than one
    between BEGIN and COMMIT. Where sessions have another default than READ COMMITTED, the function refuses
    before it has looked at anything (05_isolation.sql), and is asked again within a BEGIN that says so.

    Each has an outcome of its own; BUSY also for a key that an earlier one of them has. What is refused
    (`Refused`) refuses all of them.

    Raises:
        Unavailable, Conflict, Refused: see db.errors; whether a commit took may be unknown.

    """
    jobs = [a.jobs[0] for a in together]
    parameters = [
        array([a.team for a in together]),
        array([a.key for a in together]),
        array(["\\x" + a.fingerprint.hex() for a in together]),
        array(["t" if a.over_quota else "f" for a in together]),
        array([str(j.id) for j in jobs]),
        array([j.kind for j in jobs]),
        array([j.document for j in jobs]),
        array([j.title for j in jobs]),
        array([str(j.priority) for j in jobs]),
        array([None if j.max_attempts is None else str(j.max_attempts) for j in jobs]),
        array([j.simulate for j in jobs]),
        array([a.traceparent for a in together]),
        array([a.who for a in together]),
    ]
    with translated():
        try:
            rows = await (await conn.execute(ACCEPT_EACH, parameters)).fetchall()
        except ActiveSqlTransaction:
            async with conn.transaction():
                rows = await (await conn.execute(ACCEPT_EACH, parameters)).fetchall()
    if conn.pgconn.transaction_status != TransactionStatus.IDLE:
        raise DatabaseError("accept_each is not committed: the connection is not in autocommit")
    if len(rows) != len(together):
        raise DatabaseError("accept_each did not answer each request")
    return [
        Decision(
            Outcome(outcome),
            job,
            None,
            at,
            (0,) if outcome == Outcome.UNKNOWN_DOCUMENTS else (),
            max_attempts,
        )
        for outcome, job, at, max_attempts in rows
    ]


def new_row(wanted: Acceptance, decision: Decision) -> JobRow:
    """Return the row of a single job that `accept_each` decided to be NEW, as it is at its acceptance."""
    job = wanted.jobs[0]
    assert decision.created_at is not None  # noqa: S101 -- of what is new
    assert decision.max_attempts is not None  # noqa: S101 -- likewise
    return JobRow(
        id=job.id,
        team=wanted.team,
        batch=None,
        kind=job.kind,
        document=job.document,
        title=job.title,
        priority=job.priority,
        status=JobStatus.QUEUED,
        dispatch_no=1,
        attempt=0,
        max_attempts=decision.max_attempts,
        artifact=None,
        artifact_size=None,
        error_class=None,
        not_before=None,
        cancel_requested_at=None,
        created_at=decision.created_at,
        updated_at=decision.created_at,
        finished_at=None,
        version=1,
    )


OVER_QUOTA = "SELECT over_quota(%s, %s)"


async def over_quota(conn: AsyncConnection[Any], team: str, more: int) -> bool:
    """Tell whether `more` jobs would put the team over its quota of unfinished jobs."""
    with translated():
        row = await (await conn.execute(OVER_QUOTA, [team, more])).fetchone()
    return bool(row and row[0])
