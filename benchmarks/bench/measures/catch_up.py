"""Relay catch-up: committed intents, in transactions of 1 or of 100, from the WAL into Redis.

A turn is 40,000 intents, so that five rounds are 200,000 in all; `SIZE=5` makes each turn 200,000.


- oncommit: a relay process that finds the intents in its slot, timed from the start of its stream until the
  slot has confirmed them all. The table is empty, so what Redis holds then came by the WAL, and counts
  (a relay drops what it reads before it has drawn its epoch: the table would bring that back).
- oncommit, restarted: the same with the rows still in the table, as after an outage of the relay: it pages
  through the table while it reads the stream.
- pg_recvlogical: PostgreSQL's own client, same plugin and options, into /dev/null; whole process.
- stock enqueue: `RedisBroker.enqueue` of stock Dramatiq in a loop, one message after the other, as its
  documentation shows; messages of the same actor.
- polling relay: takes and deletes 100 rows (FOR UPDATE SKIP LOCKED), writes them into Redis in one pipeline,
  commits; one process, no pause between batches, a narrow table with one index.

The first two read the same WAL: a slot stands at its beginning and is copied for each turn.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import dramatiq
import psycopg
from dramatiq.brokers.redis import RedisBroker

from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn
from benchmarks.bench.ground import Decoder, Ground, World
from benchmarks.bench.written import FILL, Written

INTENTS = 40_000
#: Rates do not depend on how many there are here; the slower ones need not run for a minute.
ENQUEUED, POLLED = 4_000, 15_000
POLL_BATCH = 100
MAKE_POLLED = """
CREATE TABLE polled (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL,
                     queue text NOT NULL, body text NOT NULL)
"""
FILL_POLLED = (
    "INSERT INTO polled (message_id, queue, body) SELECT message_id, queue, body FROM outbox LIMIT %s"
)
POLL = """
DELETE FROM polled WHERE id IN (SELECT id FROM polled ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING message_id, queue, body
"""


class Contest:
    """What the contestants of one measure share: the WAL is written when the first of them comes in."""

    def __init__(self, ground: Ground, decoder: Decoder, each: int) -> None:
        self._ground, self._decoder, self._each = ground, decoder, each
        self._count = ground.scaled(INTENTS, each) // each * each
        self._shared: Written | None = None

    @contextmanager
    def streamed(self) -> Generator[Turn]:
        """Ours by the WAL alone. Comes in first and leaves last, so its WAL is there for `received`."""
        with self._written() as written:
            written.world.admin.execute("TRUNCATE outbox")
            self._shared = written
            yield partial(written.relay_turn, keep=False)

    @contextmanager
    def received(self) -> Generator[Turn]:
        """PostgreSQL's own client, on the same WAL."""
        assert self._shared is not None, "there is no WAL to read"
        yield partial(self._shared.receive_turn, self._ground)

    @contextmanager
    def restarted(self) -> Generator[Turn]:
        """Ours with the rows in the table."""
        with self._written() as written:
            yield partial(written.relay_turn, keep=True)

    @contextmanager
    def _written(self) -> Generator[Written]:
        with self._ground.world(self._decoder) as world:
            yield Written(world, self._decoder, self._count, self._each)

    @contextmanager
    def enqueued(self) -> Generator[Turn]:
        """Stock Dramatiq's enqueue in a loop."""
        count = self._ground.scaled(ENQUEUED, 100)
        with self._ground.valkey() as valkey:
            broker = RedisBroker(url=valkey.url)
            broker.declare_queue("previews")

            def turn() -> Mapping[str, float]:
                valkey.client.flushall()
                began = time.perf_counter()
                for number in range(count):
                    broker.enqueue(dramatiq.Message("previews", "render_preview", (str(number), 1), {}, {}))
                return {"rate": count / (time.perf_counter() - began)}

            yield turn
            broker.close()

    @contextmanager
    def polled(self) -> Generator[Turn]:
        """A polling outbox relay."""
        count = self._ground.scaled(POLLED, POLL_BATCH) // POLL_BATCH * POLL_BATCH
        with self._ground.world(self._decoder) as world:
            world.team()
            world.admin.execute(FILL.format(transactions=1, each=count))  # type: ignore[arg-type]
            world.admin.execute(MAKE_POLLED)

            def turn() -> Mapping[str, float]:
                world.valkey.client.flushall()
                world.admin.execute(FILL_POLLED, [count])
                began = time.perf_counter()
                with psycopg.connect(world.database.dsn()) as conn:
                    while _poll(conn, world):
                        pass
                took = time.perf_counter() - began
                assert int(world.valkey.client.llen("dramatiq:previews")) == count  # type: ignore[arg-type]
                return {"rate": count / took}

            yield turn


def _poll(conn: psycopg.Connection, world: World) -> bool:
    """Take one batch, as stock Dramatiq's enqueue lays it: the body into a hash, the id into a list."""
    rows = conn.execute(POLL, [POLL_BATCH]).fetchall()
    pipe = world.valkey.client.pipeline(transaction=False)
    for message_id, queue, body in rows:
        pipe.hset(f"dramatiq:{queue}.msgs", message_id, body)
        pipe.rpush(f"dramatiq:{queue}", message_id)
    pipe.execute()
    conn.commit()
    return bool(rows)


def _measure(decoder: Decoder, each: int, beside: Sequence[Floor] = ()) -> Measure:
    def entrances(ground: Ground) -> Mapping[str, Entrance]:
        found = Contest(ground, decoder, each)
        everybody: dict[str, Entrance] = {
            "oncommit": found.streamed,
            "pg_recvlogical": found.received,
            "oncommit, restarted": found.restarted,
            "stock enqueue": found.enqueued,
            "polling relay": found.polled,
        }
        asked = {
            "oncommit",
            "pg_recvlogical",
            *(name for floor in beside for name in (floor.ours, floor.other)),
        }
        return {name: entrance for name, entrance in everybody.items() if name in asked}

    return Measure(
        f"catch-up-{decoder}-{each}",
        f"Relay catch-up with {decoder}: committed intents into Redis, {each} a transaction",
        [Figure("rate", "rows/s")],
        [Floor("rate", "oncommit", "pg_recvlogical", 0.5), *beside],
        entrances,
    )


POLLING = Floor("rate", "oncommit", "polling relay", 3)
SHOWN = Floor("rate", "oncommit", "polling relay", None)
RESTARTED = Floor("rate", "oncommit, restarted", "oncommit", None)
# Those that read no WAL do not depend on the decoder: once is enough. At 1 a transaction the polling relay is
# shown only: three times as fast is above what pg_recvlogical itself reaches there.
MEASURES = [
    _measure("wal2json", 1, [Floor("rate", "oncommit", "stock enqueue", 5), SHOWN]),
    _measure("wal2json", 100, [Floor("rate", "oncommit", "stock enqueue", 8), POLLING, RESTARTED]),
    _measure("pgoutput", 1),
    _measure("pgoutput", 100),
]
