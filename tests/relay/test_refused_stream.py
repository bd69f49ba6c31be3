"""What a stream needs is refused while everything else is served: dispatch goes on."""

import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors as pg

from relay.reign import STREAM_RETRY_SECONDS
from support.postgres import Database
from support.processes import Processes
from support.proxy import Proxy
from support.valkey import Valkey
from support.waiting import eventually

INTENT = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
VALUES ('acme|' || gen_random_uuid(), 'previews', 'acme', 5, '{}') RETURNING message_id
"""
FILL = "SELECT pg_create_physical_replication_slot(%s)"
#: The promise is 2 s; half a second is left to a busy machine. A try that is waited for takes 5 s.
POLLED_SECONDS = 2.5
EMPTY = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE 'fill_%'"


@pytest.fixture
def admin(database: Database) -> psycopg.Connection:
    """The superuser's connection, with a team."""
    database.admin.execute("INSERT INTO teams (id) VALUES ('acme')")
    return database.admin


def comes_to_redis(admin: psycopg.Connection, valkey: Valkey, *, within: float = 15) -> None:
    (message_id,) = admin.execute(INTENT).fetchone() or ("",)
    client: Any = valkey.client
    eventually(lambda: client.hexists("oncommit:previews:messages", message_id), timeout=within)


def test_the_last_slot_may_be_the_relays_own(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey
) -> None:
    processes.relay().stop()
    try:
        with suppress(pg.ConfigurationLimitExceeded):
            while True:
                admin.execute(FILL, [f"fill_{uuid4().hex}"])
        relay = processes.relay()
        assert '"role":"relay"' in relay.page("/readyz").replace(" ", "")
        comes_to_redis(admin, valkey)
    finally:
        admin.execute(EMPTY)


def slowest(admin: psycopg.Connection, valkey: Valkey, seconds: float) -> float:
    """Commit intents one after another for so long; return the longest from commit to Redis."""
    until, longest = time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        began = time.monotonic()
        comes_to_redis(admin, valkey)
        longest = max(longest, time.monotonic() - began)
    return longest


def test_with_a_wrong_password_dispatch_polls_within_two_seconds(
    admin: psycopg.Connection, database: Database, processes: Processes, valkey: Valkey
) -> None:
    processes.relay().stop()  # the slot is there, so nothing else is refused
    wrong = database.url("relay").replace(database.server.passwords["oncommit_relay"], "rotated")
    relay = processes.relay(ready=False, ONCOMMIT_REPLICATION_URL=wrong)
    relay.wait_log("relay.no_stream", timeout=30)
    assert slowest(admin, valkey, 2 * STREAM_RETRY_SECONDS) < POLLED_SECONDS
    assert '"role":"polling"' in relay.page("/readyz").replace(" ", "")
    assert "password authentication failed" in relay.log_text()


def test_where_the_streams_address_does_not_answer_dispatch_polls_within_two_seconds(
    admin: psycopg.Connection, database: Database, processes: Processes, valkey: Valkey
) -> None:
    processes.relay().stop()
    with Proxy(database.server.port) as link:
        link.blackhole()  # who connects here hears nothing
        through = database.url("relay", port=link.port)
        relay = processes.relay(ready=False, ONCOMMIT_REPLICATION_URL=through)
        relay.wait_log("relay.no_stream", timeout=30)
        # Long enough for a try that is given up, after 5 s, and the next ones. It stood still for each.
        assert slowest(admin, valkey, 12) < POLLED_SECONDS
        assert relay.log_text().count("relay.no_stream") <= 2, "one trouble is told once, and why at its end"
        link.restore()
        relay.wait_log("relay.attached", timeout=30)
        assert slowest(admin, valkey, 1) < POLLED_SECONDS


@pytest.mark.parametrize("session_server", ["embedded"], indirect=True)
def test_without_the_plugin_that_is_wished_for_dispatch_polls(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey
) -> None:
    relay = processes.relay(ready=False, ONCOMMIT_DECODER="wal2json")  # the wheel's server has it not
    relay.wait_log("relay.no_stream", timeout=30)
    assert '"kind":"Plugin' in relay.log_text()
    comes_to_redis(admin, valkey)


def test_the_health_page_does_not_tell_a_mistyped_connection_string(processes: Processes) -> None:
    secret = "hunter2hunter2"
    relay = processes.relay(ready=False, ONCOMMIT_REPLICATION_URL=f"postgres:://relay:{secret}@db/x")
    relay.wait_log("relay.no_stream", timeout=30)
    assert '"role":"polling"' in relay.page("/readyz").replace(" ", "")
    assert secret not in relay.page("/readyz") + relay.log_text()
