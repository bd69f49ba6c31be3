"""ConsumeIntent: actors whose messages come from outbox.append, on a real PostgreSQL."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import psycopg
import pytest
from dramatiq.worker import Worker

from broker import intents
from broker.client import redis_client
from broker.lane_broker import LaneBroker
from broker.lanes import Outgoing
from db import outbox
from db.pool import pool
from support.lane_server import NS, Server
from support.postgres import Database
from support.waiting import eventually

Q = "default"


class Bench:
    """A worker whose only actor consumes intents."""

    def __init__(self, url: str, database: Database) -> None:
        self.database = database
        database.admin.execute("INSERT INTO queues VALUES (%s)", [Q])
        self.pool = pool(database.dsn("worker"), "test", size=2, timeout=1)
        self.broker = LaneBroker(
            redis_client(url),
            namespace=NS,
            quarantine=lambda _id, _reason: True,
            middleware=[intents.ConsumeIntent(self.pool)],
        )
        self.worker = Worker(self.broker, worker_threads=2, worker_timeout=50)

    def actor(self, run: Callable[..., Any]) -> None:
        dramatiq.actor(run, broker=self.broker, actor_name="act", consume_intent=True)
        self.worker.start()

    def deliver(self, message_id: str, body: str) -> None:
        lane = message_id.split("|", maxsplit=1)[0]
        self.broker.lanes.send(Outgoing(Q, message_id, lane, 5, 1, 0, body.encode()), self.broker._default)

    def append(self, conn: psycopg.Connection[Any], n: int) -> tuple[str, str]:
        message_id = outbox.append(conn, "act", [n], lane="default", queue=Q)
        row = conn.execute("SELECT body FROM outbox WHERE message_id = %s", [message_id]).fetchone()
        assert row is not None
        return message_id, row[0]

    def living(self) -> int:
        row = self.database.admin.execute("SELECT count(*) FROM outbox").fetchone()
        assert row is not None
        return int(row[0])

    def empty(self) -> None:
        eventually(lambda: self.broker.do_qsize(Q) == 0, describe=lambda: self.broker.lanes.stats(Q))


@pytest.fixture
def bench(lanes_server: Server, database: Database) -> Iterator[Bench]:
    bench = Bench(lanes_server.url, database)
    yield bench
    bench.worker.stop()
    bench.pool.close()


def test_success_deletes_the_intent_and_then_acknowledges(bench: Bench) -> None:
    living: list[int] = []
    bench.actor(lambda _n: living.append(bench.living()))
    bench.deliver(*bench.append(bench.database.admin, 1))
    bench.empty()
    assert living == [1]
    assert bench.living() == 0


def test_a_failure_keeps_the_intent(bench: Bench) -> None:
    runs: list[int] = []

    def act(n: int) -> None:
        runs.append(n)
        if len(runs) == 1:
            raise ValueError("broken")

    bench.actor(act)
    bench.deliver(*bench.append(bench.database.admin, 1))
    eventually(lambda: bench.broker.lanes.stats(Q).delayed == 1)
    assert bench.living() == 1
    bench.empty()
    assert (runs, bench.living()) == ([1, 1], 0)


def test_a_message_without_an_intent_is_skipped_in_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intents, "VISIBLE_WITHIN_SECONDS", 0.3)
    runs: list[int] = []
    bench.actor(runs.append)
    message_id, body = bench.append(bench.database.admin, 1)
    bench.database.admin.execute("DELETE FROM outbox")
    bench.deliver(message_id, body)
    bench.empty()
    assert runs == []


def test_a_message_that_overtook_its_commit_is_not_lost(bench: Bench) -> None:
    runs: list[int] = []
    bench.actor(runs.append)
    with bench.database.connect() as conn:
        bench.deliver(*bench.append(conn, 1))
        eventually(lambda: bench.broker.lanes.stats(Q).delayed == 1)
        assert runs == []
        conn.commit()
    bench.empty()
    assert (runs, bench.living()) == ([1], 0)


def test_while_the_database_is_away_messages_wait(bench: Bench) -> None:
    runs: list[float] = []
    bench.actor(lambda _n: runs.append(time.monotonic()))
    delivery = bench.append(bench.database.admin, 1)
    bench.database.server.stop()
    bench.deliver(*delivery)
    eventually(lambda: bench.broker.lanes.stats(Q).delayed == 1)
    bench.database.server.start()
    bench.empty()
    assert len(runs) == 1
    with bench.database.connect() as conn:
        assert conn.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
