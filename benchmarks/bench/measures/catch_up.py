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

import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import count as counting

import dramatiq
import psycopg
from dramatiq.brokers.redis import RedisBroker

from benchmarks.bench.contest import Entrance, Figure, Floor, Measure, Turn
from benchmarks.bench.ground import Decoder, Ground, World, until
from relay.slot import new_decoder

INTENTS = 40_000
#: Rates do not depend on how many there are here; the slower ones need not run for a minute.
ENQUEUED, POLLED = 4_000, 15_000
POLL_BATCH = 100
LIMIT_SECONDS = 180.0
#: What is dropped at the very start is one read of at most 1,000 frames.
ALMOST = 0.8
PUBLICATION = "oncommit_outbox"
# One transaction for each round of the outer loop: COMMIT inside DO needs no way to the client and back.
FILL = """
DO $$ BEGIN
  FOR i IN 1..{transactions} LOOP
    INSERT INTO outbox (message_id, queue, lane, priority, body)
    SELECT m, 'previews', 'acme', 5, preview_message(m, 'previews', gen_random_uuid(), 1, NULL, now())
      FROM (SELECT 'acme|' || gen_random_uuid() || '.1' AS m FROM generate_series(1, {each})) AS rows;
    COMMIT;
  END LOOP;
END $$
"""
END = "SELECT pg_current_wal_insert_lsn()::text"
CONFIRMED = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
COPY_SLOT = "SELECT pg_copy_logical_replication_slot(%s, %s)"
DROP_SLOT = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
)
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


class Written:
    """A database whose WAL holds the intents, and the slot that stands before them."""

    def __init__(self, world: World, decoder: Decoder, count: int, each: int) -> None:
        self.world, self.decoder, self.count = world, decoder, count
        self.origin = f"{world.database.slot}_origin"
        self._numbers = counting()
        world.team()
        world.admin.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [self.origin, decoder])
        world.admin.execute("SET synchronous_commit = off")  # only the filling: readers see the same WAL
        world.admin.execute(FILL.format(transactions=count // each, each=each))  # type: ignore[arg-type]
        world.admin.execute("SET synchronous_commit = on")
        row = world.admin.execute(END).fetchone()
        assert row is not None
        self.end: str = row[0]

    def slot(self) -> str:
        """Return a slot that stands before the intents, for one turn."""
        name = f"{self.origin}_{next(self._numbers)}"
        self.world.admin.execute(COPY_SLOT, [self.origin, name])
        return name

    def drop(self, slot: str) -> None:
        """Let go of a turn's slot."""
        until(lambda: self.world.admin.execute(DROP_SLOT, [slot]).fetchone(), 30)

    def relay_turn(self, *, keep: bool) -> Mapping[str, float]:
        """Let a relay catch up; `keep`: the rows are in the table, so that all of them have to arrive."""
        world, slot = self.world, self.slot()
        world.valkey.client.flushall()
        relay = world.relay(ONCOMMIT_SLOT=slot, ONCOMMIT_DECODER=self.decoder)
        try:
            if keep:
                until(lambda: world.in_redis() >= self.count, LIMIT_SECONDS)
            until(
                lambda: world.admin.execute(CONFIRMED, [self.end, slot]).fetchone() == (True,), LIMIT_SECONDS
            )
            ended, count = time.time(), world.in_redis()
            began = _attached(relay.log_lines())
        finally:
            relay.stop()
            self.drop(slot)
        if count < ALMOST * self.count:
            raise RuntimeError(f"only {count:,} of {self.count:,} came into Redis")
        return {"rate": count / (ended - began)}

    def receive_turn(self, ground: Ground) -> Mapping[str, float]:
        """Let pg_recvlogical read the same."""
        slot = self.slot()
        options = new_decoder(self.decoder).options(PUBLICATION)
        command = [
            ground.program(self.decoder, "pg_recvlogical"), "--dbname", self.world.database.dsn(),
            "--slot", slot, "--start", "--file", "/dev/null", "--endpos", self.end, "--no-loop",
            *(word for name, value in options.items() for word in ("--option", f"{name}={value}")),
        ]  # fmt: skip
        began = time.perf_counter()
        subprocess.run(command, check=True, timeout=LIMIT_SECONDS, capture_output=True)  # noqa: S603
        took = time.perf_counter() - began
        self.drop(slot)
        return {"rate": self.count / took}


def _attached(lines: list[dict[str, str]]) -> float:
    [line] = [line for line in lines if line["event"] == "relay.attached"]
    return datetime.fromisoformat(line["timestamp"]).timestamp()


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
