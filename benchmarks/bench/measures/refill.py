"""After a loss: FLUSHALL while 100,000 intents live, until all of them are back in Redis.

- oncommit: a relay that streams; it finds the loss by its own beat, which is part of the time. The team is
  paused, so that nothing is taken. The figure `first` is the time until the first message is back.
- pipelined write: the same bodies under the same ids into one hash, 500 a pipeline; nothing else.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial

from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn
from benchmarks.bench.ground import Ground, until
from benchmarks.bench.written import FILL

INTENTS, PAGE = 100_000, 500
LIMIT_SECONDS = 120.0
PAUSE = "SELECT set_lane('acme', '{\"paused\": true}', 'bench', 'nothing is taken')"


@contextmanager
def _ours(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.team()
        world.admin.execute(PAUSE)
        count = ground.scaled(INTENTS, PAGE)
        world.admin.execute(FILL.format(transactions=1, each=count))  # type: ignore[arg-type]
        world.relay()
        until(lambda: world.in_redis() == count, LIMIT_SECONDS)

        def turn() -> Mapping[str, float]:
            world.valkey.client.flushall()
            first = until(world.in_redis, LIMIT_SECONDS)
            return {"back": first + until(lambda: world.in_redis() == count, LIMIT_SECONDS), "first": first}

        yield turn


@contextmanager
def _written(ground: Ground) -> Generator[Turn]:
    with ground.world() as world:
        world.team()
        count = ground.scaled(INTENTS, PAGE)
        world.admin.execute(FILL.format(transactions=1, each=count))  # type: ignore[arg-type]
        rows = world.admin.execute("SELECT message_id, body FROM outbox ORDER BY id").fetchall()
        client = world.valkey.client

        def turn() -> Mapping[str, float]:
            client.flushall()
            began, first = time.perf_counter(), 0.0
            for at in range(0, count, PAGE):
                pipe = client.pipeline(transaction=False)
                for message_id, body in rows[at : at + PAGE]:
                    pipe.hset("messages", message_id, body)
                pipe.execute()
                first = first or time.perf_counter() - began
            return {"back": time.perf_counter() - began, "first": first}

        yield turn


def _entrances(ground: Ground) -> Mapping[str, Entrance]:
    return {"oncommit": partial(_ours, ground), "pipelined write": partial(_written, ground)}


MEASURES = [
    Measure(
        "refill",
        f"FLUSHALL with {INTENTS:,} living intents: all of them back",
        [Figure("back", "s", less=True), Figure("first", "s", less=True)],
        [
            Floor("back", "oncommit", "pipelined write", 5),
            Floor("first", "oncommit", "pipelined write", None),
        ],
        _entrances,
    )
]
