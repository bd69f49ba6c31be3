"""Versions N and N+1 beside each other: what both know is done, what one does not know waits aside."""

import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from broker.lanes import Lanes, Limit, Outgoing
from runtime.blobs import BlobStore
from support.desk import Desk
from support.kinds import kinds
from support.processes import Processes, Running
from support.waiting import always, eventually

TESTS = Path(__file__).parents[1]
# It is about workers; the server's part is one function of SQL.
pytestmark = pytest.mark.parametrize("session_server", kinds()[0][-1:], indirect=True)

WHY = ("--reason", "versions")
MESSAGE = "SELECT pg_get_functiondef('preview_message'::regproc)"
STRANGER = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
VALUES ('red|stranger', 'previews', 'red', 5,
        '{"queue_name":"previews","actor_name":"unheard_of","args":[],"kwargs":{},"options":{},'
        '"message_id":"red|stranger","message_timestamp":0}')
"""


class Fleet:
    """Workers of two versions, and the database that speaks either."""

    def __init__(self, desk: Desk, processes: Processes) -> None:
        self.desk, self.processes = desk, processes
        self.document = BlobStore(Path(processes.blobs)).put_bytes(b"a document")
        row = desk.admin.execute(MESSAGE).fetchone()
        assert row is not None
        self.ours = str(row[0])

    def write_version(self, number: int) -> None:
        """Let every message from now on be of this version, as the other version's migration would."""
        text = self.ours.replace('"version":1', f'"version":{number}')
        assert (text != self.ours) == (number != 1)
        self.desk.admin.execute(text.encode())

    def next_worker(self) -> Running:
        health = self.processes.folder / "next.url"
        env = self.processes.environment("worker", {"ONCOMMIT_HEALTH_FILE": str(health)})
        env["PYTHONPATH"] = f"{TESTS.parent}:{TESTS}"
        argv = [sys.executable, "-m", "dramatiq", "support.next_version:setup", "-p", "1", "-t", "2"]
        return self.processes.start("next", argv, env).wait_ready()

    def accept(self, count: int) -> list[UUID]:
        return self.desk.accept(count, document=self.document)

    def fields(self, jobs: list[UUID]) -> list[tuple[Any, ...]]:
        """Return (status, error class, attempt) of these jobs, sorted."""
        return sorted(
            self.desk.admin.execute(
                "SELECT status::text, error_class, attempt FROM jobs WHERE id = ANY(%s)", [jobs]
            ).fetchall()
        )

    def succeed(self, jobs: list[UUID]) -> None:
        eventually(
            lambda: {row[0] for row in self.fields(jobs)} == {"succeeded"},
            timeout=60,
            describe=lambda: self.fields(jobs),
        )

    def aside(self) -> list[str]:
        return [
            row[0] for row in self.desk.admin.execute("SELECT reason FROM quarantine ORDER BY id").fetchall()
        ]


@pytest.fixture
def fleet(desk: Desk, processes: Processes) -> Fleet:
    processes.relay()
    return Fleet(desk, processes)


def test_old_messages_settle_with_workers_of_both_versions_and_dead_ones_can_be_replayed(
    fleet: Fleet,
) -> None:
    queued, dead, delayed = fleet.accept(20), fleet.accept(5), fleet.accept(5)
    fleet.desk.die(dead)
    fleet.desk.admin.execute(
        "UPDATE outbox SET not_before = clock_timestamp() + interval '3 s'"
        " WHERE message_id = ANY(SELECT preview_message_id(team, id, 1) FROM jobs WHERE id = ANY(%s))",
        [delayed],
    )
    fleet.processes.valkey.client.flushall()  # so that the relay tells the new due times
    fleet.processes.worker(threads=2)
    fleet.next_worker()
    assert fleet.desk.json("dead", "replay", "--all", *WHY)["replayed"] == 5
    fleet.succeed(queued + dead + delayed)
    assert fleet.aside() == []


def test_what_a_version_does_not_know_is_dead_without_an_attempt_and_replayed_after_the_rollback(
    fleet: Fleet,
) -> None:
    worker = fleet.processes.worker(threads=2)
    fleet.write_version(2)
    jobs = fleet.accept(6)
    eventually(
        lambda: fleet.fields(jobs) == [("dead", "Quarantined", 0)] * 6, describe=lambda: fleet.fields(jobs)
    )
    fleet.desk.admin.execute(STRANGER)
    eventually(lambda: len(fleet.aside()) == 7, describe=fleet.aside)
    assert fleet.aside() == ["unsupported version 2: this worker knows 1"] * 6 + [
        "unknown actor 'unheard_of'"
    ]
    starts = fleet.processes.renders()
    always(lambda: len(fleet.aside()) == 7 and worker.running, during=2.0, describe="nothing loops")
    assert fleet.processes.renders() == starts == []
    assert fleet.desk.admin.execute("SELECT count(*) FROM outbox").fetchone() == (0,)

    fleet.write_version(1)
    assert fleet.desk.json("dead", "replay", "--error", "Quarantined", *WHY)["replayed"] == 6
    fleet.succeed(jobs)
    fleet.write_version(2)
    fleet.next_worker()
    worker.stop()
    fleet.succeed(fleet.accept(3))


@pytest.mark.parametrize(("known", "unknown"), [('"version":1', '"version":2'), ('"args":[', '"args":[0,')])
def test_what_is_not_known_is_put_aside_also_where_its_message_comes_before_its_row(
    known: str, unknown: str, desk: Desk, processes: Processes
) -> None:
    # No relay, which would mend it in the end: its audit brings again what was let go too early.
    processes.worker(threads=1)
    lanes = Lanes(processes.valkey.client, "oncommit")
    with desk.admin.transaction():
        [job] = desk.accept()
        row = desk.admin.execute("SELECT message_id, id, body FROM outbox").fetchone()
        assert row is not None
        message_id, intent, body = row
        assert known in body
        message = Outgoing("previews", message_id, "red", 5, intent, 0, body.replace(known, unknown).encode())
        lanes.send(message, Limit("red", 0, None, 1, None, 1, paused=False))
        eventually(lambda: lanes.stats("previews").delayed == 1, describe="the message waits for its row")
    sql = "SELECT status::text, error_class, attempt FROM jobs WHERE id = %s"
    eventually(lambda: desk.admin.execute(sql, [job]).fetchone() == ("dead", "Quarantined", 0))
    eventually(lambda: lanes.stats("previews").messages == 0)
