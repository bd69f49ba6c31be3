"""Claims: one worker takes a dispatch, and ends it once. The functions are db/functions/30 to 41."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, LiteralString
from uuid import UUID

from psycopg import Connection
from psycopg.errors import ActiveSqlTransaction

from db.errors import DatabaseError, translated


class Answer(StrEnum):
    """What a claim was answered; see db/functions/30_claim.sql. BUSY: only where nobody is waited for."""

    TAKEN = "taken"
    NOT_YET = "not_yet"
    STALE = "stale"
    FINISHED = "finished"
    ANOTHERS = "anothers"
    PAUSED = "paused"
    FULL = "full"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that this worker may render: the fence (job, dispatch_no, attempt) and what to render."""

    job: UUID
    dispatch_no: int
    attempt: int
    max_attempts: int
    releases: int
    team: str
    kind: str
    document: str
    title: str | None
    simulate: Mapping[str, Any] | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer for one (job, dispatch_no); `claim` is there when it is TAKEN."""

    job: UUID
    dispatch_no: int
    answer: Answer
    claim: Claim | None


CLAIM = """
SELECT job, dispatch_no, outcome, team, kind, document, title, attempt, max_attempts, releases, simulate,
       created_at
  FROM claim_each(%s::uuid, %s::uuid[], %s::int[], %s::boolean)
"""


def claim(
    conn: Connection[Any], worker: UUID, wanted: Sequence[tuple[UUID, int]], *, wait: bool = True
) -> list[Claimed]:
    """Claim each (job, dispatch_no) for `worker`; the attempt is counted and committed when this returns.

    Answers come in the order of `wanted`. Without `wait` nobody is waited for: a job whose row somebody has
    at this moment is BUSY, and untouched.

    Raises:
        Unavailable, Conflict, Refused: see db.errors; repeating the call finds a claim that took.

    """
    rows = _at_once(conn, CLAIM, [worker, _array(j for j, _ in wanted), _array(d for _, d in wanted), wait])
    answers: list[Claimed] = []
    for job, no, outcome, team, kind, document, title, attempt, most, releases, simulate, created_at in rows:
        answer = Answer(outcome)
        taken = answer is Answer.TAKEN
        answers.append(
            Claimed(
                job,
                no,
                answer,
                Claim(job, no, attempt, most, releases, team, kind, document, title, simulate, created_at)
                if taken
                else None,
            )
        )
    return answers


class Ended(StrEnum):
    """Whether an end took: now, before (its reply was lost), or not at all (the claim was lost).

    BUSY: not yet; somebody has the job's row at this moment, and only `finish_each` waits for nobody.
    """

    DONE = "done"
    ALREADY = "already"
    LOST = "lost"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Finish:
    """A render that succeeded: its claim, and the preview's `sha256:` digest and size in bytes."""

    claim: Claim
    artifact: str
    size: int


FINISH_EACH = """
SELECT outcome FROM finish_each(%s::uuid, %s::uuid[], %s::int[], %s::int[], %s::text[], %s::bigint[])
"""


def finish_each(conn: Connection[Any], worker: UUID, finishes: Sequence[Finish]) -> list[Ended]:
    """End these claims of different jobs in one commit; return each one's outcome, in their order.

    Raises:
        Unavailable, Conflict, Refused: see db.errors; whose fault it is, is not known, and repeating is safe.

    """
    values = [
        worker,
        _array(f.claim.job for f in finishes),
        _array(f.claim.dispatch_no for f in finishes),
        _array(f.claim.attempt for f in finishes),
        _array(f.artifact for f in finishes),
        _array(f.size for f in finishes),
    ]
    rows = _at_once(conn, FINISH_EACH, values)
    return [Ended(outcome) for (outcome,) in rows]


class How(StrEnum):
    """How a claim ends when it does not succeed; see db/functions/40_settle.sql."""

    FAILED = "failed"
    DIED = "died"
    RELEASED = "released"
    CANCELLED = "cancelled"


END = """
SELECT end_claim(%s::uuid, %s::uuid, %s::int, %s::int, %s::text, %s::text, %s::text, %s::bigint,
                 %s::boolean, %s::text)
"""


def end(
    conn: Connection[Any],
    worker: UUID,
    c: Claim,
    how: How,
    *,
    error_class: str | None = None,
    error: str | None = None,
    delay_ms: int = 0,
    spend: bool = False,
    who: str | None = None,
) -> Ended:
    """End the claim without success; `spend` keeps a released attempt spent.

    `error` must be clean text (no NUL) of at most 2 KB; `delay_ms` is when the next dispatch is due.

    Raises:
        Unavailable, Conflict, Refused: see db.errors; repeating the call is safe.

    """
    with translated(), conn.transaction():
        row = conn.execute(
            END,
            [
                worker,
                c.job,
                c.dispatch_no,
                c.attempt,
                how,
                error_class,
                error,
                delay_ms,
                spend,
                who or f"worker:{worker}",
            ],
        ).fetchone()
    return _ended(row)


def _at_once(conn: Connection[Any], query: LiteralString, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run a statement that is a transaction of its own; return its rows. Two round trips less than a block.

    Where sessions have another default than READ COMMITTED, its function refuses before it has looked at
    anything (05_isolation.sql), and is asked again within a BEGIN that says so.
    """
    with translated():
        if conn.autocommit:
            try:
                return conn.execute(query, values).fetchall()
            except ActiveSqlTransaction:
                pass
        with conn.transaction():
            return conn.execute(query, values).fetchall()


def _array(values: Iterable[UUID | int | str]) -> str:
    """Return an array as PostgreSQL reads it; no value may need quotes. The driver takes 3 times as long."""
    return f"{{{','.join(map(str, values))}}}"


def _ended(row: tuple[Any, ...] | None) -> Ended:
    if row is None:
        raise DatabaseError("the transition returned nothing")
    return Ended(row[0])
