"""The steward: gives the claims of lost workers back. One runs in every worker process; any one suffices.

A worker is lost when its heartbeat has stayed the same over `lost_seconds` of the steward's own
successful reads, without a gap between them: after an outage of the database, or of the steward's own
process, everybody has that time again to beat before being taken for dead.
"""

import random
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event
from uuid import UUID

from actors.kept_connection import KeptConnection
from db import workers
from db.errors import DatabaseError
from runtime import metrics
from runtime.logs import get_logger

log = get_logger(__name__)

#: A render that ended in time has this long to write its end before its claim is taken away.
CLAIM_MARGIN_SECONDS = 30.0
#: Rows of processes that ended without saying so are kept so long, for whoever asks what happened.
FORGET_AFTER = timedelta(days=1)
#: Longest time between two looks; the lost job waits for it on top.
LONGEST_INTERVAL_SECONDS = 3.0


@dataclass(slots=True)
class _Watched:
    """A heartbeat (None: no row at all) and how long it has been seen unchanged, in seconds of reading."""

    beat: datetime | None
    seconds: float


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
        self._watched: dict[UUID, _Watched] = {}
        self._last_read = float("-inf")
        self._reading_seconds = 0.0  # without a gap

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
            DatabaseError: the database is away; nothing was counted.

        """
        with self._database.connection() as conn:
            beats: dict[UUID, datetime | None] = dict(workers.heartbeats(conn))
            beats |= dict.fromkeys(workers.orphans(conn))
            lost = self._watch(beats, now)
            # A claim's age counts the time in which nobody could end it, too: only after that much
            # reading without a gap is an old claim one whose worker does not end it.
            limit = timedelta(seconds=self._claim_seconds)
            steady = self._reading_seconds >= self._claim_seconds
            rescued = workers.rescue(conn, lost, limit if steady else None, self._who)
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

    def _watch(self, beats: dict[UUID, datetime | None], now: float) -> dict[UUID, datetime | None]:
        """Count this read; return the workers whose heartbeat stood still for too long."""
        passed = now - self._last_read
        self._last_read = now
        if passed > 3 * self.interval:  # a gap: the database or this process was away
            passed = self._reading_seconds = 0.0
            self._watched = {}  # whoever could not beat either begins with a full allowance
        self._reading_seconds += passed
        watched: dict[UUID, _Watched] = {}
        for worker, beat in beats.items():
            before = self._watched.get(worker)
            same = before is not None and before.beat == beat
            watched[worker] = _Watched(beat, before.seconds + passed if before and same else 0.0)
        self._watched = watched
        return {w: seen.beat for w, seen in watched.items() if seen.seconds >= self._lost_seconds}
