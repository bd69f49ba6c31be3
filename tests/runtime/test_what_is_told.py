"""The numbers of trouble: what waits, runs, was lost, rescued, replayed and put aside is told as it is."""

import psutil
import pytest

from support.kinds import kinds
from support.metrics_page import series, total
from support.postgres import Database
from support.processes import Processes
from support.team import House
from support.waiting import eventually

# The numbers are the processes', whatever the server.
pytestmark = pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)
BAD = """
INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES ('acme|x', 'previews', 'acme', 12, '{}')
"""
REPLAY = "SELECT replay_dead(%s::uuid[], gen_random_uuid(), 'test', 'the cause is gone')"


def status(database: Database, job: str) -> str:
    row = database.admin.execute("SELECT status::text FROM jobs WHERE id = %s", [job]).fetchone()
    assert row is not None
    return str(row[0])


def test_what_waits_and_what_runs_is_told(processes: Processes, database: Database) -> None:
    portal, relay = processes.portal(), processes.relay()
    client = House(database, portal, processes).client()
    client.job()
    eventually(lambda: total(relay, "lane_waiting", lane=client.team) == 1)
    eventually(lambda: total(portal, "oldest_due_intent_seconds") > 1)
    assert total(portal, "due_intents") == 1
    worker = processes.worker(ONCOMMIT_BACKOFF_BASE_MS="60000", ONCOMMIT_BACKOFF_CAP_MS="60000")
    eventually(lambda: total(portal, "due_intents") == 0)
    slow = client.job(simulate={"sleep_ms": 20_000})
    late = client.job(simulate={"fail_first": 1})
    eventually(lambda: total(relay, "lane_running", lane=client.team) == 1)
    eventually(lambda: total(relay, "lane_delayed", lane=client.team) == 1)
    assert total(worker, "renders_running") == 1
    assert total(worker, "render_errors_total") == 1
    assert [status(database, job["id"]) for job in (slow, late)] == ["processing", "retrying"]


def test_what_was_lost_rescued_and_replayed_is_told(processes: Processes, database: Database) -> None:
    portal, relay = processes.portal(), processes.relay(ONCOMMIT_AUDIT_SECONDS="3600")
    client = House(database, portal, processes).client()
    first = processes.worker(threads=1, ONCOMMIT_WORKER_LOST_SECONDS="2")
    job = client.job(simulate={"sleep_ms": 20_000}, max_attempts=1)
    eventually(lambda: total(first, "renders_running") == 1)
    first.kill()
    second = processes.worker(threads=1, ONCOMMIT_WORKER_LOST_SECONDS="2")
    eventually(lambda: status(database, job["id"]) == "dead", timeout=60)
    assert total(second, "jobs_rescued_total") == 1
    eventually(lambda: total(portal, "dead_jobs") == 1)
    resyncs = total(relay, "relay_resyncs_total")
    processes.valkey.client.flushall()
    eventually(lambda: total(relay, "relay_resyncs_total") > resyncs)
    causes = {dict(labels)["cause"] for name, labels in series(relay) if name == "relay_resyncs_total"}
    assert "redis_lost_data" in causes
    database.admin.execute("UPDATE jobs SET simulate = NULL WHERE id = %s", [job["id"]])
    database.admin.execute(REPLAY, [[job["id"]]])
    eventually(lambda: status(database, job["id"]) == "succeeded", timeout=60)
    assert total(second, "attempts_total", after="replay") == 1


def test_what_came_twice_is_told(processes: Processes, database: Database) -> None:
    portal, relay = processes.portal(), processes.relay(ONCOMMIT_AUDIT_SECONDS="3600")
    client = House(database, portal, processes).client()
    relay.wait_log("relay.caught_up")
    client.job()
    eventually(lambda: total(relay, "relay_published_total", road="stream") == 1)
    assert total(relay, "relay_duplicate_publishes_total") == 0
    [pid] = [line["pid"] for line in relay.log_lines() if line["event"] == "relay.attached"]
    sender = psutil.Process(pid)
    sender.suspend()
    try:
        client.job()
        processes.valkey.client.flushall()
        eventually(lambda: total(relay, "relay_published_total", road="resync") == 2)
    finally:
        sender.resume()
    # The stream brings the second one after the resync did, and of the first one nothing again.
    eventually(lambda: total(relay, "relay_duplicate_publishes_total") == 1)
    assert total(relay, "relay_published_total") == 3


def test_what_is_put_aside_is_told(processes: Processes, database: Database) -> None:
    portal = processes.portal()
    client = House(database, portal, processes).client()
    client.job()
    database.admin.execute("""UPDATE outbox SET body = replace(body, '"args":["', '"args":["x","')""")
    relay, worker = processes.relay(), processes.worker()
    eventually(lambda: total(worker, "worker_quarantined_total", outcome="quarantined") == 1, timeout=60)
    database.admin.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_priority_check")  # another hand's row
    database.admin.execute(BAD)
    eventually(lambda: total(relay, "relay_quarantined_total") == 1, timeout=60)
    assert total(portal, "requests_decided_total", outcome="new") == 1


def test_the_slot_is_told(processes: Processes, database: Database) -> None:
    with database.server.connect() as admin:
        admin.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'")
        admin.execute("SELECT pg_reload_conf()")
        try:
            relay = processes.relay()
            # The segment that is being written comes on top.
            eventually(lambda: 0 < total(relay, "relay_slot_safe_bytes") < 2 << 30)
            assert total(relay, "relay_streaming") == 1
            assert total(relay, "relay_slots_made_total") == 1
            eventually(lambda: total(relay, "relay_slot_wal_status", status="reserved") == 1)
        finally:
            admin.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            admin.execute("SELECT pg_reload_conf()")
