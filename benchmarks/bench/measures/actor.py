"""An actor that does nothing, 1 process x 8 threads, out of a backlog in Redis: our broker beside stock's.

- oncommit: `LaneBroker` with what it always has (Settle); messages without intents, so PostgreSQL is idle.
- stock RedisBroker: Dramatiq's broker with its default middleware, prefetching as many as ours (its threads).
"""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count as counting

import dramatiq

from benchmarks.bench.backlog import Worker
from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn
from benchmarks.bench.ground import Ground, World
from broker.client import redis_client
from broker.lanes import Lanes, Limit, Outgoing, Token

THREADS, SLICE = 8, 500


def _start(world: World, name: str, module: str) -> Worker:
    env = {
        "RIVAL_REDIS_URL": world.valkey.url,
        "RIVAL_LOG": str(world.processes.folder / f"{name}.rival.log"),
        "dramatiq_queue_prefetch": str(THREADS),
    }
    argv = [sys.executable, "-m", "dramatiq", module, "-p", "1", "-t", str(THREADS)]
    return Worker(lambda _: None, lambda: world.processes.start(name, argv, env), lambda: 0.0)


def _message(number: int, **options: str) -> bytes:
    return dramatiq.Message("default", "nothing", (number,), {}, options).encode()


@contextmanager
def _ours(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        lanes, numbers = Lanes(redis_client(world.valkey.url), "bench"), counting(1)
        lanes.seize(1)
        token = Token(1, 0)
        token, _ = lanes.publish(token, limits=[Limit("acme", 1, None, 1, None, 1, paused=False)])

        def fill(count: int) -> None:
            nonlocal token
            for at in range(0, count, SLICE):
                rows = []
                for number in (next(numbers) for _ in range(min(SLICE, count - at))):
                    name = f"acme|{number}.1"
                    body = _message(number, redis_message_id=name)
                    rows.append(Outgoing("default", name, "acme", 5, number, 0, body))
                token, _ = lanes.publish(token, messages=rows)

        made = _start(world, "lanes", "benchmarks.bench.rivals.lane_actors:setup")
        yield Worker(
            fill, made.start, lambda: float(world.valkey.client.hlen("bench:default:messages"))  # type: ignore[arg-type]
        ).turn(ground)  # fmt: skip


@contextmanager
def _stock(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        client, numbers = world.valkey.client, counting(1)

        def fill(count: int) -> None:
            for at in range(0, count, SLICE):
                pipe = client.pipeline(transaction=False)
                for number in (next(numbers) for _ in range(min(SLICE, count - at))):
                    name = f"m{number}"
                    pipe.hset("dramatiq:default.msgs", name, _message(number, redis_message_id=name))
                    pipe.rpush("dramatiq:default", name)
                pipe.execute()

        made = _start(world, "stock", "benchmarks.bench.rivals.stock_actors")
        yield Worker(
            fill, made.start, lambda: float(client.hlen("dramatiq:default.msgs"))  # type: ignore[arg-type]
        ).turn(ground)  # fmt: skip


def _entrances(ground: Ground) -> Mapping[str, Entrance]:
    return {"oncommit": partial(_ours, ground), "stock RedisBroker": partial(_stock, ground)}


MEASURES = [
    Measure(
        "actor",
        f"An actor that does nothing, 1 process x {THREADS} threads, equal prefetch, no PostgreSQL",
        [Figure("rate", "jobs/s")],
        [Floor("rate", "oncommit", "stock RedisBroker", 1.2)],
        _entrances,
    )
]
