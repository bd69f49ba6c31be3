"""Rounds: which catch-up is due, and its turn between two reads of the stream.

Resync after a loss, audit each minute, poll each second without a stream: one at a time, see catch_up.
"""

import time
from typing import Any, Final

from psycopg import Connection

from relay.catch_up import CatchUp, Occasion
from relay.judge import Judge
from relay.publisher import Publisher
from relay.unseen import Unseen
from runtime import metrics
from runtime.logs import get_logger

log = get_logger(__name__)

#: How often dispatch polls while there is no stream.
POLL_SECONDS: Final = 1.0


class Rounds:
    """The catch-ups of one reign; `current` is the one under way."""

    def __init__(
        self,
        conn: Connection[Any],
        publisher: Publisher,
        judge: Judge,
        audit_seconds: float,
    ) -> None:
        self._conn = conn
        self._publisher = publisher
        self._judge = judge
        self._audit_every = audit_seconds
        self._audit_at = time.monotonic() + audit_seconds
        self._poll_at = 0.0
        self._asked: str | None = None
        self._unseen = Unseen()
        self._again = False
        self.current: CatchUp | None = None

    @property
    def busy(self) -> bool:
        """Whether a page can be published now, so that reading should not wait for frames."""
        return self.current is not None

    @property
    def occasion(self) -> Occasion | None:
        """Return what is under way; any thread may ask."""
        current = self.current
        return current.occasion if current else None

    def ask(self, cause: str) -> None:
        """Ask for a resync after the round that is under way; `cause` is a label of the metric."""
        self._asked = cause

    def resync(self, cause: str, *, everything_lost: bool = False) -> None:
        """Begin a resync now, whatever is under way: all before it is void.

        Raises:
            db.errors.DatabaseError: the server is away.

        """
        self._asked = None
        self._again = False
        self._unseen.note(self._conn)
        self._resync(cause, everything_lost=everything_lost)

    def abort(self) -> None:
        """Give up what is under way: Redis is not ours now. A resync follows when it is again."""
        self.current = None

    def step(self, *, streaming: bool) -> None:
        """Publish a page of the round that is under way, or begin the one that is due.

        Raises:
            RedisAway, TokenMismatch: the reign over Redis is over.
            db.errors.DatabaseError: the server is away.

        """
        now = time.monotonic()
        if self.current is not None:
            self.current.step(self._conn, self._publisher)
            if self.current.done:
                self._finish(self.current)
        elif self._asked is not None:
            self.resync(self._asked)
        elif self._again or self._unseen.some_appeared(self._conn):
            self._again = False
            self._resync("seen_late", everything_lost=False)
        elif self._audit_at <= now:
            self._audit_at = now + self._audit_every
            self._begin(Occasion.AUDIT)
        elif not streaming and self._poll_at <= now:
            self._poll_at = now + POLL_SECONDS
            self._begin(Occasion.POLL)

    def _resync(self, cause: str, *, everything_lost: bool) -> None:
        metrics.count("relay_resyncs_total", cause=cause)
        self._begin(Occasion.RESYNC, everything_lost=everything_lost)

    def _begin(self, occasion: Occasion, *, everything_lost: bool = False) -> None:
        metrics.count("relay_catch_ups_total", occasion=occasion)
        self.current = CatchUp(
            occasion,
            self._judge,
            audit_age_ms=round(self._audit_every * 1000),
            unseen=self._unseen,
            everything_lost=everything_lost,
        )

    def _finish(self, catch_up: CatchUp) -> None:
        self.current = None
        self._again = catch_up.again
        metrics.count("relay_published_total", catch_up.republished, road=catch_up.occasion)
        if catch_up.republished or catch_up.occasion is Occasion.RESYNC:
            log.info(
                "relay.caught_up",
                occasion=catch_up.occasion,
                intents=catch_up.seen,
                republished=catch_up.republished,
            )
