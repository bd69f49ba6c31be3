"""A reign: one relay, one slot, one token, from START_REPLICATION until something ends it.

The order makes it safe: attach the stream first (`source`), then draw the epoch and seize Redis
(`sink`), then catch up page by page (`rounds`) while live rows flow (`intake`). Without a stream the
reign polls, and asks for one again. While Redis is away the stream is read and confirmed all the
same, and nothing is kept: the intents wait in the table.
"""

import time
from typing import TYPE_CHECKING, Any, Final

from psycopg import Connection

from broker.lanes import TokenMismatch
from relay.clock import PostgresClock
from relay.events import Poison
from relay.intake import Burst, Intake
from relay.judge import Judge
from relay.knock import Knock
from relay.publisher import Publisher, RedisAway
from relay.rounds import Rounds
from relay.sink import BEAT_SECONDS, Sink
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

#: How often a stream is asked for while there is none, and the length of a turn meanwhile.
STREAM_RETRY_SECONDS: Final = 3.0
#: Tries take a fifth of the time at most: the rest is for polling.
RETRY_SHARE: Final = 4.0
TURN_SECONDS: Final = 0.05
#: Between looks at the slot and the publication.
INSPECT_SECONDS: Final = 5.0


class Reign:
    """Built on an open connection as oncommit_relay; `run` returns when the relay stops."""

    def __init__(
        self,
        relay: "Relay",
        settings: Settings,
        publisher: Publisher,
        knock: Knock,
        conn: Connection[Any],
    ) -> None:
        self._relay = relay
        self._publisher = publisher
        self._conn = conn
        self._source = Source(settings, conn, relay.slot_memory)
        self._clock = PostgresClock()
        self._judge = Judge(conn, self._clock)
        self._intake = Intake(self._source.decoder)
        self._sink = Sink(conn, self._source, publisher, knock, self._judge)
        self._rounds = Rounds(conn, publisher, self._judge, settings.audit_seconds)
        self._stream_at = 0.0
        self._inspect_at = time.monotonic() + INSPECT_SECONDS

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
                self._wait_for_stream()
            self._duties()

    def close(self) -> None:
        """Give the slot back."""
        self._source.close()
        self._publisher.abandon()

    def ready(self) -> Health:
        """Readiness: a stream to read and Redis to write, or an honest account of what is missing."""
        reigns, streams = self._sink.reigns, self._source.stream is not None
        detail = {
            "role": "relay" if streams else "polling",
            "redis": "ok" if reigns else self._sink.reason,
            "stream": "ok" if streams else self._source.reason,
            "catching_up": self._rounds.occasion,
        }
        return Health(ok=reigns and streams, detail=detail)

    # -- the stream

    def _attach(self, start: int) -> None:
        began = time.monotonic()
        self._stream_at = began + STREAM_RETRY_SECONDS
        stream = self._source.attach(start)
        # A server that answers late holds a try up, and nothing is polled meanwhile.
        now = time.monotonic()
        self._stream_at = now + max(STREAM_RETRY_SECONDS, RETRY_SHARE * (now - began))
        if stream is None:
            return
        self._intake = Intake(self._source.decoder)
        self._sink.renew()
        log.info("relay.attached", slot=self._source.slot, decoder=self._source.plugin, pid=stream.pid)

    def _start_position(self) -> int:
        try:
            return self._source.position(self._publisher.position())
        except RedisAway:
            return 0

    def _wait_for_stream(self) -> None:
        time.sleep(TURN_SECONDS)
        if self._stream_at <= time.monotonic():
            self._attach(start=0)

    def _read(self, stream: ReplicationStream) -> None:
        pause = 0.0 if self._rounds.busy else self._sink.due - time.monotonic()
        frames = stream.read(min(max(pause, 0.0), BEAT_SECONDS))
        if not frames:
            if not self._intake.in_transaction:
                stream.confirm_idle()
            return
        self._take(self._intake.take(frames))
        if self._intake.done_lsn:
            failpoint("relay.before_confirm")
            stream.confirm(self._intake.done_lsn)

    def _take(self, burst: Burst) -> None:
        for poison in burst.poison:
            self._put_away(poison)
        if burst.unreadable:
            self._rounds.ask("unreadable")
        # Without Redis it is let go of: the resync finds it in the tables.
        if (burst.rows or burst.settings) and self._sink.reigns:
            try:
                self._sink.publish(burst, self._intake.done_lsn)
            except (RedisAway, TokenMismatch) as trouble:
                self._lose_redis(trouble)

    def _put_away(self, poison: Poison) -> None:
        if poison.table == "control":
            log.error("relay.poison", table="control", reason=poison.reason)
        self._judge.put_away(poison.message_id, poison.reason)

    # -- duties between reads

    def _duties(self) -> None:
        self._clock.sample(self._conn)
        try:
            self._publish_pages()
        except (RedisAway, TokenMismatch) as trouble:
            self._lose_redis(trouble)
        metrics.count("relay_quarantined_total", self._judge.settle_waiting())
        if self._judge.found_late:
            self._judge.found_late = False
            self._rounds.ask("queue_added")
        if self._inspect_at <= time.monotonic():
            self._inspect_at = time.monotonic() + INSPECT_SECONDS
            if self._source.inspect():
                log.warning("relay.tables_changed", publication="made again, or changed, or a table was")
                self._rounds.ask("tables_changed")

    def _publish_pages(self) -> None:
        if self._sink.reigns:
            self._rounds.step(streaming=self._source.stream is not None)
            self._sink.beat()
        elif self._sink.due <= time.monotonic():
            lost = self._sink.seize()
            if lost is not None:
                self._rounds.resync(self._sink.cause, everything_lost=lost)

    def _lose_redis(self, trouble: RedisAway | TokenMismatch) -> None:
        self._rounds.abort()
        self._sink.trouble(trouble)
