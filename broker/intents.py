"""ConsumeIntent: for actors whose messages come from `outbox.append` and that have no claim of their own.

    @dramatiq.actor(consume_intent=True)
    def send_receipt(order_id: str) -> None: ...

The actor runs while its intent exists; when it returns, the intent is deleted and then the message
acknowledged. A crash in between runs it again: at least once, so make it idempotent. Where a message id is
used again (`dedupe`), a delivery runs and consumes the very intent that it came from, never a newer one.
"""

import threading
import time
from typing import Any

from dramatiq import Broker
from dramatiq.broker import MessageProxy
from dramatiq.middleware import Middleware, SkipMessage
from psycopg_pool import ConnectionPool

from broker.delivery import Delivery, actors_of
from broker.lanes import Verb
from broker.settle import Defer
from db import outbox
from db.errors import DatabaseError, translated

#: The WAL shows a commit before snapshots do, by seconds when a synchronous standby lags: for so long
#: a missing intent may be one that cannot be seen yet. After that the relay's audit would bring it again.
VISIBLE_WITHIN_SECONDS = 10.0
#: First and longest pause between looks, ms.
LOOK_AGAIN_MS = (50, 1_000)
#: While the database is away, ms.
AWAY_MS = 1_000


class ConsumeIntent(Middleware):
    """Runs actors declared with `consume_intent=True` only for living intents. Needs PostgreSQL's `pool`."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._unseen: dict[int, float] = {}  # intent -> when it was first looked for in vain

    @property
    def actor_options(self) -> set[str]:
        """Name the option that actors may set."""
        return {"consume_intent"}

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        """Skip a message whose intent was consumed; defer while it may not be visible yet."""
        if not _concerns(broker, message):
            return
        try:
            with translated(), self._pool.connection() as conn:
                alive = outbox.alive(conn, message.lane_id, message.intent)
        except DatabaseError as error:
            raise Defer(AWAY_MS, "database away") from error
        if alive:
            with self._lock:
                self._unseen.pop(message.intent, None)
            return
        raise self._not_seen(message.intent)

    def after_process_message(
        self,
        broker: Broker,
        message: MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        """Delete the intent after a normal return; without that there is no ack."""
        del result
        if exception is not None or message.failed or not _concerns(broker, message):
            return
        try:
            with translated(), self._pool.connection() as conn:
                outbox.consume(conn, message.lane_id, message.intent)
        except DatabaseError:
            broker.logger.warning(
                "The intent of %s could not be deleted: it will run again.", message.lane_id
            )
            message.defer(Verb.DEFER, AWAY_MS)

    def _not_seen(self, intent: int) -> Exception:
        now = time.monotonic()
        with self._lock:
            age = now - self._unseen.setdefault(intent, now)
            for old in [i for i, since in self._unseen.items() if now - since > 2 * VISIBLE_WITHIN_SECONDS]:
                del self._unseen[old]
            if age > VISIBLE_WITHIN_SECONDS:
                self._unseen.pop(intent, None)
                return SkipMessage("its intent was consumed")
        first, longest = LOOK_AGAIN_MS
        return Defer(int(min(max(first, age * 1000), longest)), "its intent is not visible yet")


def _concerns(broker: Broker, message: MessageProxy) -> bool:
    actor = actors_of(broker).get(message.actor_name)
    return isinstance(message, Delivery) and actor is not None and bool(actor.options.get("consume_intent"))
