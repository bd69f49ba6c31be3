"""What a stream needs is refused while everything else is served: dispatch goes on."""

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


def comes_to_redis(admin: psycopg.Connection, valkey: Valkey) -> None:
    (message_id,) = admin.execute(INTENT).fetchone() or ("",)
    client: Any = valkey.client
    eventually(lambda: client.hexists("oncommit:previews:messages", message_id), timeout=15)


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
