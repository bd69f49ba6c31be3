"""Judge: what of a page or a burst may become messages, and what must be put away.

The columns' forms are judged by `rows`, for the stream and for pages alike; what only the database
knows, the queues, is judged here. The body is the worker's to judge. A bad row is quarantined with
its reason and never stops the rows behind it.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from broker.lanes import Limit, Outgoing
from db import outbox
from relay.clock import PostgresClock
from relay.events import ControlRow, OutboxRow, Poison
from relay.rows import outbox_row
from runtime.logs import about_message, get_logger

log = get_logger(__name__)

MAX_INTENT = 1 << 48  # a lane's score holds the priority above 48 bits of id
#: Rows waiting to be put away: one may not be visible yet. More than that are left to the audit.
MAX_WAITING = 1_000
RETRY_SECONDS = 0.1
GIVE_UP_SECONDS = 60.0


@dataclass(slots=True)
class _Waiting:
    message_id: str
    reason: str
    since: float
    queue: str | None = None  # put away only if this is still unknown once the row can be seen


class Judge:
    """Turns rows into messages and puts poison away. One per reign."""

    def __init__(self, conn: Connection[Any], clock: PostgresClock) -> None:
        self._conn = conn
        self._clock = clock
        self._queues = frozenset[str]()
        self._lanes: set[str] = set()
        self._owed: set[str] = set()
        self._told = False
        self._waiting: deque[_Waiting] = deque(maxlen=MAX_WAITING)
        self._next_try = 0.0
        #: A row was held for poison and is none: the pages have to publish it.
        self.found_late = False

    def learn(self) -> None:
        """Read the names of the queues.

        Raises:
            db.errors.DatabaseError: the server is away.

        """
        self._queues = outbox.queues(self._conn)

    def messages(self, rows: Iterable[OutboxRow]) -> list[Outgoing]:
        """Return the messages of rows from the stream."""
        left = self._clock.remaining_ms
        return [
            m
            for row in rows
            if (m := self._message(row, left(row.not_before, row.created_at) if row.not_before else 0))
        ]

    def offer(self, intents: Sequence[outbox.Intent]) -> list[Outgoing]:
        """Return the messages of a page of intents."""
        messages: list[Outgoing] = []
        for i in intents:
            row = outbox_row(
                {
                    "id": i.id,
                    "message_id": i.message_id,
                    "queue": i.queue,
                    "lane": i.lane,
                    "priority": i.priority,
                    "not_before": None,
                    "body": i.body,
                }
            )
            if isinstance(row, Poison):
                self.put_away(i.message_id, row.reason)
            elif not i.finite:
                self.put_away(i.message_id, "not_before: no moment in time")
            elif message := self._message(row, i.delay_ms):
                messages.append(message)
        return messages

    def _message(self, row: OutboxRow, delay_ms: int) -> Outgoing | None:
        if row.queue not in self._queues:
            self.learn()  # an application may have added one since
        if row.queue not in self._queues:
            reason = f"unknown queue {row.queue!r}: add it to `queues` and replay"
            self.put_away(row.message_id, reason, queue=row.queue)
        elif row.intent >= MAX_INTENT:
            self.put_away(row.message_id, f"intent {row.intent} is above {MAX_INTENT}")
        else:
            return Outgoing(
                row.queue, row.message_id, row.lane, row.priority, row.intent, delay_ms, row.body.encode()
            )
        return None

    def limits(self, rows: Iterable[ControlRow]) -> list[Limit]:
        """Return the limits that settings rows from the stream set."""
        changed = [
            Limit(r.lane, r.version, r.max_running, r.weight, r.rate_per_second, r.burst, r.paused)
            for r in rows
        ]
        self._lanes.update(limit.lane for limit in changed)
        return changed

    def defaults(self, lanes: Iterable[str]) -> list[Limit]:
        """Return default limits for those of the lanes that were told none in this reign.

        A lane stays closed until its limits are known. A team is born with a row of `control`; a lane
        of somebody's own actor may have none. Version 0 is below any row's, so it never undoes one, but
        it would open a paused lane before its row is told: none until `limits_are_told`.
        """
        unknown = set(lanes) - self._lanes
        if not self._told:
            self._owed |= unknown
            return []
        self._lanes |= unknown
        return [Limit(lane, 0, None, 1, None, 1, paused=False) for lane in sorted(unknown)]

    def limits_are_told(self) -> list[Limit]:
        """Note that Redis knows every row of `control` now; return the defaults held back until now."""
        self._told = True
        owed, self._owed = self._owed, set()
        return self.defaults(owed)

    def forget_lanes(self) -> None:
        """Redis may have lost what it was told: send everything again."""
        self._lanes.clear()
        self._owed.clear()
        self._told = False

    def put_away(self, message_id: str | None, reason: str, *, queue: str | None = None) -> None:
        """Quarantine the intent as soon as it can be seen; `queue`: only if that is unknown even then."""
        log.error("relay.poison", reason=reason, **about_message(message_id or ""))
        if message_id is not None:
            self._waiting.append(_Waiting(message_id, reason, time.monotonic(), queue))
            self._next_try = 0.0

    def settle_waiting(self) -> int:
        """Try to quarantine what waits; return how many were.

        Raises:
            db.errors.DatabaseError: the server is away; the audit finds what is left.

        """
        now = time.monotonic()
        if not self._waiting or now < self._next_try:
            return 0
        self._next_try = now + RETRY_SECONDS
        settled = 0
        for _ in range(len(self._waiting)):
            item = self._waiting.popleft()
            outcome = self._settle(item)
            if outcome == "quarantined":
                settled += 1
            elif outcome == "gone" and now - item.since < GIVE_UP_SECONDS:
                # The WAL shows a commit before snapshots do: look again. A consumed one is given up later.
                self._waiting.append(item)
        return settled

    def _settle(self, item: _Waiting) -> str:
        """Quarantine one row, if it is still poison; return the outcome, `gone` while it cannot be seen."""
        if item.queue is not None:
            if not outbox.alive(self._conn, item.message_id):
                return "gone"
            self.learn()  # the queue may have been added by the very transaction that the WAL showed early
            if item.queue in self._queues:
                self.found_late = True
                return "fine"
        return outbox.quarantine(self._conn, item.message_id, item.reason, "relay")
