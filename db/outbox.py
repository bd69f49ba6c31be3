"""The outbox: intents, written with the change that calls for them and alive until consumed.

`append` is public API: any application may dispatch its own actors' messages in its own transaction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson
from psycopg import Connection

from db.errors import translated

#: Room for identifiers and bounded metadata, never for documents; the schema checks the same number.
MAX_BODY_BYTES = 4096


class BodyTooLarge(ValueError):
    """The encoded message is over 4 KiB: put the data in a table or a blob, and send its id."""


@dataclass(frozen=True, slots=True)
class Intent:
    """One row of `outbox`, with `delay_ms` the time until it is due by PostgreSQL's clock (0: due).

    `finite` is False for a row whose `not_before` is no moment: never to be published.
    """

    id: int
    message_id: str
    queue: str
    lane: str
    priority: int
    delay_ms: int
    body: str
    finite: bool


APPEND = """
INSERT INTO public.outbox (message_id, queue, lane, priority, not_before, body)
VALUES (%s, %s, %s, %s, clock_timestamp() + %s * interval '1 ms', %s)
"""


def append(
    conn: Connection[Any],
    actor: str,
    args: Sequence[Any] = (),
    *,
    lane: str,
    queue: str = "default",
    kwargs: Mapping[str, Any] | None = None,
    priority: int = 5,
    delay_ms: int | None = None,
    dedupe: str | None = None,
) -> str:
    """Add an intent for any Dramatiq actor, in the caller's transaction; return its message id.

    The message is dispatched if and when that transaction commits. `lane` is whose turn it takes,
    `dedupe` makes the id deterministic: `{lane}|{dedupe}`; while its intent lives, the same id is a unique
    violation. Afterwards it may be used again: a message of the old intent that Redis may still hold is
    replaced, or is not run. The queue must be in `queues`.

    Raises:
        BodyTooLarge: the encoded message is over 4 KiB.
        TypeError: an argument is not JSON.
        psycopg.Error: the row was refused; the caller's transaction decides.

    """
    message_id = f"{lane}|{dedupe or uuid4()}"
    row = conn.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchone()
    body = orjson.dumps(
        {
            "queue_name": queue,
            "actor_name": actor,
            "args": list(args),
            "kwargs": dict(kwargs or {}),
            "options": {"redis_message_id": message_id},
            "message_id": message_id,
            "message_timestamp": row[0] if row else 0,
        }
    )
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"{actor}: {len(body)} bytes encoded, {MAX_BODY_BYTES} allowed")
    conn.execute(APPEND, [message_id, queue, lane, priority, delay_ms, body.decode()])
    return message_id


# A row from the future was written before the server's clock was set back: it is old, by how much nobody
# knows. Without that no pass would look at it until the clock has caught up.
#
# The upper end is outside: a range with two ends is taken for a few rows as long as the table was never
# analysed, and each page would then fetch and sort all that are left of the backlog.
HEADS = """
WITH page AS (
  SELECT id, message_id, queue FROM outbox
   WHERE id > %s
     AND (created_at <= clock_timestamp() - %s * interval '1 ms' OR created_at > clock_timestamp())
   ORDER BY id LIMIT %s
)
SELECT id, message_id, queue FROM page WHERE id <= %s ORDER BY id
"""


def heads(
    conn: Connection[Any], after: int, until: int, limit: int, *, older_than_ms: int = 0
) -> list[tuple[int, str, str]]:
    """Return (id, message id, queue) of living intents with after < id <= until, in order of id."""
    with translated():
        return conn.execute(HEADS, [after, older_than_ms, limit, until]).fetchall()


# Never longer than was asked for: a clock that was set back meanwhile does not make a retry wait for it.
INTENTS = """
SELECT id, message_id, queue, lane, priority,
       CASE WHEN isfinite(not_before)
            THEN greatest(0, ceil(extract(epoch FROM least(not_before - clock_timestamp(),
                                                           not_before - created_at)) * 1000))::bigint END,
       body, coalesce(isfinite(not_before), true)
  FROM outbox WHERE id = ANY(%s) ORDER BY id
"""


def intents(conn: Connection[Any], ids: Sequence[int]) -> list[Intent]:
    """Return these intents with their bodies; those consumed meanwhile are left out."""
    with translated():
        rows = conn.execute(INTENTS, [list(ids)]).fetchall()
    return [Intent(i, m, q, lane, p, delay or 0, body, fine) for i, m, q, lane, p, delay, body, fine in rows]


QUEUES = "SELECT name FROM queues"


def queues(conn: Connection[Any]) -> frozenset[str]:
    """Return the names of the queues that exist."""
    with translated():
        return frozenset(row[0] for row in conn.execute(QUEUES).fetchall())


LAST = "SELECT coalesce(max(id), 0) FROM outbox"


def last(conn: Connection[Any]) -> int:
    """Return the highest id of a living intent, 0 when there is none."""
    with translated():
        row = conn.execute(LAST).fetchone()
    return int(row[0]) if row else 0


# The WAL carries 32 bits of a transaction id; the epoch is that of the nearest id to the snapshot's end.
INVISIBLE = """
WITH s AS (
  SELECT pg_current_snapshot() AS snapshot, pg_snapshot_xmax(pg_current_snapshot())::text::numeric AS xmax
), full_ids AS (
  SELECT x.xid, x.xid + 4294967296 * round((s.xmax - x.xid) / 4294967296) AS id, s.snapshot
    FROM unnest(%s::bigint[]) AS x(xid) CROSS JOIN s
)
SELECT xid FROM full_ids WHERE NOT pg_visible_in_snapshot(id::text::xid8, snapshot)
"""


def invisible(conn: Connection[Any], xids: Sequence[int]) -> list[int]:
    """Return those of the WAL's transaction ids whose rows a query of now would not see yet."""
    with translated():
        return [int(row[0]) for row in conn.execute(INVISIBLE, [list(xids)]).fetchall()]


# A transaction holds the lock on its number until snapshots see it, hence also while it waits for a standby.
UNFINISHED = "SELECT transactionid::text::bigint FROM pg_locks WHERE locktype = 'transactionid' AND granted"


def unfinished(conn: Connection[Any]) -> list[int]:
    """Return the 32-bit ids of the transactions that have written and that no snapshot can see yet."""
    with translated():
        return [int(row[0]) for row in conn.execute(UNFINISHED).fetchall()]


CONSUME = "DELETE FROM outbox WHERE message_id = %s AND id = %s"
ALIVE = "SELECT EXISTS (SELECT FROM outbox WHERE message_id = %s AND id = coalesce(%s, id))"


def consume(conn: Connection[Any], message_id: str, intent: int) -> bool:
    """Delete the intent of that number; False when it was consumed before."""
    with translated():
        return conn.execute(CONSUME, [message_id, intent]).rowcount == 1


def alive(conn: Connection[Any], message_id: str, intent: int | None = None) -> bool:
    """Tell whether the intent is still to be consumed: the one of that number, or any of this id."""
    with translated():
        row = conn.execute(ALIVE, [message_id, intent]).fetchone()
    return bool(row and row[0])


QUARANTINE = "SELECT quarantine_intent(%s, %s, %s)"


def quarantine(conn: Connection[Any], message_id: str, reason: str, who: str) -> str:
    """Take the intent out of circulation; its job becomes dead, and can be replayed.

    Returns `quarantined`, `gone` (no such intent) or `in_use` (its job is being rendered).
    """
    with translated(), conn.transaction():
        row = conn.execute(QUARANTINE, [message_id, reason, who]).fetchone()
    return str(row[0]) if row else "gone"
