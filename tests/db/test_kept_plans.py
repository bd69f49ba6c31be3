"""A plan that a session keeps is right for the tables as they will be, not only as they were."""

from typing import Any
from uuid import UUID, uuid4

import psycopg

GROWN = 3_000
DIGEST = "sha256:" + "0" * 64
NO_STATISTICS = "ALTER TABLE {} SET (autovacuum_enabled = off)"
CLAIM = "SELECT outcome FROM claim_jobs(%s, %s::uuid[], %s::int[])"
FINISH = "SELECT outcome FROM finish_jobs(%s, %s::uuid[], %s::int[], %s::int[], %s::text[], %s::bigint[])"
READ_WHOLE = """
SELECT relname, seq_scan FROM pg_stat_xact_user_tables
 WHERE relname IN ('jobs', 'outbox', 'job_events') ORDER BY relname
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
