"""What one message costs Redis, whatever the number of teams and of messages that wait.

The same private Valkey holds all shapes, each in a namespace of its own; bursts go round the shapes in
turn, so that a busy machine slows all alike. A burst publishes, fetches and acknowledges `BURST`
messages, and leaves as many waiting as it found.
"""

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from redis import Redis

from broker.client import redis_client
from broker.lanes import Lanes, Limit, Outgoing, Settled, Token
from support.lane_desk import open_lanes
from support.lane_server import Clock, Server

QUEUE = "previews"
BODY = b'{"queue_name":"previews","actor_name":"render_preview","args":[],"kwargs":{},"options":{}}'
#: Messages that one burst takes; a tenth of the shortest backlog, so that it empties no lane.
BURST = 100
ROUNDS = 15
#: Rows that one call publishes, as the relay does.
SLICE = 500
CPU = ("used_cpu_user_main_thread", "used_cpu_sys_main_thread")


@dataclass(frozen=True)
class Shape:
    """A number of teams, each with so many messages waiting."""

    name: str
    teams: int
    each: int

    @property
    def waiting(self) -> int:
        """Return the whole backlog."""
        return self.teams * self.each


TEAMS = (Shape("10 teams", 10, 3_000), Shape("1,000 teams", 1_000, 30), Shape("10,000 teams", 10_000, 3))
SHORT = Shape("1,000 waiting", 10, 100)
LONG = Shape("100,000 waiting", 10, 10_000)
FULL = Shape("1,000,000 waiting", 10, 100_000)


@dataclass
class Load:
    """One shape in Redis, and what its bursts cost, per message."""

    shape: Shape
    lanes: Lanes
    token: Token = field(default_factory=lambda: Token(1, 0))
    calls: list[float] = field(default_factory=list)
    publish_calls: list[float] = field(default_factory=list)
    run_us: list[float] = field(default_factory=list)
    publish_us: list[float] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def publish(self, count: int) -> None:
        """Publish so many messages, team by team in turn."""
        for at in range(0, count, SLICE):
            rows = []
            for n in itertools.islice(self.numbers, min(SLICE, count - at)):
                lane = f"team-{n % self.shape.teams}"
                rows.append(Outgoing(QUEUE, f"{lane}|{n}", lane, 5, n, 0, BODY))
            self.token, _ = self.lanes.publish(self.token, messages=rows)

    def fill(self) -> None:
        """Open every team's lane, and publish the backlog."""
        self.lanes.seize(1)
        for at in range(0, self.shape.teams, SLICE):
            names = [f"team-{n}" for n in range(at, min(at + SLICE, self.shape.teams))]
            limits = [Limit(name, 1, 64, 1, None, 1, paused=False) for name in names]
            self.token, _ = self.lanes.publish(self.token, limits=limits)
        self.publish(self.shape.waiting)

    def take(self, count: int) -> None:
        """Fetch one message at a time, as a busy thread does, acknowledging each with the next fetch."""
        done: list[Settled] = []
        for _ in range(count):
            got = self.lanes.fetch(QUEUE, "c", 1, done).messages
            assert len(got) == 1
            done = [Settled(got[0][0])]
        self.lanes.settle(QUEUE, "c", done)

    def burst(self, client: Redis) -> None:
        """Measure one burst."""
        with _measured(client) as cost:
            self.take(BURST)
        self.calls.append(cost["calls"])
        self.run_us.append(cost["cpu_us"])
        with _measured(client) as cost:
            self.publish(BURST)
        self.publish_calls.append(cost["calls"])
        self.publish_us.append(cost["cpu_us"])


@contextmanager
def _measured(client: Redis) -> Iterator[dict[str, float]]:
    """Count the commands, and the CPU of Redis' main thread in microseconds, for each of BURST messages."""
    found: dict[str, float] = {}
    client.config_resetstat()
    before: Mapping[str, Any] = client.info("cpu")
    yield found
    after: Mapping[str, Any] = client.info("cpu")
    stats: Mapping[str, Any] = client.info("commandstats")
    calls = sum(s["calls"] for name, s in stats.items() if "info" not in name and "config" not in name)
    found["calls"] = calls / BURST
    found["cpu_us"] = sum(after[key] - before[key] for key in CPU) / BURST * 1e6


@dataclass(frozen=True)
class Cost:
    """Medians for one shape, per message: Redis commands, and CPU microseconds of Redis."""

    shape: Shape
    calls: float
    publish_calls: float
    run_us: float
    publish_us: float

    @property
    def total_us(self) -> float:
        """Return the whole of it: published, fetched, acknowledged."""
        return self.run_us + self.publish_us


def measure(*, full: bool) -> tuple[list[Cost], float]:
    """Return what a message costs in each shape, and the megabytes that all of it took in Redis."""
    with tempfile.TemporaryDirectory(prefix="oncommit-cost-") as folder:
        server = Server(Path(folder))
        server.start()
        client = redis_client(server.url)
        try:
            clock = Clock()
            loads = [
                Load(shape, Lanes(client, f"shape{n}", clock=clock))
                for n, shape in enumerate([*TEAMS, SHORT, FULL if full else LONG])
            ]
            for load in loads:
                load.fill()
                open_lanes(load.lanes, clock)
            for _, load in itertools.product(range(ROUNDS), loads):
                load.burst(client)
            memory: Mapping[str, Any] = client.info("memory")
            return [_cost(load) for load in loads], memory["used_memory"] / 1e6
        finally:
            client.close()
            server.stop()


def _cost(load: Load) -> Cost:
    return Cost(
        load.shape,
        median(load.calls),
        median(load.publish_calls),
        median(load.run_us),
        median(load.publish_us),
    )
