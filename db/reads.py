"""What the portal reads, and the one row it writes by itself: a document.

Every function takes the team where a team asks: a row of another team is no row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row, tuple_row

from db.errors import translated
from db.jobs import TERMINAL, Event, EventType, JobStatus


@dataclass(frozen=True, slots=True)
class JobRow:
    """What a team may see of its job."""

    id: UUID
    team: str
    batch: UUID | None
    kind: str
    document: str
    title: str | None
    priority: int
    status: JobStatus
    dispatch_no: int
    attempt: int
    max_attempts: int
    artifact: str | None
    artifact_size: int | None
    error_class: str | None
    not_before: datetime | None
    cancel_requested_at: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    version: int

    def __post_init__(self) -> None:
        """Turn the driver's text into the enum."""
        object.__setattr__(self, "status", JobStatus(self.status))

    @property
    def terminal(self) -> bool:
        """Whether nothing more happens to the job by itself."""
        return self.status in TERMINAL


JOB = """
SELECT id, team, batch, kind, document, title, priority, status, dispatch_no, attempt, max_attempts,
       artifact, artifact_size, error_class, not_before, cancel_requested_at, created_at, updated_at,
       finished_at, version
  FROM jobs
 WHERE team = %s AND id = %s
"""


async def job(conn: AsyncConnection[Any], team: str, job_id: UUID) -> JobRow | None:
    """Return the team's job, None when the team has none of this id."""
    with translated():
        async with conn.cursor(row_factory=class_row(JobRow)) as cursor:
            return await (await cursor.execute(JOB, [team, job_id])).fetchone()


@dataclass(frozen=True, slots=True)
class Position:
    """The last job of a page: the next one starts below it."""

    created_at: datetime
    id: UUID


# Newest first: created_at and id never change, so whatever was committed before the first page is
# on exactly one page. Absent filters are constants to the planner, since nothing here is prepared.
JOBS = """
SELECT id, team, batch, kind, document, title, priority, status, dispatch_no, attempt, max_attempts,
       artifact, artifact_size, error_class, not_before, cancel_requested_at, created_at, updated_at,
       finished_at, version
  FROM jobs
 WHERE team = %(team)s
   AND (%(status)s::job_status IS NULL OR status = %(status)s)
   AND (%(kind)s::text IS NULL OR kind = %(kind)s)
   AND (%(batch)s::uuid IS NULL OR batch = %(batch)s)
   AND (%(at)s::timestamptz IS NULL OR (created_at, id) < (%(at)s, %(id)s::uuid))
 ORDER BY created_at DESC, id DESC
 LIMIT %(limit)s
"""


async def jobs(
    conn: AsyncConnection[Any],
    team: str,
    *,
    status: str | None,
    kind: str | None,
    batch: UUID | None,
    below: Position | None,
    limit: int,
) -> list[JobRow]:
    """Return a page of the team's jobs, newest first, below a position."""
    parameters: dict[str, Any] = {
        "team": team,
        "status": status,
        "kind": kind,
        "batch": batch,
        "limit": limit,
    }
    parameters |= {"at": below.created_at if below else None, "id": below.id if below else None}
    with translated():
        async with conn.cursor(row_factory=class_row(JobRow)) as cursor:
            return await (await cursor.execute(JOBS, parameters)).fetchall()


EVENTS = """
SELECT e.seq, e.type, e.at, e.who, e.data
  FROM job_events e JOIN jobs j ON j.id = e.job
 WHERE j.team = %s AND e.job = %s AND e.seq > %s
 ORDER BY e.seq LIMIT %s
"""


async def events(conn: AsyncConnection[Any], team: str, job_id: UUID, after: int, limit: int) -> list[Event]:
    """Return the job's events with seq > after, oldest first; none for another team's job."""
    with translated():
        rows = await (await conn.execute(EVENTS, [team, job_id, after, limit])).fetchall()
    return [Event(seq, EventType(type_), at, who, data) for seq, type_, at, who, data in rows]


# One index probe for each watched job, in one query for all of them.
FRESH_EVENTS = """
SELECT u.n, e.seq, e.type, e.at, e.who, e.data
  FROM unnest(%s::uuid[], %s::int[]) WITH ORDINALITY AS u(job, after, n)
 CROSS JOIN LATERAL (
   SELECT * FROM job_events e WHERE e.job = u.job AND e.seq > u.after ORDER BY e.seq LIMIT %s) e
 ORDER BY u.n, e.seq
"""


async def fresh_events(
    conn: AsyncConnection[Any], cursors: Sequence[tuple[UUID, int]], limit: int
) -> dict[int, list[Event]]:
    """Return, by index in `cursors` of (job, after), up to `limit` events each that are newer."""
    found: dict[int, list[Event]] = {}
    with translated():
        parameters = [[job for job, _ in cursors], [after for _, after in cursors], limit]
        rows = await (await conn.execute(FRESH_EVENTS, parameters)).fetchall()
    for n, seq, type_, at, who, data in rows:
        found.setdefault(n - 1, []).append(Event(seq, EventType(type_), at, who, data))
    return found


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch and how far it is: jobs by status, and `events` of all its jobs, which only rises."""

    id: UUID
    team: str
    size: int
    created_at: datetime
    counts: Mapping[str, int]
    events: int

    @property
    def finished(self) -> bool:
        """Whether every job is terminal."""
        return sum(self.counts.get(status, 0) for status in TERMINAL) >= self.size


BATCHES = """
SELECT b.id, b.team, b.size, b.created_at, c.counts, c.events
  FROM batches b
 CROSS JOIN LATERAL (
   SELECT coalesce(jsonb_object_agg(s.status, s.jobs), '{}') AS counts,
          coalesce(sum(s.events), 0)::bigint AS events
     FROM (SELECT j.status, count(*) AS jobs, sum(j.version) AS events
             FROM jobs j WHERE j.batch = b.id GROUP BY j.status) s) c
 WHERE b.id = ANY(%s) AND (%s::text IS NULL OR b.team = %s)
"""


async def batches(conn: AsyncConnection[Any], ids: Sequence[UUID], team: str | None) -> list[BatchRow]:
    """Return those of the batches that exist and belong to the team (None: to any)."""
    with translated():
        async with conn.cursor(row_factory=class_row(BatchRow)) as cursor:
            return await (await cursor.execute(BATCHES, [list(ids), team, team])).fetchall()


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A document that the team has put; `size` in bytes."""

    digest: str
    size: int
    created_at: datetime


DOCUMENT = "SELECT digest, size, created_at FROM documents WHERE team = %s AND digest = %s"
ADD_DOCUMENT = "INSERT INTO documents (team, digest, size) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"


async def document(conn: AsyncConnection[Any], team: str, digest: str) -> DocumentRow | None:
    """Return the team's document, None when this team has not put it."""
    with translated():
        async with conn.cursor(row_factory=class_row(DocumentRow)) as cursor:
            return await (await cursor.execute(DOCUMENT, [team, digest])).fetchone()


async def add_document(conn: AsyncConnection[Any], team: str, digest: str, size: int) -> bool:
    """Register a document that is in the store; False when the team has put it before."""
    with translated():
        return (await conn.execute(ADD_DOCUMENT, [team, digest, size])).rowcount == 1


CANCEL = "SELECT cancel_job(%s, %s, %s, %s)"


async def cancel(conn: AsyncConnection[Any], team: str, job_id: UUID, who: str, reason: str) -> str:
    """Cancel the team's job: `cancelled`, `asked`, `already`, `finished` or `unknown` (60_operate.sql)."""
    with translated():
        async with conn.transaction():
            row = await (await conn.execute(CANCEL, [team, job_id, who, reason])).fetchone()
    return str(row[0]) if row else "unknown"


VITALS = """
SELECT seconds, intents, (SELECT count(*) FROM (SELECT FROM jobs WHERE status = 'dead' LIMIT 10000) dead)
  FROM oldest_due
"""


async def vitals(conn: AsyncConnection[Any]) -> tuple[float, int, int]:
    """Return how long the oldest due intent has waited (seconds), how many are due, and the dead jobs.

    Counting ends at 100,000 intents and 10,000 jobs.
    """
    with translated():
        async with conn.cursor(row_factory=tuple_row) as cursor:
            row = await (await cursor.execute(VITALS)).fetchone()
    return (float(row[0]), int(row[1]), int(row[2])) if row else (0.0, 0, 0)
