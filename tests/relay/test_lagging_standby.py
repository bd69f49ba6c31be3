"""A synchronous standby that does not answer: the WAL shows commits long before any snapshot does.

Their clients were told nothing yet. Nothing is lost, whatever happens to Redis and to relays meanwhile.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from broker.lanes import Lanes
from support.postgres import Database
from support.processes import Processes
from support.server_setting import setting
from support.team import House
from support.valkey import Valkey
from support.waiting import always, eventually

from .test_relay import CONFIRMED, TERMINATE, accept, admin, expected, in_redis

__all__ = ["admin", "in_redis"]

WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'"
)
PAUSE = "SELECT pause_lane('acme', true, 'test', 'the standby lags')"
#: Only a resync may find what is missing, no audit.
NO_AUDIT = {"ONCOMMIT_AUDIT_SECONDS": "3600"}
Work = Callable[[psycopg.Connection], Any]


@contextmanager
def lagging(database: Database, work: Work) -> Iterator[Any]:
    """Commit the work in a session that waits for a standby until the block ends; give what it returned."""
    done: list[Any] = []
    conn = database.connect()

    def run() -> None:
        done.append(work(conn))
        conn.commit()

    committing = threading.Thread(target=run)
    with setting(database.server, "synchronous_standby_names", "nobody"):
        committing.start()
        eventually(lambda: database.admin.execute(WAITING).fetchone() == (1,), describe="the commit waits")
        yield done[0]
        assert committing.is_alive(), "nothing was acknowledged before its time"
    committing.join(20)
    assert not committing.is_alive()
    conn.close()


@contextmanager
def caught_up_once_more(relay: Any) -> Iterator[None]:
    """Return from the block when the relay has ended a resync that began in it."""

    def count() -> int:
        return relay.log_text().count("relay.caught_up")

    before = count()
    yield
    eventually(lambda: count() > before, describe="a resync that cannot see it")


@pytest.mark.parametrize("relays", [1, 2])
def test_what_redis_never_got_is_published_once_it_can_be_seen(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, in_redis: Any, relays: int
) -> None:
    database, relay = processes.database, processes.relay(**NO_AUDIT)
    valkey.kill()

    def work(conn: psycopg.Connection) -> UUID:
        conn.execute(PAUSE)
        return accept(conn)[0]

    with lagging(database, work) as job:
        # The relay reads it, and lets go of it: without Redis there is nowhere to put it.
        eventually(lambda: admin.execute(CONFIRMED, [database.slot]).fetchone() == (True,))
        with caught_up_once_more(relay):
            valkey.start(empty=True)
        if relays == 1:
            with caught_up_once_more(relay):  # a second reign, that begins as early
                admin.execute(TERMINATE, [database.slot])
        else:
            relay.kill()
            relay = processes.relay(ready=False, **NO_AUDIT)
            with caught_up_once_more(relay):
                pass
        assert in_redis() == set()
    eventually(lambda: in_redis() == {f"acme|{job}.1"}, timeout=10, describe="the message")
    lanes = Lanes(valkey.client, "oncommit")
    eventually(lambda: [lane.state for lane in lanes.stats("previews").lanes] == ["paused"], timeout=5)


def test_what_was_published_and_lost_before_it_could_be_seen_comes_back(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, in_redis: Any
) -> None:
    relay = processes.relay(**NO_AUDIT)
    with lagging(processes.database, accept) as jobs:
        eventually(lambda: in_redis() == {f"acme|{jobs[0]}.1"}, describe="the WAL shows it")
        admin.execute("CHECKPOINT")  # after it the next epoch is written to the WAL, hence a commit
        with caught_up_once_more(relay):
            valkey.client.flushall()
        always(lambda: relay.get("/readyz") == 200, during=1.0, describe="an epoch waits for no standby")
    eventually(lambda: in_redis() == expected(admin), timeout=10, describe="the message is back")


def test_a_worker_waits_for_the_row_of_a_message_that_came_early(
    processes: Processes, database: Database
) -> None:
    processes.relay()
    worker = processes.worker(
        # Its own commits would wait for the standby as well: this is about what it reads.
        ONCOMMIT_DATABASE_URL=database.url("worker") + "?options=-csynchronous_commit%3Dlocal"
    )
    portal = processes.portal()
    client = House(database, portal, processes).client()
    document = client.put(b"early")
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(client.post({"document": document, "kind": "page"}, key="early"))
    )
    with setting(database.server, "synchronous_standby_names", "nobody"):
        asking.start()
        eventually(lambda: 'why="not_yet"' in worker.page("/metrics"), describe="a claim that was too early")
        assert not answers, "202 before the commit is one"
        assert processes.renders() == []
    asking.join(20)
    assert answers[0].status_code == 202
    ended = "SELECT status, attempt FROM jobs WHERE finished_at IS NOT NULL"
    eventually(lambda: database.admin.execute(ended).fetchall() == [("succeeded", 1)])
