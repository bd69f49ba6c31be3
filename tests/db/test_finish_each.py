"""Finishes that share a statement, by SQL: each with its own outcome, and none at another's cost."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from db import claims, workers
from db.claims import Answer, Claim, Ended, Finish
from db.errors import Refused
from support.ends import old_finish

ARTIFACT = "sha256:" + "1" * 64
ME = uuid4()
WRITTEN = """
SELECT j.status, j.dispatch_no, j.attempt, j.worker, j.claimed_at, j.artifact, j.artifact_size, j.error_class,
       j.version, e.at = j.finished_at, e.who, e.data
  FROM jobs j JOIN job_events e ON e.job = j.id AND e.seq = j.version WHERE j.id = %s
"""


def taken(conn: psycopg.Connection[Any], jobs: list[UUID]) -> list[Finish]:
    found: list[Finish] = []
    for claimed in claims.claim(conn, ME, [(job, 1) for job in jobs]):
        assert claimed.answer is Answer.TAKEN
        assert claimed.claim is not None
        found.append(Finish(claimed.claim, ARTIFACT, 3))
    return found


def another(finish: Finish, **fields: Any) -> Finish:
    """Return the finish of a claim that differs in these fields."""
    given = {name: getattr(finish.claim, name) for name in Claim.__slots__}
    return Finish(Claim(**given | fields), finish.artifact, finish.size)


def test_each_has_its_own_outcome_and_nobody_waits_for_a_row(
    accept: Any, worker: psycopg.Connection[Any], admin: psycopg.Connection[Any], database: Any
) -> None:
    done, before, rescued, held, last = taken(worker, accept(5))
    assert claims.finish_each(worker, ME, [before]) == [Ended.DONE]
    key = workers.ClaimKey(rescued.claim.job, 1, 1)
    assert workers.rescue(worker, {}, [key], "steward")
    with database.server.connect(database.name) as holder:
        holder.execute("BEGIN")
        holder.execute("SELECT FROM jobs WHERE id = %s FOR NO KEY UPDATE", [held.claim.job])
        worker.execute("SET lock_timeout = '1ms'")
        wanted = [done, before, rescued, another(last, attempt=2), held, another(last, job=uuid4()), last]
        found = claims.finish_each(worker, ME, wanted)
    # Of one job twice in a call, the claim that is held takes and the other is not its.
    assert found == [
        Ended.DONE, Ended.ALREADY, Ended.LOST, Ended.LOST, Ended.BUSY, Ended.LOST, Ended.DONE,
    ]  # fmt: skip
    assert claims.finish_each(worker, ME, [held, done]) == [Ended.DONE, Ended.ALREADY]
    row = admin.execute("SELECT count(*) FROM outbox").fetchone()
    assert row == (1,), "the rescued job's next dispatch"


def test_whose_intent_is_locked_holds_up_nobody_else(
    accept: Any, worker: psycopg.Connection[Any], database: Any
) -> None:
    held, free, gone = taken(worker, accept(3))
    with database.server.connect(database.name) as holder:
        holder.execute("DELETE FROM outbox WHERE message_id LIKE '%%' || %s || '%%'", [gone.claim.job])
        holder.execute("BEGIN")
        holder.execute(
            "SELECT FROM outbox WHERE message_id LIKE '%%' || %s || '%%' FOR KEY SHARE", [held.claim.job]
        )
        worker.execute("SET lock_timeout = '1ms'")
        found = claims.finish_each(worker, ME, [held, free, gone])
    assert found == [Ended.BUSY, Ended.DONE, Ended.DONE]
    assert claims.finish_each(worker, ME, [held, free]) == [Ended.DONE, Ended.ALREADY]


def test_it_writes_what_a_single_finish_writes(
    accept: Any, worker: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    one, other = taken(worker, accept(2))
    assert old_finish(worker, ME, one.claim, ARTIFACT, 3) is Ended.DONE
    assert claims.finish_each(worker, ME, [other]) == [Ended.DONE]
    rows = [admin.execute(WRITTEN, [finish.claim.job]).fetchone() for finish in (one, other)]
    assert rows[0] == rows[1]
    assert rows[0] is not None
    assert rows[0][0] == "succeeded"


def test_what_is_refused_leaves_nothing_of_anybody(
    accept: Any, worker: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    good, bad = taken(worker, accept(2))
    with pytest.raises(Refused):
        claims.finish_each(worker, ME, [good, Finish(bad.claim, "no-digest", 3)])
    row = admin.execute("SELECT count(*) FROM jobs WHERE status = 'processing'").fetchone()
    assert row == (2,)
    assert claims.finish_each(worker, ME, [good, bad]) == [Ended.DONE, Ended.DONE]


def test_it_needs_read_committed(accept: Any, worker: psycopg.Connection[Any]) -> None:
    (job, other) = accept(2)
    (finish,) = taken(worker, [job])
    worker.execute("SET default_transaction_isolation = 'repeatable read'")
    assert claims.finish_each(worker, ME, [finish]) == [Ended.DONE], "asked again within a BEGIN that says so"
    (finish,) = taken(worker, [other])
    worker.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(Refused):
        claims.finish_each(worker, ME, [finish])
