"""A migration under traffic: no user waits longer than 2 s because of it, and it gets through in the end.

Each one is undone first, as far as it goes, so that it is what `migrate` finds to do. 0001 has no traffic
before it: there is nothing yet in which a job could be accepted.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from db.migrate import FUNCTIONS, migrate
from support.kinds import kinds
from support.postgres import Database
from support.processes import Processes
from support.server_setting import setting
from support.team import Client, token_for
from support.waiting import eventually

FORGET = "DELETE FROM schema_migrations WHERE name = ANY(%s)"
WAITS = """
SELECT application_name, extract(epoch FROM clock_timestamp() - query_start)::float8, xact_start
  FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
#: What is promised: of an acceptance, from its first byte to its answer, however many locks it meets.
SECONDS = 2.0
SENDERS = 2


@dataclass(frozen=True)
class Step:
    """What `migrate` does again after `undo`, and the lock of a long transaction that it has to wait for.

    `held` is None where the migration's own locks let everybody go on, and all others it.
    """

    names: tuple[str, ...]
    undo: bytes
    held: bytes | None


STEPS = {
    "0002": Step(
        ("0002_operators.sql", FUNCTIONS),
        b"DROP VIEW operator_replays; DROP TABLE replay_runs; DROP INDEX jobs_finished",
        b"LOCK TABLE jobs IN ROW EXCLUSIVE MODE",
    ),
    "0003": Step(("0003_due.sql",), b"DROP INDEX outbox_by_due", b"LOCK TABLE outbox IN ROW EXCLUSIVE MODE"),
    "0004": Step(
        ("0004_bounds.sql", "0006_bounds_hold.sql"),
        b"ALTER TABLE control DROP CONSTRAINT rate_has_an_interval;"
        b"ALTER TABLE control ADD CONSTRAINT control_rate_per_second_check"
        b" CHECK (rate_per_second > 0 AND rate_per_second <= 1e6);"
        b"DROP TRIGGER operator_actions_no_truncate ON operator_actions",
        b"LOCK TABLE control IN ACCESS SHARE MODE",
    ),
    "0005": Step(
        ("0005_probes.sql", FUNCTIONS),
        b"DROP VIEW operator_probes; DROP TABLE probes;"
        b"ALTER TABLE teams DROP CONSTRAINT lane_of_probes_is_no_team;"
        b"DELETE FROM control WHERE lane = 'oncommit-probe'",
        b"LOCK TABLE teams IN ACCESS SHARE MODE",  # a long report; every request reads this table
    ),
    "0006": Step(
        ("0006_bounds_hold.sql",),
        b"ALTER TABLE control DROP CONSTRAINT rate_has_an_interval;"
        b"ALTER TABLE control ADD CONSTRAINT rate_has_an_interval"
        b" CHECK (rate_per_second >= 1e-6 AND rate_per_second <= 1e6) NOT VALID",
        None,
    ),
    "0007": Step(
        ("0007_key_pattern.sql", "0009_keys_hold.sql"),
        b"ALTER TABLE requests DROP CONSTRAINT key_is_printable;"
        b"ALTER TABLE requests ADD CONSTRAINT requests_key_check CHECK (key ~ '^[\\x21-\\x7e]{1,255}$')",
        b"LOCK TABLE requests IN ROW EXCLUSIVE MODE",
    ),
    "0008": Step(
        ("0008_lane_pattern.sql", "0010_lanes_hold.sql"),
        b"ALTER TABLE outbox DROP CONSTRAINT lane_is_a_name;"
        b"ALTER TABLE outbox ADD CONSTRAINT outbox_lane_check CHECK (lane ~ '^[a-z0-9][a-z0-9-]{0,62}$')",
        b"LOCK TABLE outbox IN ROW EXCLUSIVE MODE",
    ),
    "0009": Step(("0009_keys_hold.sql", "0010_lanes_hold.sql"), b"", None),
    "functions": Step((FUNCTIONS,), b"", b"SELECT FROM oldest_due"),
}
LAST = kinds()[0][-1]
#: With every server the one that meets each request; the others with one.
CASES = [(kind, name) for kind in kinds()[0] for name in STEPS if kind == LAST or name == "0005"]


class Watch(threading.Thread):
    """Looks at who waits for a lock: how long others at most, and in how many tries the migration."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.conn = database.connect()
        self.conn.autocommit = True
        self.longest = 0.0
        self.tries: set[Any] = set()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            for name, seconds, begun in self.conn.execute(WAITS).fetchall():
                if name == "oncommit migrate":
                    self.tries.add(begun)
                else:
                    self.longest = max(self.longest, seconds)


@pytest.fixture
def client(database: Database, processes: Processes) -> Client:
    processes.relay()
    processes.worker(threads=2)
    return Client(database, processes.portal().url, "red", token_for(database, "red")[0])


@pytest.mark.parametrize(("session_server", "name"), CASES, indirect=["session_server"])
def test_a_migration_waits_its_turn_and_nobody_waits_long_for_it(
    client: Client, database: Database, name: str
) -> None:
    step = STEPS[name]
    database.admin.execute(step.undo)
    database.admin.execute(FORGET, [list(step.names)])
    document = client.put()
    stop, answers = threading.Event(), list[tuple[int, float]]()

    def send() -> None:
        while not stop.is_set():
            begun = time.monotonic()
            status = client.post({"document": document, "kind": "thumbnail"}).status_code
            answers.append((status, time.monotonic() - begun))
            time.sleep(0.02)

    watch = Watch(database)
    watch.start()
    try:
        with ThreadPoolExecutor(SENDERS + 1) as threads, database.connect() as holder, ExitStack() as last:
            last.callback(stop.set)  # also when something fails: the threads would never end
            sending = [threads.submit(send) for _ in range(SENDERS)]
            eventually(lambda: len(answers) > 10)
            if step.held:
                holder.execute(step.held)
            migrating = threads.submit(migrate, database.dsn())
            if step.held:
                eventually(
                    lambda: len(watch.tries) >= 4, timeout=60, describe="the migration has tried often"
                )
                assert not migrating.done()
                holder.rollback()
            assert migrating.result(timeout=90) == list(step.names)
            done = len(answers)
            eventually(lambda: len(answers) > done + 10)
            stop.set()
            for each in sending:
                each.result(timeout=30)
    finally:
        watch.over.set()
        watch.join()
        watch.conn.close()
    assert {status for status, _ in answers} == {202}
    slowest = max(seconds for _, seconds in answers)
    assert slowest <= SECONDS, f"{len(watch.tries)} tries; a wait for a lock: {watch.longest:.2f} s"
    assert watch.longest <= SECONDS
    eventually(lambda: left(database) == 0, timeout=60)


def left(database: Database) -> int:
    row = database.admin.execute("SELECT count(*) FROM jobs WHERE status <> 'succeeded'").fetchone()
    assert row is not None
    return int(row[0])


FILL = """
INSERT INTO requests (team, key, fingerprint, batch, created_at)
SELECT 'acme', 'old-' || n, %s, %s, now() FROM generate_series(1, 60000) AS n
"""
# Slow enough that a vacuum of so little takes longer than `migrate` tries for.
SLOW = """
ALTER TABLE requests SET (autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1,
                          autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0)
"""
VACUUMED = """
SELECT count(*) FROM pg_stat_progress_vacuum v JOIN pg_stat_activity a USING (pid)
 WHERE v.relid = 'requests'::regclass AND a.backend_type = 'autovacuum worker'
"""
SOON = 20.0  # of a minute of tries


@pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)
def test_autovacuum_gives_way_to_a_migration(database: Database) -> None:
    step, admin, batch = STEPS["0007"], database.admin, uuid4()
    admin.execute("SELECT create_team('acme', 'test')")
    admin.execute("INSERT INTO batches (id, team, size, created_at) VALUES (%s, 'acme', 1, now())", [batch])
    admin.execute(step.undo)
    admin.execute(FORGET, [list(step.names)])
    admin.execute(FILL, [b"f" * 32, batch])
    admin.execute(SLOW)
    with setting(database.server, "autovacuum_naptime", "1"):
        admin.execute("DELETE FROM requests WHERE key LIKE '%1'")
        eventually(lambda: admin.execute(VACUUMED).fetchone() == (1,), timeout=60)
        begun = time.monotonic()
        assert migrate(database.dsn()) == list(step.names)
        assert time.monotonic() - begun < SOON
