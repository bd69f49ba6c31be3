"""ConsumeIntent: actors whose messages come from outbox.append, on a real PostgreSQL."""

import threading
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

    def deliver(self, message_id: str, intent: int, body: str) -> None:
        lane = message_id.split("|", maxsplit=1)[0]
        row = Outgoing(Q, message_id, lane, 5, intent, 0, body.encode())
        self.broker.lanes.send(row, self.broker._default)

    def append(
        self, conn: psycopg.Connection[Any], n: int, dedupe: str | None = None
    ) -> tuple[str, int, str]:
        message_id = outbox.append(conn, "act", [n], lane="default", queue=Q, dedupe=dedupe)
        row = conn.execute("SELECT id, body FROM outbox WHERE message_id = %s", [message_id]).fetchone()
        assert row is not None
        return message_id, *row

    def append_again(self, n: int, dedupe: str) -> tuple[str, int, str]:
        """Use an id again, as an application may once its intent is consumed."""
        self.database.admin.execute("DELETE FROM outbox WHERE message_id = %s", [f"default|{dedupe}"])
        return self.append(self.database.admin, n, dedupe)

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
    delivery = bench.append(bench.database.admin, 1)
    bench.database.admin.execute("DELETE FROM outbox")
    bench.deliver(*delivery)
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


def test_an_id_used_again_runs_its_new_body_and_not_the_one_that_waits(bench: Bench) -> None:
    runs: list[int] = []
    bench.deliver(*bench.append(bench.database.admin, 1, "order-7"))
    bench.deliver(*bench.append_again(2, "order-7"))
    bench.actor(runs.append)
    bench.empty()
    assert (runs, bench.living()) == ([2], 0)


def test_the_end_of_an_old_delivery_swallows_no_newer_intent_of_its_id(bench: Bench) -> None:
    begun, gate = threading.Event(), threading.Event()
    runs: list[int] = []

    def act(n: int) -> None:
        runs.append(n)
        begun.set()
        gate.wait(20)

    bench.actor(act)
    bench.deliver(*bench.append(bench.database.admin, 1, "order-7"))
    assert begun.wait(10)
    bench.deliver(*bench.append_again(2, "order-7"))
    gate.set()
    bench.empty()
    assert (runs, bench.living()) == ([1, 2], 0)


def test_an_old_message_does_not_run_in_the_name_of_a_newer_intent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one has not reached Redis; its intent stays, and the audit publishes it."""
    monkeypatch.setattr(intents, "VISIBLE_WITHIN_SECONDS", 0.3)
    runs: list[int] = []
    bench.actor(runs.append)
    old = bench.append(bench.database.admin, 1, "order-7")
    new = bench.append_again(2, "order-7")
    bench.deliver(*old)
    bench.empty()
    assert (runs, bench.living()) == ([], 1)
    assert bench.broker.lanes.missing(Q, {new[0]: new[1]}) == [new[0]]
    bench.deliver(*new)
    bench.empty()
    assert (runs, bench.living()) == ([2], 0)
