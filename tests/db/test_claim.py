"""Claims of many jobs in one statement, by SQL: each with its own answer, in order, and within the caps."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from db import claims
from db.claims import Answer
from db.errors import Refused
from db.migrate import FUNCTIONS, migrate

ME, ANOTHER = uuid4(), uuid4()
ROWS = "SELECT status, attempt, worker FROM jobs WHERE id = %s"
CLAIMED = """
SELECT e.at = j.claimed_at AND e.seq = j.version AND e.who = 'worker:' || j.worker, e.data
  FROM jobs j JOIN job_events e ON e.job = j.id WHERE j.id = %s AND e.type = 'claimed'
"""


def answers(
    conn: psycopg.Connection[Any], jobs: list[UUID], *, me: UUID = ME, wait: bool = True
) -> list[Answer]:
    found = claims.claim(conn, me, [(job, 1) for job in jobs], wait=wait)
    assert [one.job for one in found] == jobs, "in the order asked for"
    assert all((one.claim is not None) is (one.answer is Answer.TAKEN) for one in found)
    return [one.answer for one in found]


def cap(admin: psycopg.Connection[Any], most: int) -> None:
    admin.execute("SELECT set_lane('acme', %s, 'test', '')", [f'{{"max_running": {most}}}'])


def test_each_has_its_own_answer_and_event(
    accept: Any, worker: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    mine, theirs, over, free = accept(4)
    assert answers(worker, [mine]) == [Answer.TAKEN]
    assert answers(worker, [theirs], me=ANOTHER) == [Answer.TAKEN]
    admin.execute("SELECT cancel_job('acme', %s, 'test', '')", [over])
    stranger = uuid4()
    found = answers(worker, [free, stranger, over, theirs, mine])
    assert found == [Answer.TAKEN, Answer.NOT_YET, Answer.FINISHED, Answer.ANOTHERS, Answer.TAKEN]
    ahead, stale = claims.claim(worker, ME, [(free, 2), (free, 0)])
    assert (ahead.answer, stale.answer) == (Answer.NOT_YET, Answer.STALE)
    for job in (mine, free):
        assert admin.execute(ROWS, [job]).fetchone() == ("processing", 1, ME), "taken once"
        written = {"dispatch_no": 1, "attempt": 1, "worker": str(ME)}
        assert admin.execute(CLAIMED, [job]).fetchall() == [(True, written)]


def test_a_cap_counts_those_of_the_same_call(
    accept: Any, worker: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    jobs = accept(6)
    cap(admin, 3)
    assert answers(worker, jobs[:1]) == [Answer.TAKEN]
    assert answers(worker, jobs[1:]) == [Answer.TAKEN] * 2 + [Answer.FULL] * 3
    assert answers(worker, jobs[1:], wait=False) == [Answer.TAKEN] * 2 + [Answer.FULL] * 3, "its own already"


@pytest.mark.parametrize("capped", [False, True])
def test_nobody_is_waited_for(
    accept: Any,
    worker: psycopg.Connection[Any],
    admin: psycopg.Connection[Any],
    database: Any,
    *,
    capped: bool,
) -> None:
    held, free = accept(2)
    if capped:
        cap(admin, 5)
    lock = "SELECT FROM teams WHERE id = 'acme' FOR NO KEY UPDATE" if capped else None
    worker.execute("SET lock_timeout = '1ms'")
    with database.server.connect(database.name) as holder:
        holder.execute("BEGIN")
        if lock:
            holder.execute(lock)  # as another claim of the team does
        else:
            holder.execute("SELECT FROM jobs WHERE id = %s FOR NO KEY UPDATE", [held])
        expected = [Answer.BUSY, Answer.BUSY if capped else Answer.TAKEN]
        assert answers(worker, [held, free], wait=False) == expected
        assert admin.execute(ROWS, [held]).fetchone() == ("queued", 0, None)
    assert answers(worker, [held, free], wait=False) == [Answer.TAKEN] * 2


def test_it_needs_read_committed(accept: Any, worker: psycopg.Connection[Any]) -> None:
    job, other = accept(2)
    worker.execute("SET default_transaction_isolation = 'repeatable read'")
    assert answers(worker, [job]) == [Answer.TAKEN], "asked again within a BEGIN that says so"
    worker.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(Refused):
        answers(worker, [other])


# What `migrate` of the release before does, should one go back to it.
BEFORE = """
CREATE OR REPLACE FUNCTION claim_jobs(p_worker uuid, p_jobs uuid[], p_dispatch_nos int[])
RETURNS TABLE (job uuid, dispatch_no int, outcome text, team text, kind text, document text, title text,
               attempt int, max_attempts int, releases int, simulate jsonb, created_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'the release before';
END $$;
GRANT EXECUTE ON FUNCTION claim_jobs, finish_jobs, finish_each, end_claim TO oncommit_worker;
"""
FORGET = "DELETE FROM schema_migrations WHERE name = %s"
OVERLOADED = """
SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace GROUP BY proname HAVING count(*) > 1
"""


def test_the_release_before_migrates_and_claims_beside_this_one(
    accept: Any, worker: psycopg.Connection[Any], admin: psycopg.Connection[Any], database: Any
) -> None:
    (before, back) = accept(2)
    as_before = "SELECT outcome FROM claim_jobs(%s, %s::uuid[], %s::int[])"
    assert worker.execute(as_before, [ME, [before], [1]]).fetchone() == ("taken",)
    admin.execute(BEFORE)
    with pytest.raises(psycopg.errors.RaiseException, match="the release before"):
        worker.execute(as_before, [ME, [back], [1]])
    assert answers(worker, [before]) == [Answer.TAKEN], "whoever is of this release goes on"
    admin.execute(FORGET, [FUNCTIONS])
    migrate(database.dsn())
    assert worker.execute(as_before, [ME, [back], [1]]).fetchone() == ("taken",)
    assert admin.execute(OVERLOADED).fetchall() == []
