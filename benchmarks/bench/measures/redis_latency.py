"""From commit to the message in Redis at 200 commits a second, one intent each.

The clock starts when the commit has returned to its caller.

- oncommit: ends when a client that watches Redis (MONITOR, whose lines go out after the call was executed)
  has received the call that published the message.
- the reader alone: the relay's stream and decoder, which note the time of each intent and do
  nothing with it. No Redis.
"""

import re
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn, percentile
from benchmarks.bench.ground import Ground, World, until
from broker.client import redis_client

PER_SECOND, SECONDS = 200.0, 3.0
ARRIVE_SECONDS = 20.0
INSERT = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
VALUES (%s, 'previews', 'acme', 5, preview_message(%s, 'previews', gen_random_uuid(), 1, NULL, now()))
"""
NAME = re.compile(rb"acme\|n\d+\.1")


def _commits(world: World, count: int, names: Callable[[], str]) -> dict[str, float]:
    sent: dict[str, float] = {}
    begin = time.perf_counter()
    for number in range(count):
        pause = begin + number / PER_SECOND - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        name = names()
        world.admin.execute(INSERT, [name, name])
        sent[name] = time.time()
    return sent


def _turn(ground: Ground, world: World, seen: Callable[[], Mapping[str, float]]) -> Turn:
    count, numbers = ground.scaled(round(PER_SECOND * SECONDS), 20), iter(range(10**9))

    def turn() -> Mapping[str, float]:
        sent = _commits(world, count, lambda: f"acme|n{next(numbers)}.1")
        until(lambda: sent.keys() <= seen().keys(), ARRIVE_SECONDS, every=0.1)
        arrived = seen()
        latencies = [1000 * max(0.0, arrived[name] - at) for name, at in sent.items()]
        return {"p50": percentile(latencies, 50), "p95": percentile(latencies, 95)}

    return turn


class Monitor(threading.Thread):
    """Notes when each message id was first seen in a call."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.seen: dict[str, float] = {}
        self._connection = redis_client(url, timeout=3600).connection_pool.get_connection()
        self._connection.send_command("MONITOR")
        self._connection.read_response()
        self.start()

    def run(self) -> None:
        """Watch until the server goes."""
        while True:
            try:
                line: bytes = self._connection.read_response()
            except Exception:  # noqa: BLE001 -- the server is gone, and so is the measurement
                return
            now = time.time()
            for name in NAME.findall(line):
                self.seen.setdefault(name.decode(), now)


@contextmanager
def _ours(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.team()
        world.relay()
        monitor = Monitor(world.valkey.url)
        yield _turn(ground, world, lambda: monitor.seen)


@contextmanager
def _reader(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.team()
        log = Path(world.processes.folder, "stream.log")
        slot, plugin = world.database.slot, world.database.server.decoder
        world.admin.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [slot, plugin])
        world.python("benchmarks.bench.stream_reader", world.database.dsn("relay"), slot, plugin, str(log))

        def seen() -> Mapping[str, float]:
            if not log.exists():
                return {}
            lines = log.read_text(encoding="utf-8").splitlines()
            return {name: float(at) for name, at in (line.split() for line in lines)}

        until(lambda: "ready" in seen(), 30)
        yield _turn(ground, world, seen)


def _entrances(ground: Ground) -> Mapping[str, Entrance]:
    return {"oncommit": partial(_ours, ground), "the reader alone": partial(_reader, ground)}


MEASURES = [
    Measure(
        "redis-latency",
        f"From commit to the message in Redis, {PER_SECOND:g} commits a second",
        [Figure("p50", "ms", less=True), Figure("p95", "ms", less=True)],
        [
            Floor("p50", "oncommit", "the reader alone", 1.5),
            Floor("p95", "oncommit", "the reader alone", 2),
        ],
        _entrances,
    )
]
