"""A migration under traffic: it holds nobody up for longer than 2 s, and gets through in the end."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from db.migrate import FUNCTIONS, migrate
from support.postgres import Database
from support.processes import Processes
from support.team import Client, token_for
from support.waiting import eventually

#: As before 0005: it alters a table that every request reads.
UNDO = b"""
DROP VIEW operator_probes;
DROP TABLE probes;
ALTER TABLE teams DROP CONSTRAINT lane_of_probes_is_no_team;
DELETE FROM control WHERE lane = 'oncommit-probe';
DELETE FROM schema_migrations WHERE name IN ('0005_probes.sql', 'functions');
"""
WAITS = """
SELECT application_name, extract(epoch FROM clock_timestamp() - query_start)::float8, xact_start
  FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
LOCK_SECONDS = 2.0
#: For the look itself, on a machine that is busy.
SLACK_SECONDS = 1.0


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


def test_a_migration_waits_its_turn_and_nobody_waits_long_for_it(client: Client, database: Database) -> None:
    database.admin.execute(UNDO)
    document = client.put()
    stop, answers = threading.Event(), list[int]()

    def send() -> None:
        while not stop.is_set():
            answers.append(client.post({"document": document, "kind": "thumbnail"}).status_code)
            time.sleep(0.02)

    watch = Watch(database)
    watch.start()
    try:
        with ThreadPoolExecutor(3) as threads, database.connect() as reader, ExitStack() as last:
            last.callback(stop.set)  # also when something fails: the threads would never end
            sending = [threads.submit(send) for _ in range(2)]
            eventually(lambda: len(answers) > 10)
            reader.execute("SELECT count(*) FROM teams").fetchone()  # a long report, in a transaction
            migrating = threads.submit(migrate, database.dsn())
            eventually(lambda: len(watch.tries) >= 3, timeout=40, describe="the migration has tried thrice")
            assert not migrating.done()
            reader.rollback()
            assert migrating.result(timeout=60) == ["0005_probes.sql", FUNCTIONS]
            done = len(answers)
            eventually(lambda: len(answers) > done + 10)
            stop.set()
            for each in sending:
                each.result(timeout=30)
    finally:
        watch.over.set()
        watch.join()
        watch.conn.close()
    assert set(answers) == {202}
    assert 0 < watch.longest < LOCK_SECONDS + SLACK_SECONDS
    eventually(lambda: left(database) == 0, timeout=60)


def left(database: Database) -> int:
    row = database.admin.execute("SELECT count(*) FROM jobs WHERE status <> 'succeeded'").fetchone()
    assert row is not None
    return int(row[0])
