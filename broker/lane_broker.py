"""LaneBroker: Dramatiq's worker, actors and middleware over fair lanes."""

import time
from collections.abc import Sequence
from itertools import count
from typing import Any, cast
from uuid import uuid4

from dramatiq import Broker, Message
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout
from dramatiq.middleware import Middleware
from dramatiq.worker import Worker
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from broker.consumer import LaneConsumer, Prepare, Quarantine
from broker.delivery import actors_of, decode
from broker.lanes import Lanes, Limit, Outgoing
from broker.link import Link
from broker.settle import Settle
from broker.slots import Gate, Slots
from runtime.dying import die

#: What a plain send() gets: the middle of 0 (first) to 9 (last).
DEFAULT_PRIORITY = 5
#: Between looks of join(), seconds.
JOIN_INTERVAL = 0.02


class _Boot(Middleware):
    """Fits the broker to the worker that runs on it: as many messages as threads, and no more."""

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        worker.queue_prefetch = worker.worker_threads
        if isinstance(broker, LaneBroker):
            broker.serve(worker)

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        del worker
        if isinstance(broker, LaneBroker):
            broker.drain()


class LaneBroker(Broker):
    """A Dramatiq broker over lanes in Redis.

    `client`: of `redis_client()`. `quarantine(message id, reason)`: records a message that no actor
    here can run, and tells whether that took; only then is the message acknowledged. `prepare(deliveries)`:
    called in the consumer's thread with what a fetch brought, before a thread begins any of it; it must not
    raise. `middleware`:
    the whole list, after `Settle`; without Retries, TimeLimit, AgeLimit and Shutdown, whose work is
    done elsewhere. `supported_version`: the highest `options.version` of messages that actors know.
    `default_lane`: the lane of messages sent by plain `send()`, which are lost when Redis is.
    """

    def __init__(
        self,
        client: Redis,
        *,
        namespace: str,
        quarantine: Quarantine,
        prepare: Prepare | None = None,
        middleware: Sequence[Middleware] = (),
        supported_version: int = 1,
        default_lane: str = "default",
    ) -> None:
        super().__init__(middleware=[Settle(), _Boot(), *middleware])
        self.queues: set[str] = set()
        self.lanes = Lanes(client, namespace)
        self.gate = Gate()
        self._quarantine = quarantine
        self._prepare = prepare
        self._supported_version = supported_version
        self._default = Limit(default_lane, 0, None, 1, None, 1, paused=False)
        # Plain messages keep the order in which this process sent them: tens of microseconds since 1970,
        # below 2^48 until 2059.
        self._intents = count(time.time_ns() // 10_000)
        self._links: list[Link] = []
        self._slots: Slots | None = None
        self._worker: Worker | None = None

    # Dramatiq's interface -----------------------------------------------------------------------

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 1000) -> LaneConsumer:
        """Return a consumer of a queue; `prefetch` counts only outside of a worker, `timeout` not at all."""
        del timeout
        slots = self._slots or Slots(prefetch)
        link = Link(self.lanes, queue_name, slots, self.gate, watch=self._watch)
        self._links = [known for known in self._links if not known.gone] + [link]

        def fit(body: bytes) -> "Message[Any]":
            return decode(body, queue_name, actors_of(self), self._supported_version)

        return LaneConsumer(link, slots, self.gate, fit, self._quarantine, prepare=self._prepare)

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; there are no delay queues: delayed messages wait in Redis."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """Return the names of the declared queues."""
        return self.queues.copy()

    def enqueue(self, message: "Message[Any]", *, delay: int | None = None) -> "Message[Any]":
        """Put a message into the default lane, to run after `delay` ms. It lives in Redis only.

        Raises:
            dramatiq.errors.ConnectionClosed: Redis is away; whether the message got there is unknown.
            redis.exceptions.RedisError: Redis refused it, e.g. because it is full.

        """
        message_id = str(message.options.get("redis_message_id") or f"{self._default.lane}|{uuid4()}")
        message = cast("Any", message).copy(options={"redis_message_id": message_id})
        actor = actors_of(self).get(message.actor_name)
        priority = DEFAULT_PRIORITY if actor is None or not 0 < actor.priority <= 9 else actor.priority  # noqa: PLR2004
        self.emit_before("enqueue", message, delay)
        lane = message_id.split("|", 1)[0]
        outgoing = Outgoing(
            message.queue_name, message_id, lane, priority, next(self._intents), delay or 0, message.encode()
        )
        try:
            self.lanes.send(outgoing, self._default)
        except (RedisConnectionError, RedisTimeoutError) as error:
            raise cast("Any", ConnectionClosed)(error) from error
        self.emit_after("enqueue", message, delay)
        return message

    def flush(self, queue_name: str) -> None:
        """Drop what waits or is delayed in a queue. Living intents come again with the relay's audit."""
        self.lanes.purge(queue_name)

    def flush_all(self) -> None:
        """Drop what waits or is delayed in every declared queue."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def do_qsize(self, queue_name: str) -> int:
        """Return how many messages a queue holds: waiting, delayed and in flight."""
        return self.lanes.stats(queue_name, top=1).messages

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue is empty, at most `timeout` ms. For tests.

        Raises:
            QueueJoinTimeout: it was not.

        """
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        while self.do_qsize(queue_name):
            if deadline is not None and time.monotonic() >= deadline:
                raise cast("Any", QueueJoinTimeout)(queue_name)
            time.sleep(JOIN_INTERVAL)

    # For the actors' side -----------------------------------------------------------------------

    def pause_fetching(self) -> None:
        """Let no fetch begin; what runs goes on, and beats go on. For when the database is away."""
        self.gate.close()

    def resume_fetching(self) -> None:
        """Fetch again, unless the process drains."""
        self.gate.open()

    def drain(self) -> None:
        """Stop fetching for good; messages that no thread has begun go back to their lanes."""
        self.gate.drain()

    def held_ids(self) -> frozenset[str]:
        """Return the ids of all messages in flight in this process."""
        return frozenset[str]().union(*(link.held_ids() for link in self._links))

    def silence(self) -> float:
        """Return for how many seconds Redis has not answered the quietest consumer; 0 without any."""
        now = time.monotonic()
        return max((now - link.heard_at for link in self._links if not link.gone), default=0.0)

    # The worker's life --------------------------------------------------------------------------

    def serve(self, worker: Worker) -> None:
        """Serve this worker: its threads are the slots."""
        self.gate = Gate()
        self._slots = Slots(worker.worker_threads)
        self._worker = worker

    def _watch(self) -> None:
        worker = self._worker
        if worker is None or self.gate.draining:
            return
        threads = [*worker.workers, *worker.consumers.values()]
        dead = [thread.name for thread in threads if thread.ident is not None and not thread.is_alive()]
        if dead and not self.gate.draining:
            die(f"dead threads: {', '.join(dead)}")
