"""What a stream needs is refused while everything else is served: dispatch goes on."""

import re
import socket
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors as pg

from support.postgres import Database
from support.processes import Processes
from support.valkey import Valkey
from support.waiting import eventually

INTENT = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
VALUES ('acme|' || gen_random_uuid(), 'previews', 'acme', 5, '{}') RETURNING message_id
"""
FILL = "SELECT pg_create_physical_replication_slot(%s)"
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


def test_without_a_replication_connection_dispatch_polls(
    admin: psycopg.Connection, database: Database, processes: Processes, valkey: Valkey
) -> None:
    processes.relay().stop()  # the slot is there, so nothing else is refused
    wrong = database.url("relay").replace(database.server.passwords["oncommit_relay"], "rotated")
    relay = processes.relay(ready=False, ONCOMMIT_REPLICATION_URL=wrong)
    relay.wait_log("relay.no_stream", timeout=30)
    comes_to_redis(admin, valkey)
    assert '"role":"polling"' in relay.page("/readyz").replace(" ", "")
    assert "password authentication failed" in relay.log_text()


def test_where_the_streams_address_does_not_answer_dispatch_polls_most_of_the_time(
    admin: psycopg.Connection, database: Database, processes: Processes, valkey: Valkey
) -> None:
    processes.relay().stop()
    with socket.create_server(("127.0.0.1", 0)) as hole:  # who connects here hears nothing
        port = hole.getsockname()[1]
        deaf = re.sub(r"@[^/]+/", f"@127.0.0.1:{port}/", database.url("relay"))
        processes.relay(ready=False, ONCOMMIT_REPLICATION_URL=deaf).wait_log("relay.no_stream", timeout=30)
        for _ in range(3):  # one try of 5 s may be in between, and no second one
            comes_to_redis(admin, valkey, within=10)


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
