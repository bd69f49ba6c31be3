"""From commit to claim, an idle worker of 8 threads, 20 jobs a second at even intervals.

The clock starts when the commit (or `send()`) has returned to its caller, and ends when the job is taken.

- oncommit: the time of the `claimed` event, which is in the table; relay and worker run as in production.
- stock Dramatiq: `send()` into Redis, to the first line of the actor; no outbox, so a job may be lost.
- dramatiq-postgres: `send()` into PostgreSQL, LISTEN on, to the first line of the actor.
- polling relay at 1 s: a row is committed, a relay looks every second and enqueues into stock Dramatiq.
"""

import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count as counting
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn, percentile
from benchmarks.bench.ground import Ground, World, until
from benchmarks.bench.measures.whole_job import worker

THREADS, PER_SECOND, JOBS = 8, 20.0, 50
ARRIVE_SECONDS = 20.0
CLAIMED = "SELECT job, min(extract(epoch FROM at)) FROM job_events WHERE type = 'claimed' GROUP BY job"
MAKE_POLLED = (
    "CREATE TABLE polled (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, number bigint NOT NULL)"
)


def evenly(count: int, send: Callable[[int], object]) -> dict[int, float]:
    """Send so many at even intervals; return when each had been sent, by its number."""
    sent: dict[int, float] = {}
    begin = time.perf_counter()
    for number in range(count):
        pause = begin + number / PER_SECOND - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        send(number)
        sent[number] = time.time()
    return sent


def told(sent: Mapping[int, float], begun: Mapping[int, float]) -> Mapping[str, float]:
    """Return the percentiles of what passed between, ms."""
    latencies = [1000 * max(0.0, begun[number] - at) for number, at in sent.items()]
    return {"p50": percentile(latencies, 50), "p99": percentile(latencies, 99)}


@contextmanager
def _ours(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.team()
        world.relay()
        worker(world, "benchmarks.bench.inline:setup").wait_ready(timeout=60)
        count = ground.scaled(JOBS, 10)

        def turn() -> Mapping[str, float]:
            jobs: list[object] = []
            sent = evenly(count, lambda _: jobs.extend(world.accept()))
            until(lambda: len(_claims(world).keys() & set(jobs)) == count, ARRIVE_SECONDS)
            found = _claims(world)
            return told(sent, {number: found[job] for number, job in enumerate(jobs)})

        turn()  # the first ones find cold pools, as everybody's do
        yield turn


def _claims(world: World) -> dict[object, float]:
    return {job: float(at) for job, at in world.admin.execute(CLAIMED).fetchall()}


class Logged:
    """A rival's worker, which writes `number time` for each message."""

    def __init__(self, ground: Ground, world: World, module: str, **env: str) -> None:
        self.log = Path(world.processes.folder, "rival.log")
        self._count = ground.scaled(JOBS, 10)
        self._numbers = counting(0, self._count)
        argv = [sys.executable, "-m", "dramatiq", module, "-p", "1", "-t", str(THREADS)]
        world.processes.start("worker", argv, {"RIVAL_LOG": os.fspath(self.log), **env}).wait_log(
            "Worker process is ready", timeout=60
        )

    def turn(self, send: Callable[[int], object]) -> Turn:
        """Return the turn; `send` is told the number of a message."""

        def turn() -> Mapping[str, float]:
            first = next(self._numbers)
            sent = evenly(self._count, lambda number: send(first + number))
            wanted = {first + number: at for number, at in sent.items()}
            until(lambda: wanted.keys() <= self._begun().keys(), ARRIVE_SECONDS)
            return told(wanted, self._begun())

        turn()
        return turn

    def _begun(self) -> dict[int, float]:
        lines = self.log.read_text(encoding="ascii").splitlines() if self.log.exists() else []
        return {int(number): float(at) for number, at in (line.split() for line in lines)}


def _began(number: int) -> dramatiq.Message[None]:
    return dramatiq.Message("default", "began", (number,), {}, {})


@contextmanager
def _stock(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        broker = RedisBroker(url=world.valkey.url)
        broker.declare_queue("default")
        logged = Logged(
            ground, world, "benchmarks.bench.rivals.stock_actors", RIVAL_REDIS_URL=world.valkey.url
        )
        yield logged.turn(lambda number: broker.enqueue(_began(number)))
        broker.close()


@contextmanager
def _dramatiq_postgres(ground: Ground) -> Generator[Turn]:
    from dramatiq_postgres import PostgresBroker, schema  # noqa: PLC0415 -- only `make bench` installs it

    with ground.world() as world:
        with world.admin.cursor() as cursor:
            schema.init(cursor)
        url = world.database.url()
        logged = Logged(
            ground, world, "benchmarks.bench.rivals.dramatiq_postgres_actors", RIVAL_DATABASE_URL=url
        )
        broker = PostgresBroker(url=url, results=False)
        broker.declare_queue("default")
        yield logged.turn(lambda number: broker.enqueue(_began(number)))
        broker.close()


@contextmanager
def _polling(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.admin.execute(MAKE_POLLED)
        logged = Logged(
            ground, world, "benchmarks.bench.rivals.stock_actors", RIVAL_REDIS_URL=world.valkey.url
        )
        world.python("benchmarks.bench.rivals.polling_relay", world.database.dsn(), world.valkey.url)
        yield logged.turn(
            lambda number: world.admin.execute("INSERT INTO polled (number) VALUES (%s)", [number])
        )


def _entrances(ground: Ground) -> Mapping[str, Entrance]:
    found = {
        "oncommit": _ours,
        "stock Dramatiq": _stock,
        "dramatiq-postgres": _dramatiq_postgres,
        "polling relay at 1 s": _polling,
    }
    return {name: partial(entrance, ground) for name, entrance in found.items()}


MEASURES = [
    Measure(
        "claim-latency",
        f"From commit to claim, an idle worker, {PER_SECOND:g} jobs a second",
        [Figure("p50", "ms", less=True), Figure("p99", "ms", less=True)],
        [
            Floor("p50", "oncommit", "stock Dramatiq", 1 / 3),
            Floor("p99", "oncommit", "stock Dramatiq", 0.1),
            Floor("p50", "oncommit", "dramatiq-postgres", 1),
            Floor("p99", "oncommit", "dramatiq-postgres", None),
            Floor("p50", "oncommit", "polling relay at 1 s", 0.02),
        ],
        _entrances,
    )
]
