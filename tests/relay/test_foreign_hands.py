"""Other hands on the outbox, with a relay at work.

What is no insert sends nothing, what is no intent is put away, and the rest goes on. An outage, of
whatever length, puts nothing away.
"""

from typing import Any

import psycopg

from support.processes import Processes
from support.valkey import Valkey
from support.waiting import eventually

from .test_relay import accept, admin, expected, in_redis

__all__ = ["admin", "in_redis"]

WIDEN = "ALTER TABLE outbox ADD note text DEFAULT 'none', ADD seen boolean NOT NULL DEFAULT false"
LARGE = """
UPDATE outbox SET seen = true, note = (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 6400) n)
"""
TOUCH = "UPDATE outbox SET seen = false"  # the 200 KB stay where they are: an unchanged TOAST value
DELETE = "DELETE FROM outbox WHERE lane = 'gone'"
GONE = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
SELECT 'gone|' || n, 'previews', 'gone', 5, '{}' FROM generate_series(1, 1000) n
"""
#: A CHECK protects from each; whoever owns the table can drop them.
LOOSEN = """
ALTER TABLE outbox DROP CONSTRAINT outbox_queue_fkey, ALTER body DROP NOT NULL, ALTER lane DROP NOT NULL;
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT conname FROM pg_constraint WHERE conrelid = 'outbox'::regclass AND contype = 'c' LOOP
    EXECUTE format('ALTER TABLE outbox DROP CONSTRAINT %I', name);
  END LOOP;
END $$;
ALTER TABLE quarantine ALTER body DROP NOT NULL, ALTER lane DROP NOT NULL;
"""
BAD = """
INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES
  ('acme|1', 'nowhere', 'acme', 5, '{}'), ('acme|2', 'previews', 'acme', 5, NULL),
  ('acme|3', 'previews', 'ACME!', 5, '{}'), ('acme|4', 'previews', 'acme', 77, '{}'),
  ('acme|5', 'previews', 'acme', 5, repeat('x', 5000)), ('acme|6', 'previews', NULL, 5, '{}'),
  ('elsewhere|7', 'previews', 'acme', 5, '{}')
"""
REASONS = "SELECT message_id, split_part(reason, ':', 1) FROM quarantine ORDER BY message_id"


def test_changes_that_are_no_inserts_send_nothing(
    admin: psycopg.Connection, processes: Processes, in_redis: Any
) -> None:
    relay = processes.relay(ONCOMMIT_AUDIT_SECONDS="3600")
    admin.execute(WIDEN)
    admin.execute(GONE)
    first = accept(admin, 3)
    eventually(lambda: len(in_redis()) == 1003, timeout=20)
    for statement in (LARGE, TOUCH, DELETE):
        admin.execute(statement)
    admin.execute("TRUNCATE outbox")
    second = accept(admin, 3)
    wanted = {f"acme|{job}.1" for job in [*first, *second]} | {f"gone|{n}" for n in range(1, 1001)}
    eventually(lambda: in_redis() == wanted, timeout=20)
    assert relay.log_text().count("relay.attached") == 1
    assert "relay.poison" not in relay.log_text()
    assert "relay.decode_error" not in relay.log_text()


def test_every_kind_of_bad_row_is_put_away_with_its_reason(
    admin: psycopg.Connection, processes: Processes, in_redis: Any
) -> None:
    relay = processes.relay()
    admin.execute(LOOSEN)
    with admin.transaction():
        admin.execute(BAD)
        jobs = accept(admin, 20)
    good = {f"acme|{job}.1" for job in jobs}
    eventually(lambda: in_redis() == good, timeout=20, describe="the good ones behind them")
    eventually(
        lambda: (
            admin.execute(REASONS).fetchall()
            == [
                ("acme|1", "unknown queue 'nowhere'"),
                ("acme|2", "body"),
                ("acme|3", "lane"),
                ("acme|4", "priority"),
                ("acme|5", "body"),
                ("acme|6", "lane"),
                ("elsewhere|7", "message_id"),
            ]
        ),
        timeout=20,
        describe=lambda: admin.execute(REASONS).fetchall(),
    )
    eventually(lambda: "relay_quarantined_total 7.0" in relay.page("/metrics"), timeout=10)
    assert in_redis() == good


def test_an_outage_puts_nothing_away(
    admin: psycopg.Connection, processes: Processes, valkey: Valkey, in_redis: Any
) -> None:
    relay = processes.relay(ONCOMMIT_AUDIT_SECONDS="1")
    valkey.kill()
    accept(admin, 20)
    relay.wait_log("relay.redis_away")
    valkey.start(empty=True)
    valkey.config(maxmemory=1)  # full: it serves, and takes nothing
    eventually(lambda: "OutOfMemory" in relay.log_text(), describe="refused")
    assert admin.execute("SELECT count(*) FROM quarantine").fetchone() == (0,)
    valkey.config(maxmemory=0)
    eventually(lambda: in_redis() == expected(admin), timeout=20)
    assert len(expected(admin)) == 20
    assert admin.execute("SELECT count(*) FROM quarantine").fetchone() == (0,)
