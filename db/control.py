"""Control: each lane's settings, the latest version of which is in force everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from db.errors import translated

#: The lane whose `paused` is the global switch.
EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """One row of `control`. None means no limit; `rate_per_second` starts a second, `burst` at once."""

    lane: str
    version: int
    max_running: int | None
    weight: int
    rate_per_second: float | None
    burst: int
    paused: bool


LATEST = """
SELECT c.lane, c.version, c.max_running, c.weight, c.rate_per_second, c.burst, c.paused
  FROM control c
 WHERE c.lane > %s
   AND NOT EXISTS (SELECT FROM control n WHERE n.lane = c.lane AND n.version > c.version)
 ORDER BY c.lane LIMIT %s
"""


def latest(conn: Connection[Any], after: str, limit: int) -> Sequence[LaneSettings]:
    """Return a page of lanes' settings in force, by name, after the lane `after` ('' from the start)."""
    with translated():
        return [LaneSettings(*row) for row in conn.execute(LATEST, [after, limit]).fetchall()]


RAISE_EPOCH = "SELECT setval('relay_epoch', greatest(%s, (SELECT last_value FROM relay_epoch)))"


def raise_epoch(conn: Connection[Any], past: int) -> None:
    """Make the next epoch higher than `past`: a restored database counts from where its backup was."""
    with translated():
        conn.execute(RAISE_EPOCH, [past])


LAST_EPOCH = "SELECT last_value FROM relay_epoch"


def last_epoch(conn: Connection[Any]) -> int:
    """Return the epoch that was drawn last, or a later one after a crash of the server."""
    with translated():
        row = conn.execute(LAST_EPOCH).fetchone()
    if row is None:
        raise LookupError("relay_epoch")
    return int(row[0])


NEXT_EPOCH = "SELECT nextval('relay_epoch')"


def next_epoch(conn: Connection[Any]) -> int:
    """Draw a relay's fencing epoch, higher than any before."""
    with translated():
        row = conn.execute(NEXT_EPOCH).fetchone()
    if row is None:
        raise LookupError("relay_epoch")
    return int(row[0])
