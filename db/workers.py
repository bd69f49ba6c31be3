"""Workers: who is alive, which claims they hold, and the rescue of what a lost one held."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg import Connection

from db.claims import Claim
from db.errors import translated

BEAT = """
INSERT INTO workers (id, host, pid, threads) VALUES (%s, %s, %s, %s)
ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp()
"""


def beat(conn: Connection[Any], worker: UUID, host: str, pid: int, threads: int) -> None:
    """Write this process's heartbeat; the first one makes its row."""
    with translated():
        conn.execute(BEAT, [worker, host, pid, threads])


HEARTBEATS = "SELECT id, heartbeat_at FROM workers"


def heartbeats(conn: Connection[Any]) -> dict[UUID, datetime]:
    """Return each worker's last heartbeat (PostgreSQL's clock)."""
    with translated():
        return dict(conn.execute(HEARTBEATS).fetchall())


LEAVE = "DELETE FROM workers WHERE id = %s AND NOT EXISTS (SELECT FROM jobs WHERE worker = %s)"


def leave(conn: Connection[Any], worker: UUID) -> None:
    """Take the row of a worker that stopped in order; kept while a job still names it."""
    with translated():
        conn.execute(LEAVE, [worker, worker])


FORGET = """
DELETE FROM workers w
 WHERE heartbeat_at < clock_timestamp() - %s AND NOT EXISTS (SELECT FROM jobs j WHERE j.worker = w.id)
"""


def forget(conn: Connection[Any], older_than: timedelta) -> int:
    """Delete rows of workers without a heartbeat for so long and without a claim; return how many."""
    with translated():
        return conn.execute(FORGET, [older_than]).rowcount


CLAIMS_OF = """
SELECT id, dispatch_no, attempt, max_attempts, releases, team, kind, document, title, simulate, created_at,
       cancel_requested_at IS NOT NULL
  FROM jobs WHERE worker = %s
"""


@dataclass(frozen=True, slots=True)
class Held:
    """A claim that the database says this worker holds, and whether it was asked to stop."""

    claim: Claim
    cancel_requested: bool


def claims_of(conn: Connection[Any], worker: UUID) -> list[Held]:
    """Return the claims that name `worker`."""
    with translated():
        rows = conn.execute(CLAIMS_OF, [worker]).fetchall()
    return [
        Held(Claim(job, no, attempt, most, releases, team, kind, document, title, simulate, created), asked)
        for job, no, attempt, most, releases, team, kind, document, title, simulate, created, asked in rows
    ]


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """Names one claim: of all claims that a job ever had, the one of this dispatch and attempt."""

    job: UUID
    dispatch_no: int
    attempt: int


CLAIMED = "SELECT id, dispatch_no, attempt FROM jobs WHERE worker IS NOT NULL"


def claimed(conn: Connection[Any]) -> set[ClaimKey]:
    """Return every claim that some worker holds now."""
    with translated():
        return {ClaimKey(*row) for row in conn.execute(CLAIMED).fetchall()}


# The statement's own snapshot is from before the rescue: the dispatch and the attempt are those that ran.
RESCUE = """
SELECT r.job, r.outcome, r.worker, j.team, j.dispatch_no, j.attempt
  FROM rescue_jobs(%s::uuid[], %s::timestamptz[], %s::uuid[], %s::int[], %s::int[], %s) r
  JOIN jobs j ON j.id = r.job
"""
ORPHANS = """
SELECT DISTINCT worker FROM jobs j
 WHERE worker IS NOT NULL AND NOT EXISTS (SELECT FROM workers w WHERE w.id = j.worker)
"""


def orphans(conn: Connection[Any]) -> list[UUID]:
    """Return workers that a job names and that have no row."""
    with translated():
        return [row[0] for row in conn.execute(ORPHANS).fetchall()]


@dataclass(frozen=True, slots=True)
class Rescued:
    """A claim that was ended for its worker: outcome is rescued, died or cancelled."""

    job: UUID
    outcome: str
    worker: UUID
    team: str
    dispatch_no: int
    attempt: int


def rescue(
    conn: Connection[Any], lost: Mapping[UUID, datetime | None], overdue: Collection[ClaimKey], who: str
) -> list[Rescued]:
    """End the claims of lost workers (id -> the heartbeat that was watched) and those that are overdue.

    A worker whose heartbeat has moved since it was watched keeps its claims, but for the overdue ones.
    """
    names = list(overdue)
    jobs, dispatch_nos = [c.job for c in names], [c.dispatch_no for c in names]
    values = [list(lost), list(lost.values()), jobs, dispatch_nos, [c.attempt for c in names], who]
    with translated(), conn.transaction():
        rows = conn.execute(RESCUE, values).fetchall()
    return [Rescued(*row) for row in rows]
