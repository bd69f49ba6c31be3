"""The steward: gives the claims of lost workers back. One runs in every worker process; any one suffices.

A worker is lost when its heartbeat has stayed the same over `lost_seconds` of the steward's own
successful reads, without a gap between them: after an outage of the database, or of the steward's own
process, everybody has that time again to beat before being taken for dead. A database that can be read but
not written is such an outage, too: nobody's heartbeat moves. In the same way a claim is overdue when the
steward has read it, the same, for longer than any render may take. So only time that the steward has
watched counts, by its monotonic clock: no time of day, here or in PostgreSQL, does.
"""

import random
import time
from collections.abc import Hashable, Mapping
from datetime import datetime, timedelta
from threading import Event
from typing import Generic, TypeVar
from uuid import UUID

from actors.kept_connection import KeptConnection
from db import workers
from db.errors import DatabaseError, Unavailable
from runtime import metrics
from runtime.logs import get_logger

log = get_logger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: A render that ended in time has this long to write its end before its claim is taken away.
CLAIM_MARGIN_SECONDS = 30.0
#: Rows of processes that ended without saying so are kept so long, for whoever asks what happened.
FORGET_AFTER = timedelta(days=1)
#: Longest time between two looks; the lost job waits for it on top.
LONGEST_INTERVAL_SECONDS = 3.0


class Unchanged(Generic[K, V]):
    """How long each key has been read with the same value: in seconds of reading, not of any clock's."""

    def __init__(self) -> None:
        self._seen: dict[K, tuple[V, float]] = {}

    def read(self, found: Mapping[K, V], passed: float | None) -> None:
        """Take in a reading, `passed` seconds after the one before; None: after a gap, so all begin anew."""
        seen: dict[K, tuple[V, float]] = {}
        for key, value in found.items():
            before = self._seen.get(key)
            same = passed is not None and before is not None and before[0] == value
            seen[key] = (value, before[1] + passed if same and before and passed is not None else 0.0)
        self._seen = seen

    def longer(self, seconds: float) -> dict[K, V]:
        """Return what has stayed the same for so long."""
        return {key: value for key, (value, lasted) in self._seen.items() if lasted >= seconds}


class Steward:
    """Watches heartbeats and claims; `run` is the thread's loop, `look` one turn of it."""

    def __init__(
        self, worker: UUID, database: KeptConnection, *, lost_seconds: float, render_seconds: float
    ) -> None:
        self._who = f"steward:{worker}"
        self._database = database
        self._lost_seconds = lost_seconds
        self._claim_seconds = render_seconds + CLAIM_MARGIN_SECONDS
        self.interval = min(LONGEST_INTERVAL_SECONDS, lost_seconds / 5)
        self._beats: Unchanged[UUID, datetime | None] = Unchanged()
        self._claims: Unchanged[workers.ClaimKey, None] = Unchanged()
        self._last_read = float("-inf")

    def run(self, stopped: Event) -> None:
        """Look until `stopped`, at moments that differ between processes."""
        while not stopped.wait(self.interval * random.uniform(0.7, 1.0)):  # noqa: S311 -- spreads load
            try:
                self.look(time.monotonic())
            except DatabaseError as error:
                log.warning("the steward cannot look: %s", error)

    def look(self, now: float) -> list[workers.Rescued]:
        """Read heartbeats at `now` (seconds, monotonic), rescue what is lost, and return it.

        Raises:
            DatabaseError: the database is away, or takes nothing: such time does not count.

        """
        with self._database.connection() as conn:
            beats: dict[UUID, datetime | None] = dict(workers.heartbeats(conn))
            beats |= dict.fromkeys(workers.orphans(conn))
            claims = dict.fromkeys(workers.claimed(conn))
            passed = self._passed(now)
            self._beats.read(beats, passed)
            self._claims.read(claims, passed)
            lost = self._beats.longer(self._lost_seconds)
            try:
                rescued = workers.rescue(conn, lost, self._claims.longer(self._claim_seconds), self._who)
            except Unavailable:  # nor could anybody beat, or end its claim: all begin anew
                self._last_read = float("-inf")
                raise
            workers.forget(conn, FORGET_AFTER)
        metrics.gauge("workers_alive", sum(b is not None for b in beats.values()) - len(lost))
        for one in rescued:
            metrics.count("jobs_rescued_total", outcome=one.outcome)
            log.warning(
                "worker lost",
                job=str(one.job),
                team=one.team,
                dispatch=one.dispatch_no,
                attempt=one.attempt,
                lost_worker=str(one.worker),
                outcome=one.outcome,
            )
        return rescued

    def _passed(self, now: float) -> float | None:
        """Return the seconds since the last reading, None after a gap: the database or this process was away.

        Whoever could not beat, or end its claim, meanwhile begins with a full allowance.
        """
        passed = now - self._last_read
        self._last_read = now
        return passed if passed <= 3 * self.interval else None
