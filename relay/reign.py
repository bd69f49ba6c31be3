"""A reign: one relay, one slot, one token, from START_REPLICATION until something ends it.

The order makes it safe: attach the stream first, then draw the epoch, then seize Redis, then
catch up page by page while live rows flow. Without a stream the reign polls, and asks for one again.
While Redis is away the stream is read and confirmed all the same, and nothing is kept: the intents
wait in the table.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from psycopg import Connection

from broker.lanes import TokenMismatch
from db import control, outbox
from relay.catch_up import CatchUp, Occasion
from relay.clock import PostgresClock
from relay.errors import DecodeError
from relay.events import Begin, Commit, ControlRow, Event, OutboxRow, Poison
from relay.judge import Judge
from relay.publisher import Publisher, RedisAway
from relay.source import Source
from relay.stream import ReplicationStream
from runtime import metrics
from runtime.failpoints import failpoint
from runtime.health import Health
from runtime.logs import get_logger
from runtime.settings import Settings

if TYPE_CHECKING:
    from relay.service import Relay

log = get_logger(__name__)

#: The beat finds a loss of Redis' data without traffic, well within a second.
BEAT_SECONDS: Final = 0.3
#: How soon Redis is tried again: a refusal costs nothing; a frozen one costs its time-out each time, in
#: which the WAL is not read.
REDIS_RETRY_SECONDS: Final = 0.25
FROZEN_RETRY_SECONDS: Final = 1.0
#: How often dispatch polls while there is no stream, and how often one is asked for.
POLL_SECONDS: Final = 1.0
STREAM_RETRY_SECONDS: Final = 3.0
#: Between looks at the slot and the publication.
INSPECT_SECONDS: Final = 10.0
#: Transactions dropped while Redis is away are remembered only until a snapshot can see them.
DROPPED_CHECK: Final = 1_000


class ReignOver(Exception):
    """This relay has to begin anew: the slot is another's, or the stream cannot be trusted."""


class Reign:
    """Built on an open connection as oncommit_relay; `run` returns when the relay stops."""

    def __init__(
        self, relay: "Relay", settings: Settings, publisher: Publisher, conn: Connection[Any]
    ) -> None:
        self._relay = relay
        self._publisher = publisher
        self._conn = conn
        self._source = Source(settings, conn)
        self._clock = PostgresClock()
        self._judge = Judge(conn, self._clock)
        self._catch_up: CatchUp | None = None
        self._dropped: set[int] = set()
        self._xid = 0
        self._in_transaction = False
        self._done_lsn = 0
        self._beat_at = 0.0
        self._redis_at = 0.0
        self._stream_at = 0.0
        self._audit_every = settings.audit_seconds
        self._audit_at = time.monotonic() + self._audit_every
        self._inspect_at = time.monotonic() + INSPECT_SECONDS
        self._redis_reason = "not tried yet"
        self._resync_due = False
        self._cause = "attached"
        self._restored = False
        self._poll_at = 0.0

    # -- the loop

    def run(self) -> None:
        """Relay until `Relay.stop`.

        Raises:
            SlotBusy: another relay has the slot.
            ReignOver, StreamError, DatabaseError: begin anew.

        """
        self._judge.learn()
        self._clock.sample(self._conn)
        self._attach(start=self._start_position())
        self._relay.reigning()
        while not self._relay.stopping:
            self._relay.turned()
            if self._source.stream is not None:
                self._read(self._source.stream)
            else:
                self._wait_and_poll()
            self._duties()

    def close(self) -> None:
        """Give the slot back."""
        self._source.close()
        self._publisher.abandon()

    def ready(self) -> Health:
        """Readiness: a stream to read and Redis to write, or an honest account of what is missing."""
        detail = {
            "role": "relay" if self._source.stream else "polling",
            "redis": "ok" if self._publisher.reigns else self._redis_reason,
            "stream": "ok" if self._source.stream else self._source.reason,
            "catching_up": self._catch_up.occasion if self._catch_up else None,
        }
        return Health(ok=self._publisher.reigns and self._source.stream is not None, detail=detail)

    # -- reading

    def _attach(self, start: int) -> None:
        self._stream_at = time.monotonic() + STREAM_RETRY_SECONDS
        stream = self._source.attach(start)
        if stream is None:
            return
        self._publisher.abandon()  # the epoch must be drawn after START_REPLICATION succeeded
        self._redis_at = 0.0
        self._cause = "attached"
        self._done_lsn = 0
        self._in_transaction = False
        log.info("relay.attached", slot=self._source.slot, decoder=self._source.plugin, pid=stream.pid)

    def _start_position(self) -> int:
        try:
            return self._source.position(self._publisher.position())
        except RedisAway:
            return 0

    def _read(self, stream: ReplicationStream) -> None:
        busy = self._catch_up is not None and self._catch_up.ready_at <= time.monotonic()
        due = self._beat_at if self._publisher.reigns else self._redis_at
        pause = 0.0 if busy else due - time.monotonic()
        frames = stream.read(min(max(pause, 0.0), BEAT_SECONDS))
        if not frames:
            if not self._in_transaction:
                stream.confirm_idle()
            return
        failpoint("relay.after_read")
        events: list[Event] = []
        for frame in frames:
            try:
                events += self._source.decoder.feed(frame.payload, frame.lsn)
            except DecodeError as error:
                self._unreadable(error)
        failpoint("relay.after_decode")
        self._take(stream, events)

    def _unreadable(self, error: DecodeError) -> None:
        """Go on: a frame that cannot be read would come again for ever, and its rows are in the table."""
        log.error("relay.decode_error", reason=str(error))
        metrics.count("relay_decode_errors_total")
        self._dropped.add(self._xid)
        self._resync_due, self._cause = True, "unreadable"

    def _take(self, stream: ReplicationStream, events: Sequence[Event]) -> None:
        rows: list[OutboxRow] = []
        settings: list[ControlRow] = []
        xids: set[int] = set()
        for event in events:
            if isinstance(event, OutboxRow):
                rows.append(event)
                xids.add(self._xid)
            elif isinstance(event, ControlRow):
                settings.append(event)
                xids.add(self._xid)
            elif isinstance(event, Begin):
                self._xid, self._in_transaction = event.xid, True
            elif isinstance(event, Commit):
                self._done_lsn, self._in_transaction = event.end_lsn, False
            else:
                self._poison(event)
        if rows or settings:
            self._publish(rows, settings, xids)
        if self._done_lsn:
            failpoint("relay.before_confirm")
            stream.confirm(self._done_lsn)

    def _poison(self, event: Poison) -> None:
        if event.table == "control":
            log.error("relay.poison", table="control", reason=event.reason)
        self._judge.put_away(event.message_id, event.reason)

    # -- publishing

    def _publish(self, rows: Sequence[OutboxRow], settings: Sequence[ControlRow], xids: set[int]) -> None:
        if not self._publisher.reigns:
            self._drop(xids)
            return
        messages = self._judge.messages(rows)
        limits = self._judge.limits(settings) + self._judge.defaults(m.lane for m in messages)
        position = self._source.position_data(self._done_lsn) if self._done_lsn else None
        failpoint("relay.before_publish")
        try:
            done = self._publisher.publish(messages, limits, position)
        except (RedisAway, TokenMismatch) as trouble:
            self._drop(xids)
            self._redis_trouble(trouble)
            return
        failpoint("relay.after_publish")
        self._beat_at = time.monotonic() + BEAT_SECONDS
        metrics.count("relay_published_total", done.new + done.revived, road="stream")
        metrics.count("relay_duplicate_publishes_total", done.duplicate)

    def _drop(self, xids: set[int]) -> None:
        self._dropped |= xids
        if len(self._dropped) >= DROPPED_CHECK:
            self._dropped = set(outbox.invisible(self._conn, sorted(self._dropped)))

    def _redis_trouble(self, trouble: RedisAway | TokenMismatch) -> None:
        """End the token's reign; what was on its way is in the table."""
        self._publisher.abandon()
        self._catch_up = None
        self._redis_at = time.monotonic()
        if isinstance(trouble, TokenMismatch):
            log.warning("relay.token_mismatch", stored=str(trouble.stored))
            metrics.count("relay_token_mismatches_total")
            self._cause = "token_mismatch"
            return
        self._cause = "redis_away"
        self._redis_at += FROZEN_RETRY_SECONDS if trouble.frozen else REDIS_RETRY_SECONDS
        if self._redis_reason != str(trouble):
            log.warning("relay.redis_away", reason=str(trouble))
        self._redis_reason = str(trouble)
        metrics.count("relay_redis_errors_total")

    def _seize(self) -> None:
        """Prove that the slot is ours, draw an epoch, take Redis, and start a resync."""
        self._redis_at = time.monotonic() + REDIS_RETRY_SECONDS
        if not self._source.is_ours():
            raise ReignOver("the slot is no longer ours")
        try:
            another_life = self._restored or not self._source.same_life(self._publisher.position())
            lost = self._publisher.seize(control.next_epoch(self._conn), forget_limits=another_life)
        except TokenMismatch as mismatch:
            self._overtake(mismatch)
            return
        except RedisAway as trouble:
            self._redis_trouble(trouble)
            return
        self._judge.forget_lanes()
        self._redis_reason = "ok"
        self._beat_at = time.monotonic() + BEAT_SECONDS
        if self._restored:
            self._cause = "database_restored"
        elif lost and self._cause != "attached":
            self._cause = "redis_lost_data"
        log.info("relay.reigns", redis_lost_data=lost)
        self._begin(Occasion.RESYNC, everything_lost=lost)

    def _overtake(self, mismatch: TokenMismatch) -> None:
        """Redis knows a later epoch, and yet the slot is ours: it is of a database that was restored since.

        Its epochs, and its versions of settings, would for ever be ahead of ours.
        """
        if mismatch.stored is None or not self._source.is_ours():
            raise ReignOver("a later relay reigns")
        log.error("relay.database_restored", stored=str(mismatch.stored))
        control.raise_epoch(self._conn, mismatch.stored.epoch)
        self._restored = True
        self._redis_at = 0.0

    # -- duties between reads

    def _wait_and_poll(self) -> None:
        time.sleep(0.05)
        if self._stream_at <= time.monotonic():
            self._attach(start=0)
        now = time.monotonic()
        if (
            self._source.stream is None
            and self._catch_up is None
            and self._publisher.reigns
            and self._poll_at <= now
        ):
            self._poll_at = now + POLL_SECONDS
            self._begin(Occasion.POLL)

    def _begin(self, occasion: Occasion, *, everything_lost: bool = False) -> None:
        metrics.count("relay_catch_ups_total", occasion=occasion)
        if occasion is Occasion.RESYNC:
            metrics.count("relay_resyncs_total", cause=self._cause)
        self._catch_up = CatchUp(
            occasion,
            self._judge.offer,
            self._judge.defaults,
            round(self._audit_every * 1000),
            set(self._dropped),
            everything_lost=everything_lost,
        )
        self._dropped.clear()

    def _duties(self) -> None:
        now = time.monotonic()
        self._clock.sample(self._conn)
        if not self._publisher.reigns:
            if self._redis_at <= now:
                self._seize()
            return
        try:
            self._step(now)
        except (RedisAway, TokenMismatch) as trouble:
            if self._catch_up is not None:
                self._dropped |= self._catch_up.dropped
            self._redis_trouble(trouble)
        metrics.count("relay_quarantined_total", self._judge.settle_waiting())
        if self._judge.found_late:
            self._judge.found_late = False
            self._resync_due = True
        if self._inspect_at <= now:
            self._inspect_at = now + INSPECT_SECONDS
            self._source.inspect()

    def _step(self, now: float) -> None:
        if self._catch_up is not None and self._catch_up.ready_at <= now:
            self._catch_up.step(self._conn, self._publisher)
            self._beat_at = time.monotonic() + BEAT_SECONDS
            if self._catch_up.done:
                self._finish(self._catch_up)
        elif self._catch_up is None and self._resync_due:
            self._resync_due = False
            self._begin(Occasion.RESYNC)
        elif self._catch_up is None and self._audit_at <= now:
            self._audit_at = now + self._audit_every
            self._begin(Occasion.AUDIT)
        if self._beat_at <= time.monotonic():
            self._publisher.publish()
            self._beat_at = time.monotonic() + BEAT_SECONDS

    def _finish(self, catch_up: CatchUp) -> None:
        metrics.count("relay_published_total", catch_up.republished, road=catch_up.occasion)
        if catch_up.republished or catch_up.occasion is Occasion.RESYNC:
            log.info(
                "relay.caught_up",
                occasion=catch_up.occasion,
                intents=catch_up.seen,
                republished=catch_up.republished,
            )
        self._catch_up = None
