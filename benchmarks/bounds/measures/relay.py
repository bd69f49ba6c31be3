"""The relay: taken over, without a stream, behind poison, with a huge transaction, idle."""

import random
import time

import psycopg
from psycopg import sql

from benchmarks.bounds.stage import Measured, Stage, seconds_until
from support.proxy import Proxy
from tests.chaos.faults import FAULTS

FILL = "INSERT INTO beside SELECT repeat(md5(random()::text), 32) FROM generate_series(1, 1024)"  # 1 MB
RETAINED_MB = 16
#: Longer than a try to connect, 5 s, and the time between two.
TRIES_SECONDS = 12
MILLION = 1_000_000
PATIENCE = 1_800  # seconds; two busy cores publish 2,000 rows a second, two idle ones 12,000


def idle_wal(stage: Stage) -> Measured:
    """No job at all, while others write 256 MB into a table beside ours and 256 MB into another database."""
    stage.start(workers=0)
    other = f"{stage.world.database.name}_beside"
    stage.admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(other)))
    try:
        for dbname in (stage.world.database.name, other):
            with stage.world.server.connect(dbname) as conn:
                conn.execute("CREATE TABLE beside (filler text)")
                conn.execute("ALTER TABLE beside ALTER filler SET STORAGE EXTERNAL")
                for _ in range(256):
                    conn.execute(FILL)
        return {"shrunk": seconds_until(lambda: stage.retained_mb() < RETAINED_MB, 120)}
    finally:
        stage.admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(other)))


def slot_lost(stage: Stage) -> Measured:
    """Somebody drops the slot; what is committed at that moment was never in it."""
    stage.pause()
    stage.start(workers=0)
    FAULTS["slot-dropped"](stage.world, random.Random(0)).inject()
    stage.intents(10)
    return {"dropped": seconds_until(lambda: stage.in_redis() == 10, 60)}


def takeover(stage: Stage) -> Measured:
    """The first relay is killed; the second publishes what is committed right then."""
    stage.pause()
    stage.start(relays=2, workers=0)
    active = stage.world.active_relay()
    active.hand.acquire()  # nobody starts it again
    active.expected = True
    active.running.kill()
    stage.intents(1)
    took = seconds_until(lambda: stage.in_redis() == 1, 60)
    active.hand.release()
    return {"took": took}


def polling(stage: Stage) -> Measured:
    """An open write transaction keeps the slot from being made; then the stream cannot be connected to."""
    stage.pause()
    with psycopg.connect(stage.world.database.dsn()) as other:
        other.execute("CREATE TABLE bounds_block ()")
        relay = stage.world.processes.relay(ready=False)
        relay.wait_log("relay.no_stream", timeout=60)
        _commit_to_redis(stage)
        slowest = max(_commit_to_redis(stage) for _ in range(5))
        other.rollback()
    relay.wait_ready()
    relay.stop()  # the slot is there from now on: nothing but the stream's connection is refused
    database = stage.world.database
    wrong = database.url("relay").replace(database.server.passwords["oncommit_relay"], "rotated")
    with Proxy(database.server.port) as link:
        link.blackhole()
        silent = database.url("relay", port=link.port)
        return {
            "slowest": slowest,
            "refused": _without_its_connection(stage, wrong),
            "silent": _without_its_connection(stage, silent),
        }


def _without_its_connection(stage: Stage, url: str) -> float:
    """Start a relay whose stream is to be had at `url`; return the slowest way from commit to Redis."""
    relay = stage.world.processes.relay(ready=False, ONCOMMIT_REPLICATION_URL=url)
    relay.wait_log("relay.no_stream", timeout=60)
    until, slowest = time.monotonic() + TRIES_SECONDS, 0.0
    while time.monotonic() < until:
        slowest = max(slowest, _commit_to_redis(stage))
    relay.stop()
    return slowest


def _commit_to_redis(stage: Stage) -> float:
    before = stage.in_redis()
    stage.intents(1)
    return seconds_until(lambda: stage.in_redis() == before + 1, 60)


def poison(stage: Stage) -> Measured:
    """A row of another hand with an unknown queue, and good ones behind it in the same transaction."""
    stage.pause()
    stage.start(workers=0)
    stage.admin.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_queue_fkey")
    with stage.admin.transaction():
        stage.admin.execute(
            "INSERT INTO outbox (message_id, queue, lane, priority, body)"
            " VALUES ('paused|x.1', 'nowhere', 'paused', 1, '{}')"
        )
        stage.intents(10)
    good = seconds_until(lambda: stage.in_redis() == 10, 30)
    away = seconds_until(lambda: stage.number("SELECT count(*) FROM quarantine") == 1, 30)
    return {"rest": good, "away": good + away}


def million(stage: Stage) -> Measured:
    """One transaction of 1,000,000 intents, and a single job committed after it."""
    return _million(stage, "auto")


def million_pgoutput(stage: Stage) -> Measured:
    """Measure the same, read with the plugin that every server has."""
    return _million(stage, "pgoutput")


def _million(stage: Stage, decoder: str) -> Measured:
    stage.admin.execute("ALTER SYSTEM SET wal_sender_timeout = '5s'")
    stage.admin.execute("SELECT pg_reload_conf()")
    stage.pause()
    stage.start(ONCOMMIT_DECODER=decoder)
    stage.intents(MILLION)
    committed = time.monotonic()
    [job] = stage.accept("heavy")
    seconds_until(lambda: stage.in_redis() >= MILLION, PATIENCE, every=0.1)
    published = time.monotonic() - committed
    started = seconds_until(lambda: stage.started(job), 60)
    restarts = stage.world.of("relay")[0].running.log_text().count("relay.attached") - 1
    return {
        "published": published,
        "memory": stage.peak_mb(),
        "later": started,
        "restarts": float(restarts),
    }
