"""The consumer: what Dramatiq's consumer thread iterates over.

It fetches for free threads only, waits in Redis when there is nothing, and sits out outages by
itself: Dramatiq never sees a connection error, hence never drops or delays anything because of one.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dramatiq import Message
from dramatiq.broker import Consumer, MessageProxy
from redis.exceptions import RedisError

from broker.delivery import Delivery, Undeliverable
from broker.lanes import Settled, Verb
from broker.link import Link, Parked
from broker.slots import Gate, Slots
from runtime import logs
from runtime.dying import die

#: How long one turn of the loop may wait, seconds: Dramatiq looks for its stop signal between turns.
TURN_SECONDS = 1.0
#: Pauses between tries while Redis is away, seconds: doubling, so that a blip costs little.
OUTAGE_PAUSES = (0.05, 0.1, 0.2, 0.4)
#: A message whose quarantine could not be recorded comes back after so long, ms.
QUARANTINE_RETRY_MS = 5_000

log = logging.getLogger(__name__)

Decode = Callable[[bytes], "Message[Any]"]
Quarantine = Callable[[str, str], bool]
Prepare = Callable[[Sequence[Delivery]], None]


class LaneConsumer(Consumer):
    """Deliveries of one queue. `decode` raises Undeliverable; `quarantine` (id, reason) tells if it took.

    `prepare` is shown what a fetch brought, before anybody begins it.
    """

    def __init__(
        self,
        link: Link,
        slots: Slots,
        gate: Gate,
        decode: Decode,
        quarantine: Quarantine,
        *,
        prepare: Prepare | None = None,
    ) -> None:
        self.link = link
        self._slots = slots
        self._gate = gate
        self._decode = decode
        self._quarantine = quarantine
        self._prepare = prepare
        self._ready: deque[Delivery] = deque()
        self._bad: deque[tuple[str, str]] = deque()
        self._rest_ms = 0
        self._failures = 0
        self._closed = threading.Event()

    def __next__(self) -> Delivery | None:
        """Return a delivery, or None when there was none within a second."""
        try:
            return self._turn()
        except Exception:  # noqa: BLE001 -- Dramatiq would start it again, with its messages forgotten
            die(f"the consumer of {self.link.queue} failed")

    def _turn(self) -> Delivery | None:
        if self._ready:
            if not self._gate.draining:
                return self._ready.popleft()
            self.requeue(self._ready)
            self._ready.clear()
        if self._bad:
            self._set_aside(*self._bad.popleft())
        elif not self._gate.is_open:
            self._rest_ms = 0
            with self.link.parked():
                self._gate.wait(TURN_SECONDS / 5)
        else:
            try:
                self._rest() if self._rest_ms else self._fetch()
            except RedisError:
                self._sit_out()
            else:
                self._failures = 0
        return self._ready.popleft() if self._ready else None

    def _rest(self) -> None:
        wait_ms, self._rest_ms = self._rest_ms, 0
        self.link.rest(min(wait_ms, int(TURN_SECONDS * 1000)))

    def _fetch(self) -> None:
        free = self._take_slots()
        if not free:
            return
        taken = 0
        try:
            fetched = self.link.fetch(free)
            taken = len(fetched.messages)
        finally:
            self._slots.give(free - taken)
        # Fewer than asked for: nothing else is ready, and Redis said for how long that may last.
        self._rest_ms = fetched.wait_ms if taken < free else 0
        for message_id, body in fetched.messages:
            intent = fetched.intents[message_id]
            try:
                self._ready.append(Delivery(self._decode(body), message_id, self.link, intent))
            except Undeliverable as reason:
                self._bad.append((message_id, str(reason)))
        if self._prepare is not None and self._ready:
            self._prepare(tuple(self._ready))

    def _take_slots(self) -> int:
        if self._slots.sharers == 1:
            # The thread that ends a message frees the slot that this waits for: its end goes with the fetch.
            with self.link.parked(Parked.FOR_A_SLOT):
                return self._slots.take(TURN_SECONDS)
        # Another queue's consumer may get that slot: then the keeper has to say it.
        with self.link.parked():
            return self._slots.take(TURN_SECONDS)

    def _sit_out(self) -> None:
        pause = OUTAGE_PAUSES[min(self._failures, len(OUTAGE_PAUSES) - 1)]
        self._failures += 1
        self._closed.wait(pause)

    def _set_aside(self, message_id: str, reason: str) -> None:
        with logs.about(**logs.about_message(message_id)):
            self._quarantined(message_id, reason)

    def _quarantined(self, message_id: str, reason: str) -> None:
        try:
            recorded = self._quarantine(message_id, reason)
        except Exception:  # the database's trouble must not end the consumer
            log.warning("Could not record the quarantine of %s.", message_id, exc_info=True)
            recorded = False
        if recorded:
            log.error("Quarantined %s: %s", message_id, reason)
            self.link.end(Settled(message_id, Verb.ACK))
        else:
            self.link.end(Settled(message_id, Verb.REFUND, QUARANTINE_RETRY_MS))

    def ack(self, message: MessageProxy) -> None:
        """End a delivery as it asks for: done, or back later if a thread did not get through it."""
        self._end(message)

    def nack(self, message: MessageProxy) -> None:
        """End a delivery that comes back. There is no dead-letter queue: that is PostgreSQL's."""
        message.fail()
        self._end(message)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Put deliveries that no thread has begun back to their places."""
        for message in messages:
            if isinstance(message, Delivery):
                message.defer(Verb.REQUEUE, 0)
                self._end(message)

    def _end(self, message: MessageProxy) -> None:
        if not isinstance(message, Delivery):
            return
        # Its own link: this consumer may be the successor of the one that fetched it.
        if message.kept:
            message.link.free()
        else:
            message.link.end(message.ending())

    def close(self) -> None:
        """Stop fetching, give back what no thread has begun, and leave when the rest is done."""
        self._closed.set()
        self.requeue(self._ready)
        self._ready.clear()
        for message_id, _ in self._bad:
            self.link.end(Settled(message_id, Verb.REQUEUE))
        self._bad.clear()
        self.link.leave()
