"""A consumer's tie to Redis: what it holds, what it has yet to say, and its beat.

All calls of one link go one at a time, so every call tells the truth as of its moment: a beat names
exactly what is held, and after a lost reply the next beat puts right whatever Redis believed. Worker
threads never wait for Redis: they leave the end of a message here and are free.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from enum import Enum
from uuid import uuid4

from redis.exceptions import RedisError

from broker.lanes import Fetched, Lanes, Settled
from broker.slots import Gate, Slots
from runtime.dying import die

#: Time between beats, seconds; the script declares a consumer dead after 10 s of served time.
BEAT_SECONDS = 1.0
#: Pause after a failed call, seconds.
RETRY_SECONDS = 0.25

log = logging.getLogger(__name__)


class Parked(Enum):
    """What the consumer waits for, when it is not about to fetch."""

    NO = 0
    FOR_A_SLOT = 1  # a fetch is near as soon as a thread is free
    FOR_WORK = 2


class Link:
    """One consumer of one queue. `watch` is called with every beat, to look after other threads."""

    def __init__(
        self, lanes: Lanes, queue: str, slots: Slots, gate: Gate, watch: Callable[[], None] = lambda: None
    ) -> None:
        self.consumer = uuid4().hex
        self.queue = queue
        self.gate = gate
        self.heard_at = time.monotonic()  # when Redis last answered
        self._beat_at = self.heard_at + BEAT_SECONDS
        self._lanes = lanes
        self._slots = slots
        self._watch = watch
        self._calling = threading.Lock()
        self._changed = threading.Condition()  # guards what follows
        self._held: dict[str, int] = {}  # -> intent
        self._unsaid: dict[str, tuple[Settled, int]] = {}
        self._parked = Parked.NO
        self._pressing = False  # something unsaid came without a free thread, so that no fetch follows it
        self._leaving = False
        self._doubtful = False  # a call failed: Redis may believe something else
        self._keeper = threading.Thread(target=self._keep, name=f"keeper({queue})", daemon=True)
        slots.sharers += 1
        self._keeper.start()

    # What the worker threads do -----------------------------------------------------------------

    def end(self, ending: Settled, *, frees: bool = True) -> None:
        """Note that a delivery is over; Redis hears of it with the next fetch, or at once if none is near.

        `frees`: a thread is free by that; False when `free` said so, or will.
        """
        with self._changed:
            if ending.message_id not in self._held:
                return
            self._unsaid[ending.message_id] = ending, self._held.pop(ending.message_id)
            self._pressing = self._pressing or not frees
            if self._has_to_act():
                self._changed.notify()
        if frees:
            self._slots.give(1)

    def free(self) -> None:
        """Note that a thread is free though its message stays in flight."""
        self._slots.give(1)

    def held_ids(self) -> frozenset[str]:
        """Return the ids of the messages that are being run here."""
        with self._changed:
            return frozenset(self._held)

    # What the consumer thread does --------------------------------------------------------------

    def fetch(self, count: int) -> Fetched:
        """Say what is unsaid, and take up to `count` messages.

        Raises:
            redis.exceptions.RedisError: nothing is known of what Redis did; the next call finds out.

        """
        with self._call():
            unsaid = self._snapshot()
            fetched = self._lanes.fetch(self.queue, self.consumer, count, unsaid)
            with self._changed:
                self._said(unsaid)
                # After a freeze Redis may have given back, and now here again, what is being run here.
                new = [message for message in fetched.messages if message[0] not in self._held]
                self._held.update((message_id, fetched.intents[message_id]) for message_id, _ in new)
        return Fetched(new, fetched.wait_ms, fetched.intents)

    def rest(self, wait_ms: int) -> None:
        """Wait until there may be work, at most `wait_ms`; not at all when something is unsaid."""
        with self.parked():
            if self._snapshot():
                return
            try:
                self._lanes.wait(self.queue, wait_ms)
            except RedisError as error:
                self._doubt(error)
                raise

    @contextmanager
    def parked(self, why: Parked = Parked.FOR_WORK) -> Generator[None]:
        """While in here, the keeper says what is unsaid; for a slot: only what no free thread came with."""
        with self._changed:
            self._parked = why
            if self._has_to_act():
                self._changed.notify()
        try:
            yield
        finally:
            self._parked = Parked.NO

    def leave(self) -> None:
        """Go as soon as nothing is held; at once, giving everything back, when the process drains."""
        with self._changed:
            self._leaving = True
            self._changed.notify()
            last = not self._held or self.gate.draining
        if last:
            # Longer than one call may take; after that Redis finds out by itself, in 10 s.
            self._keeper.join(timeout=7)

    @property
    def gone(self) -> bool:
        """Tell whether this consumer has left."""
        return not self._keeper.is_alive()

    # One call at a time -------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Generator[None]:
        with self._calling:
            try:
                # A missed beat: this process was frozen, and may have been taken for dead.
                if self._doubtful or time.monotonic() > self._beat_at + BEAT_SECONDS:
                    self._say_held()
                yield
            except RedisError as error:
                self._doubt(error)
                raise
            if self._doubtful:
                self._doubtful = False
                log.info("Redis serves %s again.", self.queue)
            self.heard_at = time.monotonic()

    def _doubt(self, error: RedisError) -> None:
        if not self._doubtful:
            log.warning("Redis does not serve %s: %s", self.queue, error)
        self._doubtful = True

    def _snapshot(self) -> list[Settled]:
        with self._changed:
            return [ending for ending, _ in self._unsaid.values()]

    def _said(self, endings: Iterable[Settled]) -> None:
        for ending in endings:
            unsaid = self._unsaid.get(ending.message_id)
            if unsaid is not None and unsaid[0] is ending:
                del self._unsaid[ending.message_id]
        if not self._unsaid:
            self._pressing = False

    def _say_held(self) -> None:
        with self._changed:
            held = {i: intent for i, (_, intent) in self._unsaid.items()} | self._held
        self._beat_at = time.monotonic() + BEAT_SECONDS
        restored, dropped = self._lanes.beat(self.queue, self.consumer, held)
        if restored or dropped:
            log.info("%s: restored %d marks, dropped %d.", self.queue, restored, dropped)

    # The keeper's thread ------------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            while not self._keep_once():
                pass
        except BaseException:  # noqa: BLE001 -- whatever it was: without a beat this process is dead
            die(f"the keeper of {self.queue} failed")

    def _keep_once(self) -> bool:
        """Wait for something to say or the time of the next beat, and do that. Return True at the end."""
        with self._changed:
            self._changed.wait_for(self._has_to_act, timeout=max(self._beat_at - time.monotonic(), 0.0))
            leaving = self._leaving and (not self._held or self.gate.draining)
        if leaving:
            self._go()
            return True
        self._watch()
        try:
            with self._call():
                if unsaid := self._snapshot():
                    self._lanes.settle(self.queue, self.consumer, unsaid)
                    with self._changed:
                        self._said(unsaid)
                if time.monotonic() >= self._beat_at:
                    self._say_held()
        except RedisError:
            time.sleep(RETRY_SECONDS)
        return False

    def _has_to_act(self) -> bool:
        if self._leaving and (not self._held or self.gate.draining):
            return True
        if not self._unsaid:
            return False
        return (
            self._leaving
            or self._parked is Parked.FOR_WORK
            or (self._pressing and self._parked is not Parked.NO)
        )

    def _go(self) -> None:
        self._slots.sharers -= 1
        try:
            with self._call():
                self._lanes.settle(self.queue, self.consumer, self._snapshot())
                self._lanes.leave(self.queue, self.consumer)
        except RedisError:
            log.warning("Could not say good-bye: %s comes back when Redis misses the beat.", self.queue)
        with self._changed:
            self._slots.give(len(self._held))
            self._held.clear()
