"""Catch-up: publish the living intents that Redis does not hold, page by page, by id.

Three occasions, one road:
- **resync**, after every START_REPLICATION and every token mismatch;
- **audit**, each minute: intents older than a minute, so that whatever was dropped anywhere heals;
- **poll**, each second while no stream can be had: dispatch degrades, it does not stop.

All limits come first, then intents. Each `step` is one page of some milliseconds, so live rows flow
between pages.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any

from psycopg import Connection

from broker.lanes import Limit, Outgoing
from db import control, outbox
from relay.publisher import ROWS_PER_CALL, Publisher

#: Ids in one page: 1,000 ids and short names are about 80 KB.
HEADS_PER_PAGE = 1_000
#: A row becomes visible milliseconds after the WAL shows it; under a lagging synchronous standby, seconds.
LOOK_SECONDS = 0.05
#: After 30 s of looking the pass goes on, and the audit finds what appears later.
LOOKS = 600


class Occasion(StrEnum):
    """Why a catch-up runs; also the label of its metrics."""

    RESYNC = "resync"
    AUDIT = "audit"
    POLL = "poll"


@dataclass(slots=True)
class CatchUp:
    """One pass. `dropped` are transaction ids of rows that the stream gave and Redis never got.

    `offer` is called with the intents of a page and returns the messages that may be published;
    `defaults` with the lanes of a page, and returns limits for those that have none. An audit looks at
    intents of `audit_age_ms` and older: younger ones are still on the fast path.
    """

    occasion: Occasion
    offer: Callable[[Sequence[outbox.Intent]], Sequence[Outgoing]]
    defaults: Callable[[Iterable[str]], Sequence[Limit]]
    audit_age_ms: int
    dropped: set[int] = field(default_factory=set[int])
    everything_lost: bool = False
    republished: int = 0
    seen: int = 0
    done: bool = False
    ready_at: float = 0.0  # time.monotonic() before which a step would find nothing new
    _looks: int = 0
    _lane: str | None = ""
    _after: int = 0
    _until: int | None = None
    _newest_first: bool = True

    def step(self, conn: Connection[Any], publisher: Publisher) -> None:
        """Do one page.

        Raises:
            RedisAway, TokenMismatch: this pass is void; start a new one when Redis is back.
            db.errors.DatabaseError: likewise, for PostgreSQL.

        """
        if self._lane is not None:
            self._limits_page(conn, publisher)
        elif self._until is None:
            self._fix_end(conn)
        else:
            self._intents_page(conn, publisher, self._until)

    def _limits_page(self, conn: Connection[Any], publisher: Publisher) -> None:
        page = control.latest(conn, self._lane or "", ROWS_PER_CALL)
        publisher.publish(
            limits=[
                Limit(s.lane, s.version, s.max_running, s.weight, s.rate_per_second, s.burst, s.paused)
                for s in page
            ]
        )
        self._lane = page[-1].lane if len(page) == ROWS_PER_CALL else None

    def _fix_end(self, conn: Connection[Any]) -> None:
        # The WAL shows a commit before snapshots do: a dropped row must be visible before we look.
        if self.dropped:
            self.dropped = set(outbox.invisible(conn, sorted(self.dropped)))
        self._looks += 1
        if not self.dropped or self._looks > LOOKS:
            self._until = outbox.last(conn)
        else:
            self.ready_at = time.monotonic() + LOOK_SECONDS

    def _intents_page(self, conn: Connection[Any], publisher: Publisher, until: int) -> None:
        age = self.audit_age_ms if self.occasion is Occasion.AUDIT else 0
        size = ROWS_PER_CALL if self.everything_lost else HEADS_PER_PAGE
        # What came while the loss was found out is the newest: it shall not wait behind a whole backlog.
        newest, self._newest_first = self._newest_first and self.occasion is not Occasion.AUDIT, False
        after = max(until - size, 0) if newest else self._after
        heads = outbox.heads(conn, after, until, size, older_than_ms=age)
        # Also for what Redis holds: its lanes are closed if the limits were lost, or are of another life.
        if limits := self.defaults({message_id.split("|", 1)[0] for _, message_id, _ in heads}):
            publisher.publish(limits=limits)
        wanted = [i for i, _, _ in heads] if self.everything_lost else _missing(heads, publisher)
        for start in range(0, len(wanted), ROWS_PER_CALL):
            intents = outbox.intents(conn, wanted[start : start + ROWS_PER_CALL])
            done = publisher.publish(self.offer(intents))
            self.republished += done.new + done.revived
        if newest and after > 0:
            return
        self.seen += len(heads)
        if len(heads) < size:
            self.done = True
        else:
            self._after = heads[-1][0]


def _missing(heads: Sequence[tuple[int, str, str]], publisher: Publisher) -> list[int]:
    """Return the ids of those heads whose message Redis does not hold."""
    by_queue = groupby(sorted(heads, key=itemgetter(2)), key=itemgetter(2))
    lost: list[int] = []
    for queue, group in by_queue:
        ids = {message_id: intent for intent, message_id, _ in group}
        lost += [ids[m] for m in publisher.missing(queue, list(ids))]
    return sorted(lost)
