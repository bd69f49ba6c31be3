"""Growth: what a large backlog and many lanes cost, beside small ones that take turns with them.

Of the relay, rows a second from a commit of 20,000 intents until all of them are in Redis, and the most
memory that the relay ever had resident (VmHWM):

- oncommit, 1,000,000 waiting: they were committed in one transaction while the relay streamed, and wait
  since; then the relay was started anew and has looked at all of them. The peak is the larger one of both.
- oncommit, 10,000 waiting: the same with few.

Of a fetch, Redis' CPU for a message that is fetched and acknowledged, one at a time:

- oncommit, 10,000 lanes: 3 messages wait in each.
- oncommit, 10 lanes: 3,000 in each.
"""

import statistics
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn
from benchmarks.bench.ground import Ground, until
from benchmarks.bench.measures.refill import PAUSE
from benchmarks.bench.written import FILL
from benchmarks.fairness.cost import Load, Shape
from broker.client import redis_client
from broker.lanes import Lanes
from support.lane_desk import open_lanes
from support.lane_server import Clock
from support.lane_server import Server as LaneServer
from support.processes import Running

MANY, FEW, MORE = 1_000_000, 10_000, 20_000
MOST_MB = 150
LIMIT_SECONDS = 300.0
SHAPES = {
    "oncommit, 10,000 lanes": Shape("10,000 teams", 10_000, 3),
    "oncommit, 10 lanes": Shape("10 teams", 10, 3_000),
}
#: Bursts of 100 messages in a turn; their median is its figure.
BURSTS = 10


def peak_mb(running: Running) -> float:
    """Return the most memory that a process ever had resident, MB."""
    status = Path(f"/proc/{running.pid}/status").read_text(encoding="utf-8")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


@contextmanager
def _waiting(count: int, ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.team()
        world.admin.execute(PAUSE)
        there, more = ground.scaled(count, FEW), ground.scaled(MORE, 1_000)
        world.admin.execute("SET synchronous_commit = off")  # the relay sees the WAL, not the disk

        def commit(rows: int) -> float:
            world.admin.execute(FILL.format(transactions=1, each=rows))  # type: ignore[arg-type]
            return until(lambda: world.in_redis() == there, LIMIT_SECONDS)

        relay = world.relay()
        commit(there)
        streamed = peak_mb(relay)
        relay.stop()
        relay = world.relay()
        until(lambda: '"catching_up":null' in relay.page("/readyz"), LIMIT_SECONDS, every=0.1)

        def turn() -> Mapping[str, float]:
            nonlocal there
            there += more
            return {"rate": more / commit(more), "peak": max(streamed, peak_mb(relay))}

        yield turn


def _backlogs(ground: Ground) -> Mapping[str, Entrance]:
    return {
        "oncommit, 1,000,000 waiting": partial(_waiting, MANY, ground),
        "oncommit, 10,000 waiting": partial(_waiting, FEW, ground),
    }


@contextmanager
def _fetched(shape: Shape) -> Generator[Turn]:
    with tempfile.TemporaryDirectory(prefix="oncommit-bench-lanes-") as folder:
        server, clock = LaneServer(Path(folder)), Clock()
        server.start()
        client = redis_client(server.url)
        try:
            load = Load(shape, Lanes(client, "bench", clock=clock))
            load.fill()
            open_lanes(load.lanes, clock)

            def turn() -> Mapping[str, float]:
                for _ in range(BURSTS):
                    load.burst(client)
                return {"cpu": statistics.median(load.run_us[-BURSTS:])}

            yield turn
        finally:
            client.close()
            server.stop()


def _lanes(ground: Ground) -> Mapping[str, Entrance]:
    del ground  # Redis alone
    return {name: partial(_fetched, shape) for name, shape in SHAPES.items()}


MEASURES = [
    Measure(
        "backlog",
        f"Growth: relay with {FEW:,} and with {MANY:,} intents waiting",
        [Figure("rate", "rows/s"), Figure("peak", "MB", less=True)],
        [
            Floor("rate", "oncommit, 1,000,000 waiting", "oncommit, 10,000 waiting", 0.85),
            Floor("peak", "oncommit, 1,000,000 waiting", "", MOST_MB, absolute=True),
            Floor("peak", "oncommit, 1,000,000 waiting", "oncommit, 10,000 waiting", None),
        ],
        _backlogs,
    ),
    Measure(
        "lanes",
        "Growth: Redis' CPU for a fetched and acknowledged message with 10 and with 10,000 lanes",
        [Figure("cpu", "us", less=True)],
        [Floor("cpu", "oncommit, 10,000 lanes", "oncommit, 10 lanes", 1.4)],
        _lanes,
    ),
]
