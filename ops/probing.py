"""A probe: synthetic intents through outbox, WAL, relay, Redis and worker, and each stage's time.

Stages count from the commit, milliseconds: `published` when a message was first seen in Redis (looked for
every 2 ms) or was claimed, whatever came first: an upper bound; `claimed` when a worker had it; `finished`
when its end was committed and its intent gone. Times of PostgreSQL's clock and of this process are told
apart by the clocks' offset, measured over round trips.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median, quantiles
from typing import Any

from psycopg import Connection
from redis.exceptions import RedisError

from broker.client import redis_client
from broker.lanes import Lanes
from db import catalog, probes
from db.probes import Probe
from runtime.settings import Settings

QUEUE = "previews"
LOOK_IN_REDIS_SECONDS = 0.002
LOOK_IN_DATABASE_SECONDS = 0.05
REDIS_SECONDS = 1.0
ROUND_TRIPS = 5
STAGES = ("published", "claimed", "finished")


@dataclass(frozen=True, slots=True)
class Stage:
    """Milliseconds from the commit until so many probes had passed a stage; None when none had."""

    passed: int
    median: float | None
    p95: float | None
    max: float | None


def summary(times: Sequence[float]) -> Stage:
    """Return the figures of some times, milliseconds."""
    if not times:
        return Stage(0, None, None, None)
    p95 = quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    return Stage(len(times), round(median(times), 1), round(p95, 1), round(max(times), 1))


@dataclass(slots=True)
class Run:
    """What became of a run. `commit_ms`: how long its transaction took. `redis`: None when it answered."""

    count: int
    commit_ms: float
    ended: bool
    probes: Sequence[Probe]
    stages: dict[str, Stage] = field(default_factory=dict[str, Stage])
    redis: str | None = None

    @property
    def missing(self) -> int:
        """How many did not come through."""
        return self.count - sum(probe.finished_at is not None for probe in self.probes)


class Watcher:
    """Looks for messages in Redis; without Redis it sees none, and says why."""

    def __init__(self, settings: Settings) -> None:
        self.trouble: str | None = None
        self.seen: dict[str, float] = {}  # message id -> time.monotonic()
        self._lanes: Lanes | None = None
        try:
            client = redis_client(settings.redis_url.get_secret_value(), timeout=REDIS_SECONDS)
        except ValueError:
            self.trouble = "ONCOMMIT_REDIS_URL is not understood"
        else:
            self._lanes = Lanes(client, settings.namespace)

    def look(self, ids: Sequence[str]) -> None:
        """Note which of the messages are alive by now."""
        left = [i for i in ids if i not in self.seen]
        if self._lanes is None or self.trouble or not left:
            return
        try:
            gone = set(self._lanes.missing(QUEUE, dict.fromkeys(left, 0)))
        except (RedisError, OSError) as error:
            # The class alone: a driver's text may hold the URL.
            self.trouble = f"not reachable from here ({type(error).__name__})"
            return
        now = time.monotonic()
        self.seen.update((i, now) for i in left if i not in gone)

    def sweep(self) -> None:
        """Drop the messages of probes that wait: nobody wants them any more."""
        if self._lanes is None:
            return
        try:
            self._lanes.purge(QUEUE, probes.LANE)
        except (RedisError, OSError):
            self.trouble = self.trouble or "left messages that no worker will run"

    def close(self) -> None:
        """Close the connection."""
        if self._lanes is not None:
            self._lanes.client.close()


def run(
    conn: Connection[Any], settings: Settings, count: int, timeout: float, *, who: str, reason: str
) -> Run:
    """Send probes and follow them until all have ended, or for `timeout` seconds; leave nothing behind.

    Raises:
        DatabaseError: the server is away, or refuses.

    """
    offset = _offset(conn)
    watcher = Watcher(settings)
    begun = time.monotonic()
    sent = probes.send(conn, count, queue=QUEUE, who=who, reason=reason)
    committed = time.monotonic()
    try:
        found, ended = _follow(conn, sent, watcher, committed + timeout)
        return Run(
            count,
            round((committed - begun) * 1000, 1),
            ended,
            found,
            _stages(found, watcher, committed, offset),
            watcher.trouble,
        )
    finally:
        # Also after Ctrl-C, and while dispatch is paused: what waits would wait for nothing.
        if probes.end(conn, sent.run) == 0:
            watcher.sweep()
        watcher.close()


def _follow(
    conn: Connection[Any], sent: probes.Sent, watcher: Watcher, deadline: float
) -> tuple[list[Probe], bool]:
    next_look = 0.0
    while True:
        watcher.look(sent.message_ids)
        now = time.monotonic()
        if now >= next_look:
            next_look = now + LOOK_IN_DATABASE_SECONDS
            found = probes.look(conn, sent.run)
            if all(probe.ended for probe in found):
                return found, True
            if now >= deadline:
                return found, False
        time.sleep(LOOK_IN_REDIS_SECONDS)


def _offset(conn: Connection[Any]) -> float:
    """Return PostgreSQL's clock minus time.monotonic(), seconds, by the quickest of some round trips."""
    best = (float("inf"), 0.0)
    for _ in range(ROUND_TRIPS):
        before = time.monotonic()
        there = catalog.now(conn)
        after = time.monotonic()
        best = min(best, (after - before, there - (before + after) / 2))
    return best[1]


def _stages(found: Sequence[Probe], watcher: Watcher, committed: float, offset: float) -> dict[str, Stage]:
    def since_commit(at: datetime) -> float:
        return max(0.0, (at.timestamp() - offset - committed) * 1000)

    times: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for probe in found:
        published: list[float] = []
        if (seen := watcher.seen.get(probe.message_id)) is not None:
            published.append(max(0.0, (seen - committed) * 1000))
        if probe.claimed_at is not None:
            times["claimed"].append(since_commit(probe.claimed_at))
            published.append(times["claimed"][-1])
        if probe.finished_at is not None:
            times["finished"].append(since_commit(probe.finished_at))
        if published:
            times["published"].append(min(published))
    return {stage: summary(values) for stage, values in times.items()}
