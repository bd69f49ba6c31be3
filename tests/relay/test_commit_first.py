"""No 202 and no message before the commit, with relay and Redis at work."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from support.postgres import Database
from support.processes import Processes
from support.team import Client, House, rows
from support.waiting import eventually

from .test_relay import accept, admin, in_redis

__all__ = ["admin", "in_redis"]

# Fires at COMMIT: all the transaction's rows are written by then, its intent into the WAL, too.
STAND_AT_COMMIT = """
CREATE FUNCTION stand() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER stand AFTER INSERT ON outbox DEFERRABLE INITIALLY DEFERRED
   FOR EACH ROW WHEN (NEW.lane <> 'acme') EXECUTE FUNCTION stand();
"""
STANDS = """
SELECT 1 FROM pg_stat_activity
 WHERE usename = 'oncommit_portal' AND datname = current_database() AND wait_event = 'advisory'
"""


@pytest.fixture
def client(database: Database, processes: Processes) -> Iterator[Client]:
    """A team's client of a portal of the test's own."""
    found = House(database, processes.portal(), processes).client()
    yield found
    found.http.close()


def test_neither_an_answer_nor_a_message_comes_before_the_commit(
    admin: psycopg.Connection, client: Client, processes: Processes, database: Database, in_redis: Any
) -> None:
    processes.relay()
    body = {"document": client.put(), "kind": "page"}
    admin.execute(STAND_AT_COMMIT)
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(client.post(body)))
    with database.connect() as holder:
        holder.execute("SELECT pg_advisory_xact_lock(4711)")
        thread.start()
        eventually(lambda: admin.execute(STANDS).fetchone(), describe="the request stands in its commit")
        # Written later and committed sooner: once it is there, the relay has read past the other's intent.
        [later] = accept(admin)
        eventually(lambda: f"acme|{later}.1" in in_redis(), timeout=4, describe="what came later is there")
        assert in_redis() == {f"acme|{later}.1"}
        assert answers == []
        assert set(rows(client).values()) == {0}, "and nobody sees its rows"
    thread.join(20)
    assert [answer.status_code for answer in answers] == [202]
    mine = f"{client.team}|{answers[0].json()['id']}.1"
    eventually(lambda: in_redis() == {f"acme|{later}.1", mine}, describe="its message")
    assert rows(client)["intents"] == 1
