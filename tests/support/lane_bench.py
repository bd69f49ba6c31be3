"""A real Dramatiq worker over real lanes, and what was quarantined."""

from collections.abc import Callable
from typing import Any

import dramatiq
from dramatiq.middleware import Middleware
from dramatiq.worker import Worker

from broker.client import redis_client
from broker.lane_broker import LaneBroker
from broker.lanes import Outgoing
from support.lane_server import NS
from support.waiting import eventually

DEFAULT = "default"  # Dramatiq's queue, and the lane of plain send()


class Bench:
    """A broker with its worker, and what was quarantined."""

    def __init__(
        self, url: str, threads: int = 4, middleware: list[Middleware] | None = None, timeout: float = 5
    ) -> None:
        self.client = redis_client(url, timeout=timeout)
        self.quarantined: list[tuple[str, str]] = []
        self.can_record = True
        self.broker = LaneBroker(
            self.client, namespace=NS, quarantine=self._record, middleware=middleware or []
        )
        self.lanes = self.broker.lanes
        self.threads = threads
        self.worker: Worker | None = None

    def _record(self, message_id: str, reason: str) -> bool:
        if self.can_record:
            self.quarantined.append((message_id, reason))
        return self.can_record

    def actor(self, run: Callable[..., Any], **options: Any) -> "dramatiq.Actor[..., Any]":
        return dramatiq.actor(run, broker=self.broker, actor_name="act", **options)

    def start(self) -> None:
        self.worker = Worker(self.broker, worker_threads=self.threads, worker_timeout=50)
        self.worker.start()

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def raw(self, n: int, body: bytes) -> None:
        self.lanes.send(Outgoing(DEFAULT, f"{DEFAULT}|{n}", DEFAULT, 5, n, 0, body), self.broker._default)

    def empty(self) -> None:
        eventually(lambda: self.broker.do_qsize(DEFAULT) == 0, describe=lambda: self.lanes.stats(DEFAULT))

    def beats(self, queue: str = DEFAULT) -> dict[bytes, float]:
        """Return the served time at which each consumer of a queue was heard last."""
        return dict(self.client.zrange(f"{NS}:{queue}:consumers", 0, -1, withscores=True))

    def waits(self) -> bool:
        """Tell whether a consumer waits in Redis, on its wake list: it is idle."""
        return any("b" in entry["flags"] for entry in self.client.client_list())
