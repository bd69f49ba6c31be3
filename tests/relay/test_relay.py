"""The relay as a process: from a committed intent to a message in Redis, through every trouble."""

import json
import signal
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from broker.lanes import Lanes
from support.postgres import Database
from support.processes import Processes, Running
from support.valkey import Valkey
from support.waiting import eventually

DIGEST = "sha256:" + "0" * 64
ACCEPT = (
    "SELECT outcome FROM accept_jobs('acme', %s, %s, %s, false, %s::uuid[], %s::text[], %s::text[],"
    " %s::text[], %s::smallint[], %s::int[], %s::text[], NULL, 'test')"
)

CONFIRMED = """
SELECT pg_current_wal_lsn() - confirmed_flush_lsn < 100000 FROM pg_replication_slots WHERE slot_name = %s
"""
TERMINATE = "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s"
POISON = """
INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES ('acme|x.1', 'nowhere', 'acme', 1, '{}')
"""


def accept(conn: psycopg.Connection, count: int = 1) -> list[UUID]:
    """Accept so many jobs in one transaction; return their ids."""
    ids = [uuid4() for _ in range(count)]
    rows = (["page"] * count, [DIGEST] * count, [None] * count, [5] * count, [3] * count, [None] * count)
    batch = uuid4() if count > 1 else None
    assert conn.execute(ACCEPT, [str(uuid4()), b"f" * 32, batch, ids, *rows]).fetchone() == ("new",)
    return ids


@pytest.fixture
def admin(database: Database) -> psycopg.Connection:
    """The superuser's connection, with a team and a document."""
    database.admin.execute("INSERT INTO teams (id) VALUES ('acme')")
    database.admin.execute("INSERT INTO documents (team, digest, size) VALUES ('acme', %s, 3)", [DIGEST])
    return database.admin


@pytest.fixture
def in_redis(valkey: Valkey) -> Callable[[], set[str]]:
    """Message ids that Redis holds."""

    def ids() -> set[str]:
        keys: Any = valkey.client.hkeys("oncommit:previews:messages")
        return {key.decode() for key in keys}

    return ids


def expected(conn: psycopg.Connection) -> set[str]:
    return {row[0] for row in conn.execute("SELECT message_id FROM outbox").fetchall()}


def test_a_committed_intent_becomes_a_message_and_a_rolled_back_one_does_not(
    admin: psycopg.Connection, processes: Processes, database: Database, in_redis: Any
) -> None:
    processes.relay()
    with database.connect() as other:
        accept(other)
        other.rollback()
    [job] = accept(admin)
    eventually(lambda: in_redis() == {f"acme|{job}.1"}, timeout=5, describe="the message is in Redis")


def test_flushall_is_noticed_within_a_second_without_traffic(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, in_redis: Any
) -> None:
    processes.relay()
    accept(admin, 50)
    eventually(lambda: in_redis() == expected(admin), timeout=5, describe="50 messages")
    valkey.client.flushall()
    eventually(lambda: in_redis() == expected(admin), timeout=2, describe="50 messages are back")


def test_what_is_new_does_not_wait_behind_a_whole_resync(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, in_redis: Any
) -> None:
    relay = processes.relay()
    backlog = accept(admin, 10_000)
    eventually(lambda: len(in_redis()) == len(backlog), timeout=20, describe="the backlog")
    relay.freeze()
    valkey.client.flushall()
    [job] = accept(admin)
    relay.thaw()
    found = eventually(lambda: f"acme|{job}.1" in (ids := in_redis()) and ids, timeout=20)
    assert len(found) < len(backlog)


@pytest.mark.parametrize("empty", [True, False])
def test_redis_killed_while_jobs_are_accepted(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, in_redis: Any, empty: bool
) -> None:
    relay = processes.relay()
    accept(admin, 10)
    eventually(lambda: in_redis() == expected(admin), timeout=5, describe="10 messages")
    valkey.kill()
    for _ in range(5):
        accept(admin, 10)
    slot = relay.env["ONCOMMIT_SLOT"]
    eventually(
        lambda: admin.execute(CONFIRMED, [slot]).fetchone() == (True,),
        timeout=10,
        describe="the slot is confirmed while Redis is away",
    )
    valkey.start(empty=empty)
    eventually(lambda: in_redis() == expected(admin), describe="60 messages")


def test_the_relay_survives_postgres(
    admin: psycopg.Connection, processes: Processes, database: Database, in_redis: Any
) -> None:
    relay = processes.relay()
    admin.close()
    database.server.restart("kill")
    with psycopg.connect(database.dsn(), autocommit=True) as conn:
        accept(conn, 5)
        eventually(lambda: in_redis() == expected(conn), timeout=10, describe="5 messages after a crash")
    assert relay.running


def test_a_dropped_slot_is_made_again_and_nothing_is_missing(
    admin: psycopg.Connection, processes: Processes, in_redis: Any
) -> None:
    relay = processes.relay()
    slot = relay.env["ONCOMMIT_SLOT"]
    relay.freeze()
    admin.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s", [slot]
    )
    admin.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    accept(admin, 20)
    relay.thaw()
    eventually(lambda: in_redis() == expected(admin), timeout=15, describe="20 messages through a new slot")
    relay.wait_log("relay.new_slot")


def test_the_second_relay_waits_and_takes_over(
    admin: psycopg.Connection, processes: Processes, in_redis: Any
) -> None:
    first = processes.relay()
    second = processes.relay(ready=False)
    second.wait_log("waiting to take over")
    accept(admin, 3)
    eventually(lambda: in_redis() == expected(admin), describe="3 messages")
    first.kill()
    accept(admin, 3)
    eventually(lambda: in_redis() == expected(admin), describe="6 messages after takeover")
    # It said "standby", hence ready, for ever.
    assert '"role":"relay"' in second.page("/readyz").replace(" ", "")


def test_without_a_stream_dispatch_polls(
    admin: psycopg.Connection, processes: Processes, database: Database, in_redis: Any
) -> None:
    with database.connect() as other:
        other.execute("CREATE TABLE blocker ()")  # an open write transaction blocks slot creation
        relay = processes.relay(ready=False)
        relay.wait_log("relay.no_stream", timeout=60)
        accept(admin, 5)
        eventually(lambda: in_redis() == expected(admin), timeout=10, describe="5 messages by polling")
        other.rollback()
    slot_is_read = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND active"
    eventually(
        lambda: admin.execute(slot_is_read).fetchone() == (1,), timeout=10, describe="a stream at last"
    )


def test_poison_is_quarantined_and_the_rest_goes_on(
    admin: psycopg.Connection, processes: Processes, in_redis: Any
) -> None:
    processes.relay()
    admin.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_queue_fkey")
    admin.execute(POISON)
    [job] = accept(admin)
    eventually(lambda: f"acme|{job}.1" in in_redis(), timeout=5, describe="the good one is published")
    eventually(
        lambda: admin.execute("SELECT reason FROM quarantine").fetchall() != [],
        timeout=5,
        describe="the bad one is put away",
    )
    assert "unknown queue 'nowhere'" in admin.execute("SELECT reason FROM quarantine").fetchone()[0]


def test_a_lost_intent_is_found_by_the_audit(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, in_redis: Any
) -> None:
    processes.relay(ONCOMMIT_AUDIT_SECONDS="1")
    accept(admin)
    eventually(lambda: in_redis() == expected(admin), timeout=5, describe="the message")
    message_id = expected(admin).pop()
    lane = message_id.split("|")[0]
    for key, kind in (("messages", "h"), (f"lane:{lane}", "z")):
        (valkey.client.hdel if kind == "h" else valkey.client.zrem)(f"oncommit:previews:{key}", message_id)
    admin.execute("UPDATE outbox SET created_at = created_at - interval '2 minutes'")
    eventually(lambda: in_redis() == expected(admin), timeout=10, describe="the audit published it")


def test_restored_database_with_lower_epochs_still_dispatches(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, in_redis: Any
) -> None:
    Lanes(valkey.client, "oncommit").seize(1_000_000)
    relay = processes.relay()
    accept(admin, 3)
    eventually(lambda: in_redis() == expected(admin), describe="3 messages")
    relay.wait_log("relay.database_restored")


@pytest.mark.parametrize("frozen", ["nothing", "redis", "postgres"])
def test_sigterm_ends_it_within_a_second(
    processes: Processes, database: Database, valkey: Valkey, frozen: str
) -> None:
    relay = processes.relay()
    try:
        if frozen == "redis":
            valkey.freeze()  # the next beat, 0.3 s from the last, stands for 2 s
        elif frozen == "postgres":
            database.server.freeze()  # a look at the slot, each 5 s, stands for 10 s
            eventually(lambda: still_seconds(relay) > 1, timeout=20, describe="the loop stands still")
        began = time.monotonic()
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGTERM,
        ):  # as to a whole process group: means it once
            relay.signal(number)
        assert relay.wait_ended(20) == 0
        took = time.monotonic() - began
    finally:
        valkey.thaw()
        database.server.thaw()
    assert took < 2, "the relay's own limit is one second; a busy machine has another"


def still_seconds(relay: Running) -> float:
    """Return how long the relay's loop has not turned."""
    return float(json.loads(relay.page("/livez"))["loop_turned_seconds_ago"])


INFINITE = """
INSERT INTO outbox (message_id, queue, lane, priority, not_before, body)
VALUES ('acme|never.1', 'previews', 'acme', 1, 'infinity', '{}')
"""
FOREIGN = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
VALUES ('foreign|1', 'previews', 'foreign', 1, '{"queue_name":"previews"}')
"""


def test_a_row_that_is_never_due_does_not_stop_the_pages(
    admin: psycopg.Connection, processes: Processes, in_redis: Any
) -> None:
    admin.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_not_before_check")
    admin.execute(INFINITE)
    [job] = accept(admin)
    processes.relay()
    eventually(lambda: f"acme|{job}.1" in in_redis(), timeout=10, describe="the good one is published")
    quarantined = "SELECT message_id, reason FROM quarantine"
    eventually(
        lambda: admin.execute(quarantined).fetchall() == [("acme|never.1", "not_before: no moment in time")],
        timeout=10,
        describe="the other one is put away",
    )


def test_a_lane_without_settings_opens_again_in_another_life_of_the_database(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, in_redis: Any
) -> None:
    relay = processes.relay()
    admin.execute(FOREIGN)
    eventually(lambda: in_redis() == {"foreign|1"}, timeout=5, describe="the message")
    relay.stop()
    valkey.client.hset("oncommit:token", "pos.timeline", "99")  # as after a promotion
    processes.relay()
    lanes = Lanes(valkey.client, "oncommit")
    eventually(
        lambda: [lane.state for lane in lanes.stats("previews").lanes] == ["ring"],
        timeout=10,
        describe="the lane is open",
    )
