"""Catch-up: publish the living intents that Redis does not hold, page by page, by id.

Three occasions, one road:
- **resync**, after every START_REPLICATION and every token mismatch;
- **audit**, each minute: intents older than a minute, so that whatever was dropped anywhere heals;
- **poll**, each second while no stream can be had: dispatch degrades, it does not stop.

All limits come first, then intents. Each `step` is one page of some milliseconds, so live rows flow
between pages.
"""

from collections.abc import Sequence
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any

from psycopg import Connection

from broker.lanes import Limit
from db import control, outbox
from relay.judge import Judge
from relay.publisher import ROWS_PER_CALL, Publisher
from relay.unseen import Unseen

#: Ids in one page: 1,000 ids and short names are about 80 KB.
HEADS_PER_PAGE = 1_000


class Occasion(StrEnum):
    """Why a catch-up runs; also the label of its metrics."""

    RESYNC = "resync"
    AUDIT = "audit"
    POLL = "poll"


class CatchUp:
    """One pass.

    `unseen` are transactions that no snapshot saw when the pass began. An audit looks at intents of
    `audit_age_ms` and older: younger ones are still on the fast path.

    Attributes:
        seen: living intents looked at.
        republished: those of them that Redis did not hold.
        done: nothing is left to do.
        again: some of what was unseen has appeared since: its intents may be missing from these pages.

    """

    def __init__(
        self,
        occasion: Occasion,
        judge: Judge,
        *,
        audit_age_ms: int,
        unseen: Unseen,
        everything_lost: bool = False,
    ) -> None:
        self.occasion = occasion
        self._judge = judge
        self._age_ms = audit_age_ms if occasion is Occasion.AUDIT else 0
        self._unseen = unseen
        self._everything_lost = everything_lost
        self.seen = 0
        self.republished = 0
        self.done = False
        self.again = False
        self._lane: str | None = ""
        self._after = 0
        self._until: int | None = None
        self._newest_first = occasion is not Occasion.AUDIT

    def step(self, conn: Connection[Any], publisher: Publisher) -> None:
        """Do one page.

        Raises:
            RedisAway, TokenMismatch: this pass is void; start a new one when Redis is back.
            db.errors.DatabaseError: likewise, for PostgreSQL.

        """
        if self._unseen.some_appeared(conn):
            self.again = True
            self._lane = ""  # a pause among it shall not wait for the rest of the pages
        if self._lane is not None:
            self._lane = self._limits_page(conn, publisher, self._lane)
        elif self._until is None:
            self._until = outbox.last(conn)
        else:
            self._intents_page(conn, publisher, self._until)

    def _limits_page(self, conn: Connection[Any], publisher: Publisher, after: str) -> str | None:
        """Publish a page of lanes' settings; return the lane to go on after, None when it was the last."""
        page = control.latest(conn, after, ROWS_PER_CALL)
        limits = [
            Limit(s.lane, s.version, s.max_running, s.weight, s.rate_per_second, s.burst, s.paused)
            for s in page
        ]
        if len(page) == ROWS_PER_CALL:
            publisher.publish(limits=limits)
            return page[-1].lane
        publisher.publish(limits=limits + self._judge.limits_are_told())
        return None

    def _intents_page(self, conn: Connection[Any], publisher: Publisher, until: int) -> None:
        size = ROWS_PER_CALL if self._everything_lost else HEADS_PER_PAGE
        # What came while the loss was found out is the newest: it shall not wait behind a whole backlog.
        newest, self._newest_first = self._newest_first, False
        after = max(until - size, 0) if newest else self._after
        heads = outbox.heads(conn, after, until, size, older_than_ms=self._age_ms)
        # Also for what Redis holds: its lanes are closed if the limits were lost, or are of another life.
        if limits := self._judge.defaults({message_id.split("|", 1)[0] for _, message_id, _ in heads}):
            publisher.publish(limits=limits)
        wanted = [i for i, _, _ in heads] if self._everything_lost else _missing(heads, publisher)
        for start in range(0, len(wanted), ROWS_PER_CALL):
            intents = outbox.intents(conn, wanted[start : start + ROWS_PER_CALL])
            done = publisher.publish(self._judge.offer(intents))
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
        lost += [ids[m] for m in publisher.missing(queue, ids)]
    return sorted(lost)
