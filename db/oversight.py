"""What an operator sees: the views of 70_views.sql, which hold no names, titles, digests or renderer texts.

Rows are dictionaries by the views' column names: they are what `--json` prints.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

from psycopg import Connection
from psycopg.rows import dict_row

from db.errors import translated

Row = dict[str, Any]


def _rows(conn: Connection[Any], query: LiteralString, values: Mapping[str, Any] | None = None) -> list[Row]:
    with translated(), conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, values).fetchall()


JOBS = """
SELECT * FROM operator_jobs
 WHERE (%(team)s::text IS NULL OR team = %(team)s)
   AND (%(status)s::job_status IS NULL OR status = %(status)s)
   AND (%(kind)s::text IS NULL OR kind = %(kind)s)
 ORDER BY created_at DESC, id DESC LIMIT %(limit)s
"""


def jobs(
    conn: Connection[Any], *, team: str | None, status: str | None, kind: str | None, limit: int
) -> list[Row]:
    """Return jobs, newest first."""
    return _rows(conn, JOBS, {"team": team, "status": status, "kind": kind, "limit": limit})


JOB = "SELECT * FROM operator_jobs WHERE id = %(job)s"
EVENTS = "SELECT seq, type, at, who, data FROM operator_events WHERE job = %(job)s ORDER BY seq"


def job(conn: Connection[Any], job_id: UUID) -> Row | None:
    """Return one job with its `events`, oldest first; None when there is none of that id."""
    found = _rows(conn, JOB, {"job": job_id})
    return found[0] | {"events": _rows(conn, EVENTS, {"job": job_id})} if found else None


DEAD = """
SELECT id, team, kind, error_class, attempt, max_attempts, dispatch_no, created_at, finished_at
  FROM operator_jobs
 WHERE status = 'dead'
   AND (%(team)s::text IS NULL OR team = %(team)s)
   AND (%(kind)s::text IS NULL OR kind = %(kind)s)
   AND (%(error)s::text IS NULL OR error_class = %(error)s)
   AND (%(at)s::timestamptz IS NULL OR finished_at >= %(at)s)
   AND (%(age)s::interval IS NULL OR finished_at >= clock_timestamp() - %(age)s)
 ORDER BY finished_at DESC, id DESC LIMIT %(most)s
"""


def dead(conn: Connection[Any], wanted: Mapping[str, Any]) -> list[Row]:
    """Return dead jobs, last died first; `wanted` is a `db.replay.Filter`'s parameters."""
    return _rows(conn, DEAD, wanted)


LANES = "SELECT * FROM operator_lanes WHERE %(lane)s::text IS NULL OR lane = %(lane)s ORDER BY lane"


def lanes(conn: Connection[Any], lane: str | None = None) -> list[Row]:
    """Return the settings in force, `*` (everything) first, and who began a pause that is on."""
    return _rows(conn, LANES, {"lane": lane})


DISPATCH = "SELECT * FROM operator_dispatch WHERE %(lane)s::text IS NULL OR lane = %(lane)s ORDER BY lane"


def dispatch(conn: Connection[Any], lane: str | None = None) -> list[Row]:
    """Return each lane's counts: waiting, running, retrying, delayed, dead; and its oldest due, seconds."""
    return _rows(conn, DISPATCH, {"lane": lane})


RUNNING = """
SELECT coalesce(sum(jobs), 0)::bigint AS jobs FROM operator_remaining
 WHERE status = 'processing' AND (%(team)s::text IS NULL OR team = %(team)s)
"""


def running(conn: Connection[Any], team: str | None) -> int:
    """Return how many jobs are being rendered, of one team or of all."""
    return int(_rows(conn, RUNNING, {"team": team})[0]["jobs"])


REMAINING = """
SELECT kind, status, sum(jobs)::bigint AS jobs, min(first_due) AS first_due, max(last_due) AS last_due
  FROM operator_remaining WHERE %(team)s::text IS NULL OR team = %(team)s
 GROUP BY kind, status ORDER BY kind, status
"""


def remaining(conn: Connection[Any], team: str | None) -> list[Row]:
    """Return what is unfinished by kind and status, and between when those with a due time are due."""
    return _rows(conn, REMAINING, {"team": team})


OLDEST = "SELECT seconds AS oldest_due_seconds, intents AS due_intents FROM oldest_due"
SLOTS = "SELECT * FROM operator_slots WHERE slot = %(slot)s"


def oldest_due(conn: Connection[Any]) -> Row:
    """Return how long the oldest intent that is due has waited, seconds, and how many are due."""
    return _rows(conn, OLDEST)[0]


def slot(conn: Connection[Any], name: str) -> Row | None:
    """Return the relay's slot, sizes in bytes; None when this database has none of that name."""
    found = _rows(conn, SLOTS, {"slot": name})
    return found[0] if found else None


QUEUES = "SELECT name FROM operator_queues ORDER BY name"


def queues(conn: Connection[Any]) -> list[str]:
    """Return the names of the queues."""
    return [row["name"] for row in _rows(conn, QUEUES)]


TEAMS = "SELECT * FROM operator_teams ORDER BY id"


def teams(conn: Connection[Any]) -> list[Row]:
    """Return every team with its limits; null: no limit."""
    return _rows(conn, TEAMS)


TOKENS = """
SELECT * FROM operator_tokens
 WHERE (%(team)s::text IS NULL OR team = %(team)s)
   AND (%(all)s OR (revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())))
 ORDER BY team, created_at, id
"""


def tokens(conn: Connection[Any], *, team: str | None, every: bool) -> list[Row]:
    """Return tokens in force, or also those that are revoked and expired; never a token or its hash."""
    return _rows(conn, TOKENS, {"team": team, "all": every})


QUARANTINE = """
SELECT * FROM operator_quarantine
 WHERE %(lane)s::text IS NULL OR lane = %(lane)s
 ORDER BY id DESC LIMIT %(limit)s
"""


def quarantine(conn: Connection[Any], *, lane: str | None, limit: int) -> list[Row]:
    """Return quarantined messages without their bodies, last first."""
    return _rows(conn, QUARANTINE, {"lane": lane, "limit": limit})


WORKERS = "SELECT * FROM operator_workers ORDER BY started_at, id"


def workers(conn: Connection[Any]) -> list[Row]:
    """Return worker processes, how long each has been silent (seconds), and how many jobs name it."""
    return _rows(conn, WORKERS)


AUDIT = "SELECT * FROM operator_audit ORDER BY id DESC LIMIT %(limit)s"


def audit(conn: Connection[Any], limit: int) -> list[Row]:
    """Return what operators did, last first."""
    return _rows(conn, AUDIT, {"limit": limit})


MIGRATIONS = "SELECT name, checksum FROM operator_migrations"


def ledger(conn: Connection[Any]) -> dict[str, str]:
    """Return what `oncommit migrate` has applied: name and checksum."""
    return {row["name"]: row["checksum"] for row in _rows(conn, MIGRATIONS)}


# It reads every job, a million a second or so: the time-out of a session is for statements that hang.
NO_LIMIT = "SET LOCAL statement_timeout = 0"
PRUNABLE = """
SELECT jobs, batches, clock_timestamp() - %(age)s::interval AS before
  FROM prunable(clock_timestamp() - %(age)s::interval, %(dead)s)
"""


def prunable(conn: Connection[Any], age: timedelta, *, dead_too: bool) -> tuple[int, int, datetime]:
    """Return how many jobs, and whole batches among them, ended longer ago than `age`, and when that was."""
    with translated(), conn.transaction():
        conn.execute(NO_LIMIT)
        row = _rows(conn, PRUNABLE, {"age": age, "dead": dead_too})[0]
    return int(row["jobs"]), int(row["batches"]), row["before"]
