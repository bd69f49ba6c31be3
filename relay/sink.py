"""Sink: Redis as the reign's other end, seized with a token, written, lost, and seized again.

The twin of `source`. The epoch is drawn from PostgreSQL after START_REPLICATION succeeded, and the
slot is proven to be ours before each seizure: so of two relays, the one with the slot wins.
"""

import time
from typing import Any, Final

from psycopg import Connection

from broker.lanes import TokenMismatch
from db import control
from relay.intake import Burst
from relay.judge import Judge
from relay.knock import Knock
from relay.publisher import Publisher, RedisAway
from relay.source import Source
from runtime import metrics
from runtime.failpoints import failpoint
from runtime.logs import get_logger

log = get_logger(__name__)

#: The beat finds a loss of Redis' data without traffic, well within a second.
BEAT_SECONDS: Final = 0.3
#: How soon Redis is tried again after a refusal, which costs nothing, and after it did not answer: the WAL
#: is read on meanwhile.
RETRY_SECONDS: Final = 0.25
FROZEN_RETRY_SECONDS: Final = 1.0


class ReignOver(Exception):
    """This relay has to begin anew: the slot is another's, or the stream cannot be trusted."""


class Sink:
    """Writing to Redis within one reign.

    Attributes:
        reason: "ok", or why Redis cannot be written.
        cause: what made the next resync necessary; a label of its metric.

    """

    def __init__(
        self, conn: Connection[Any], source: Source, publisher: Publisher, knock: Knock, judge: Judge
    ) -> None:
        self._conn = conn
        self._source = source
        self._publisher = publisher
        self._knock = knock
        self._judge = judge
        self._beat_at = 0.0
        self._try_at = 0.0
        self._frozen = False
        self._restored = False
        self.reason = "not tried yet"
        self.cause = "attached"

    @property
    def reigns(self) -> bool:
        """Whether the token is ours, as far as is known."""
        return self._publisher.reigns

    @property
    def due(self) -> float:
        """Return the monotonic time of the next beat, or of the next try."""
        return self._beat_at if self.reigns else self._try_at

    def renew(self) -> None:
        """Give the token up for a new one: a stream was attached, and its epoch must be drawn after that."""
        self._publisher.abandon()
        self._try_at = 0.0
        self.cause = "attached"

    def seize(self) -> bool | None:
        """Take Redis; return whether it may have lost data, None when it cannot be had now.

        Raises:
            ReignOver: another relay reigns.
            db.errors.DatabaseError: the server is away.

        """
        self._try_at = time.monotonic() + RETRY_SECONDS
        if self._frozen and not self._knock.answered():
            return None
        if not self._source.is_ours():
            raise ReignOver("the slot is no longer ours")
        try:
            another_life = self._restored or not self._source.same_life(self._publisher.position())
            epoch = control.next_epoch(self._conn)
            self._source.memory.drew(epoch)
            lost = self._publisher.seize(epoch, forget_limits=another_life)
        except TokenMismatch as mismatch:
            self._overtake(mismatch)
            return None
        except RedisAway as trouble:
            self.trouble(trouble)
            return None
        self._judge.forget_lanes()
        self._frozen = False
        self.reason = "ok"
        self._wrote()
        if self._restored:
            self.cause = "database_restored"
        elif lost and self.cause != "attached":
            self.cause = "redis_lost_data"
        log.info("relay.reigns", redis_lost_data=lost)
        return lost

    def _overtake(self, mismatch: TokenMismatch) -> None:
        """Redis knows a later epoch, and yet the slot is ours: it is of a database that was restored since.

        Its epochs, and its versions of settings, would for ever be ahead of ours.
        """
        if mismatch.stored is None or not self._source.is_ours():
            raise ReignOver("a later relay reigns")
        log.error("relay.database_restored", stored=str(mismatch.stored))
        control.raise_epoch(self._conn, mismatch.stored.epoch)
        self._restored = True
        self._try_at = 0.0

    def publish(self, burst: Burst, done_lsn: int) -> None:
        """Publish what the stream brought, and where reading has come to (0: nowhere new).

        Raises:
            RedisAway, TokenMismatch: some of it may not have been written; see `trouble`.
            db.errors.DatabaseError: the server is away.

        """
        messages = self._judge.messages(burst.rows)
        limits = self._judge.limits(burst.settings) + self._judge.defaults(m.lane for m in messages)
        position = self._source.position_data(done_lsn) if done_lsn else None
        failpoint("relay.before_publish")
        done = self._publisher.publish(messages, limits, position)
        failpoint("relay.after_publish")
        self._wrote()
        metrics.count("relay_published_total", done.new + done.revived, road="stream")
        metrics.count("relay_duplicate_publishes_total", done.duplicate)

    def beat(self) -> None:
        """Compare and set the token when nothing else was written for a while.

        Raises:
            RedisAway, TokenMismatch: the reign over Redis is over; see `trouble`.

        """
        if self._beat_at <= time.monotonic():
            self._publisher.publish()
            self._wrote()

    def _wrote(self) -> None:
        """Note that something was just written: the next beat has time."""
        self._beat_at = time.monotonic() + BEAT_SECONDS

    def trouble(self, trouble: RedisAway | TokenMismatch) -> None:
        """End the token's reign; what was on its way is in the table."""
        self._publisher.abandon()
        self._try_at = time.monotonic()
        if isinstance(trouble, TokenMismatch):
            log.warning("relay.token_mismatch", stored=str(trouble.stored))
            metrics.count("relay_token_mismatches_total")
            self.cause = "token_mismatch"
            return
        self.cause = "redis_away"
        self._frozen = trouble.frozen
        self._try_at += FROZEN_RETRY_SECONDS if trouble.frozen else RETRY_SECONDS
        if self.reason != str(trouble):
            log.warning("relay.redis_away", reason=str(trouble))
        self.reason = str(trouble)
        metrics.count("relay_redis_errors_total")
