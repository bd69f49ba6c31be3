"""Probes: synthetic intents through the whole path, and the times at which they passed each stage.

Sent and read by the operator, claimed and finished by workers; each through a function or a view.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg.rows import class_row

from db.errors import translated

#: The lane of probes; no team may have this name.
LANE = "oncommit-probe"
#: In one run; the schema checks the same number.
MOST = 1000


@dataclass(frozen=True, slots=True)
class Sent:
    """A run that is committed, and the message ids of its intents."""

    run: UUID
    message_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Probe:
    """Where one probe is; times by PostgreSQL's clock. `quarantined`: the reason why it was put aside."""

    message_id: str
    claimed_at: datetime | None
    finished_at: datetime | None
    worker: UUID | None
    quarantined: str | None
    quarantined_by: str | None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.finished_at is not None or self.quarantined is not None


class Found(StrEnum):
    """What a worker finds for a probe's message: `gone` when its run is over."""

    TAKEN = "taken"
    NOT_YET = "not_yet"
    GONE = "gone"


SEND = "SELECT run, message_ids FROM send_probes(%s, %s, %s, %s)"


def send(conn: Connection[Any], count: int, *, queue: str, who: str, reason: str) -> Sent:
    """Commit 1 to 1000 probes and their intents in one transaction.

    Raises:
        Refused: too many, no such queue, or ten thousand probes are under way.
        DatabaseError: the server is away.

    """
    with translated(), conn.transaction():
        row = conn.execute(SEND, [count, queue, who, reason]).fetchone()
    if row is None:
        raise LookupError("send_probes")
    return Sent(row[0], row[1])


PROBES = """
SELECT message_id, claimed_at, finished_at, worker, quarantined, quarantined_by
  FROM operator_probes WHERE run = %s
"""


def look(conn: Connection[Any], run: UUID) -> list[Probe]:
    """Return every probe of a run, in no order."""
    with translated(), conn.cursor(row_factory=class_row(Probe)) as cursor:
        return cursor.execute(PROBES, [run]).fetchall()


END = "SELECT end_probe(%s)"


def end(conn: Connection[Any], run: UUID) -> int:
    """Take away what is left of a run; return how many intents of other runs are alive."""
    with translated(), conn.transaction():
        row = conn.execute(END, [run]).fetchone()
    return int(row[0]) if row else 0


CLAIM = "SELECT claim_probe(%s, %s, %s)"


def claim(conn: Connection[Any], message_id: str, sent_ms: int, worker: UUID) -> Found:
    """Write that this worker has the message, sent at `sent_ms` since 1970 by PostgreSQL's clock."""
    with translated():
        row = conn.execute(CLAIM, [message_id, sent_ms, worker]).fetchone()
    return Found(row[0]) if row else Found.GONE


FINISH = "SELECT finish_probe(%s)"


def finish(conn: Connection[Any], message_id: str) -> None:
    """Write the probe's end and delete its intent."""
    with translated():
        conn.execute(FINISH, [message_id])
