"""A plan that a session keeps is right for the tables as they will be, not only as they were."""

from typing import Any
from uuid import UUID, uuid4

import psycopg

from db.accept import ACCEPT_EACH
from db.pool import connect

GROWN = 3_000
DIGEST = "sha256:" + "0" * 64
NO_STATISTICS = "ALTER TABLE {} SET (autovacuum_enabled = off)"
CLAIM = "SELECT outcome FROM claim_each(%s, %s::uuid[], %s::int[], true)"
FINISH = "SELECT outcome FROM finish_jobs(%s, %s::uuid[], %s::int[], %s::int[], %s::text[], %s::bigint[])"
READ_WHOLE = """
SELECT relname, seq_scan FROM pg_stat_xact_user_tables
 WHERE relname IN ('jobs', 'outbox', 'job_events') ORDER BY relname
"""

READ_WHOLE_BY_PORTAL = READ_WHOLE.replace("('jobs',", "('requests', 'documents', 'jobs',").encode()
MORE_DOCUMENTS = """
INSERT INTO documents (team, digest, size)
SELECT 'acme', 'sha256:' || lpad(n::text, 64, '0'), 3 FROM generate_series(1, %s) AS n
"""


FINISH_EACH = FINISH.replace("finish_jobs", "finish_each").encode()
# Of what is processing little is there, but of what was: entries stay until they are vacuumed.
BY_STATE = """
SELECT pg_stat_get_xact_numscans('jobs_by_worker'::regclass),
       pg_stat_get_xact_numscans('jobs_unfinished'::regclass)
"""


def finished(conn: psycopg.Connection[Any], jobs: list[UUID]) -> set[str]:
    worker, ones = uuid4(), [1] * len(jobs)
    conn.execute(CLAIM, [worker, jobs, ones])
    rows = conn.execute(FINISH, [worker, jobs, ones, ones, [DIGEST] * len(jobs), ones]).fetchall()
    return {row[0] for row in rows}


def test_a_finish_that_was_planned_for_small_tables_reads_no_grown_one_whole(
    accept: Any, worker: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    for table in ("jobs", "outbox", "job_events"):
        admin.execute(NO_STATISTICS.format(table).encode())
    for _ in range(3):
        assert finished(worker, accept(1)) == {"done"}
    jobs = accept(GROWN)
    assert finished(worker, jobs[:1]) == {"done"}
    with worker.transaction():
        assert finished(worker, jobs[1:2]) == {"done"}
        read = worker.execute(READ_WHOLE).fetchall()
    assert [name for name, _ in read] == ["job_events", "jobs", "outbox"]
    assert {scans for _, scans in read} == {0}, read


def test_an_acceptance_that_was_planned_for_small_tables_reads_no_grown_one_whole(
    accept: Any, database: Any, admin: psycopg.Connection[Any]
) -> None:
    for table in ("jobs", "outbox", "job_events", "requests", "documents"):
        admin.execute(NO_STATISTICS.format(table).encode())

    def accepted(conn: psycopg.Connection[Any]) -> str:
        values = [
            "acme",
            str(uuid4()),
            b"f" * 32,
            False,
            uuid4(),
            "page",
            DIGEST,
            None,
            5,
            None,
            None,
            None,
            "t",
        ]
        row = conn.execute(ACCEPT_EACH, [[value] for value in values]).fetchone()
        assert row is not None
        return str(row[0])

    accept(1)
    with connect(database.dsn("portal"), "test portal") as portal:
        assert [accepted(portal) for _ in range(3)] == ["new"] * 3
        accept(GROWN)
        for _ in range(300):
            accept(1)
        admin.execute(MORE_DOCUMENTS, [GROWN])
        with portal.transaction():
            assert accepted(portal) == "new"
            read = dict(portal.execute(READ_WHOLE_BY_PORTAL).fetchall())
    assert read == {"documents": 0, "job_events": 0, "jobs": 0, "outbox": 0, "requests": 0}


def test_claims_and_finishes_go_by_the_jobs_keys_and_not_through_what_was_claimed_before(
    accept: Any, worker: psycopg.Connection[Any]
) -> None:
    me, jobs = uuid4(), accept(3)
    for at in range(3):  # by now each plan of the session is the one that is kept
        ids = jobs[: at + 1]
        ones = [1] * len(ids)
        with worker.transaction():
            assert worker.execute(CLAIM, [me, ids[-1:], [1]]).fetchall() == [("taken",)]
            worker.execute(FINISH_EACH, [me, ids, ones, ones, [DIGEST] * len(ids), ones])
            assert worker.execute(BY_STATE).fetchone() == (0, 0)


def test_a_message_id_is_no_call_to_the_planner(admin: psycopg.Connection[Any]) -> None:
    explained = admin.execute("EXPLAIN (VERBOSE) SELECT preview_message_id(team, id, 1) FROM jobs").fetchall()
    assert "preview_message_id(" not in str(explained)
