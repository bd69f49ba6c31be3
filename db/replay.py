"""Replay of dead jobs: by ids, or as a run over everything that matches and was dead before an instant.

A run is a row, so it can be resumed by anybody: each slice is one transaction that moves the run's
cursor together with the jobs. A job that fails again during the run died after the run's instant, and
is not part of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg import Connection
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from db.errors import Refused, translated

#: Jobs in one transaction: measured 40 to 120 ms, below a second also on a machine that is busy.
SLICE = 250


class UnknownRun(Refused):
    """There is no replay run of that id."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead jobs; None lets everything pass.

    Attributes:
        team, kind, error: exactly these (`error` is the error class).
        since: not those that died before it: an aware time, or so long ago by PostgreSQL's clock.
        most: at most so many, team by team, oldest first.

    """

    team: str | None = None
    kind: str | None = None
    error: str | None = None
    since: datetime | timedelta | None = None
    most: int | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the filter as the statements of this module name it."""
        age = self.since if isinstance(self.since, timedelta) else None
        at = self.since if isinstance(self.since, datetime) else None
        return {
            "team": self.team,
            "kind": self.kind,
            "error": self.error,
            "at": at,
            "age": age,
            "most": self.most,
        }

    def asked(self) -> dict[str, Any]:
        """Return the filter's words, without empty ones: the same command gives the same words."""
        words: dict[str, Any] = {
            "team": self.team,
            "kind": self.kind,
            "error": self.error,
            "limit": self.most,
            "since": self.since.isoformat() if isinstance(self.since, datetime) else None,
            "since_seconds": self.since.total_seconds() if isinstance(self.since, timedelta) else None,
        }
        return {name: word for name, word in words.items() if word is not None}


# The filters of replay_slice(), and its order.
PLAN = """
SELECT team, kind, error_class, count(*) AS jobs, min(finished_at) AS oldest, max(finished_at) AS newest
  FROM (SELECT team, kind, error_class, finished_at FROM operator_jobs
         WHERE status = 'dead'
           AND (%(team)s::text IS NULL OR team = %(team)s)
           AND (%(kind)s::text IS NULL OR kind = %(kind)s)
           AND (%(error)s::text IS NULL OR error_class = %(error)s)
           AND (%(at)s::timestamptz IS NULL OR finished_at >= %(at)s)
           AND (%(age)s::interval IS NULL OR finished_at >= clock_timestamp() - %(age)s)
           AND (%(before)s::timestamptz IS NULL OR finished_at < %(before)s)
         ORDER BY team, finished_at, id LIMIT %(most)s) planned
 GROUP BY team, kind, error_class ORDER BY team, kind, error_class
"""


def plan(conn: Connection[Any], wanted: Filter, before: datetime | None = None) -> list[dict[str, Any]]:
    """Return what a replay would take now: jobs by team, kind and error class. Changes nothing."""
    with translated(), conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(PLAN, wanted.parameters() | {"before": before}).fetchall()


BEGIN = """
SELECT begin_replay(%(asked)s, %(team)s, %(kind)s, %(error)s,
                    coalesce(%(at)s::timestamptz, clock_timestamp() - %(age)s::interval),
                    %(most)s, %(afresh)s, %(who)s, %(reason)s)
"""


def begin(conn: Connection[Any], wanted: Filter, *, afresh: bool, who: str, reason: str) -> UUID:
    """Begin a run, or return the unfinished one that the same filter began less than a day ago.

    `afresh`: begin another one nevertheless.
    """
    values = wanted.parameters() | {"asked": Jsonb(wanted.asked()), "afresh": afresh}
    with translated(), conn.transaction():
        row = conn.execute(BEGIN, values | {"who": who, "reason": reason}).fetchone()
    if row is None:
        raise UnknownRun(who)
    return UUID(str(row[0]))


@dataclass(frozen=True, slots=True)
class Run:
    """A run: it takes what matches and was dead `before`, at most `most`, and has replayed `done`."""

    id: UUID
    team: str | None
    kind: str | None
    error_class: str | None
    since: datetime | None
    before: datetime
    most: int | None
    done: int
    who: str
    reason: str
    begun_at: datetime
    finished_at: datetime | None

    @property
    def left(self) -> Filter:
        """What is still to be replayed, together with `before`."""
        most = None if self.most is None else self.most - self.done
        return Filter(self.team, self.kind, self.error_class, self.since, most)


RUN = """
SELECT id, team, kind, error_class, since, before, most, done, who, reason, begun_at, finished_at
  FROM operator_replays WHERE id = %s
"""


def run(conn: Connection[Any], run_id: UUID) -> Run:
    """Return a run.

    Raises:
        UnknownRun: there is none of that id.

    """
    with translated(), conn.cursor(row_factory=class_row(Run)) as cursor:
        found = cursor.execute(RUN, [run_id]).fetchone()
    if found is None:
        raise UnknownRun(str(run_id))
    return found


@dataclass(frozen=True, slots=True)
class Slice:
    """What one transaction did: so many replayed, `done` by the whole run; `more`: call again.

    Nothing replayed and more to come means that somebody else holds those jobs' rows just now.
    """

    replayed: int
    done: int
    more: bool


NEXT = "SELECT replayed, done, more FROM replay_slice(%s, %s, %s, %s)"


def replay_slice(conn: Connection[Any], run_id: UUID, size: int, *, who: str, reason: str) -> Slice:
    """Replay the next `size` jobs of a run, at most SLICE, in one transaction.

    Raises:
        UnknownRun: there is none of that id.
        Conflict: nothing was done; call again.

    """
    with translated(), conn.cursor(row_factory=class_row(Slice)) as cursor, conn.transaction():
        try:
            found = cursor.execute(NEXT, [run_id, size, who, reason]).fetchone()
        except psycopg.errors.NoDataFound as error:
            raise UnknownRun(str(run_id)) from error
    return found or Slice(0, 0, more=False)


REPLAY = "SELECT job, outcome FROM replay_jobs(%s, %s, %s)"


def replay(conn: Connection[Any], jobs: Sequence[UUID], *, who: str, reason: str) -> dict[UUID, str]:
    """Replay these dead jobs, at most SLICE, in one transaction.

    Returns for each `replayed`, `already <status>` (left as it is) or `unknown`.
    """
    with translated(), conn.transaction():
        return dict(conn.execute(REPLAY, [list(jobs), who, reason]).fetchall())
