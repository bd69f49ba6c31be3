"""Ends that meet at one row: the second waits for the first's lock, and answers what the first has done."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from db import claims, workers
from db.claims import Answer, Claim, Ended, How
from db.pool import connect
from support.ends import old_finish
from support.waiting import eventually

ARTIFACT = "sha256:" + "1" * 64
ME = uuid4()
SECOND = "test second"
WAITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE application_name = %s AND datname = current_database() AND wait_event_type = 'Lock'
"""

Act = Callable[[psycopg.Connection[Any], Claim], Any]


def finish(conn: psycopg.Connection[Any], claim: Claim) -> Ended:
    return old_finish(conn, ME, claim, ARTIFACT, 3)


def ending(how: How) -> Act:
    def end(conn: psycopg.Connection[Any], claim: Claim) -> Ended:
        return claims.end(conn, ME, claim, how, error_class="Boom", error="boom", spend=True)

    return end


def rescue(conn: psycopg.Connection[Any], claim: Claim) -> Any:
    key = workers.ClaimKey(claim.job, claim.dispatch_no, claim.attempt)
    return workers.rescue(conn, {}, [key], "steward")


@pytest.fixture
def first(database: Any) -> Iterator[psycopg.Connection[Any]]:
    """A worker's connection; what `within` does on it is left uncommitted."""
    with database.connect("worker") as conn:
        yield conn


def within(conn: psycopg.Connection[Any], act: Act, claim: Claim) -> Any:
    """Do an act in a transaction that stays open, so that the act's own is a part of it."""
    conn.execute("SELECT")
    return act(conn, claim)


@pytest.fixture
def second(database: Any) -> Iterator[Callable[[Act, Claim], Future[Any]]]:
    """Do an act on a connection of its own, and return once it waits for the first one's lock."""
    with connect(database.dsn("worker"), SECOND) as conn, ThreadPoolExecutor(1) as thread:

        def start(act: Act, claim: Claim) -> Future[Any]:
            future = thread.submit(act, conn, claim)

            def waits() -> bool:
                return future.done() or database.admin.execute(WAITING, [SECOND]).fetchone() == (1,)

            eventually(waits)
            assert not future.done(), f"it did not wait: {future.result()}"
            return future

        yield start


def taken(conn: psycopg.Connection[Any], job: UUID) -> Claim:
    found = claims.claim(conn, ME, [(job, 1)])[0]
    assert found.answer is Answer.TAKEN
    assert found.claim is not None
    return found.claim


ENDS: dict[str, Act] = {"finish": finish} | {how.value: ending(how) for how in How}


@pytest.mark.parametrize("act", ENDS.values(), ids=ENDS)
def test_an_end_repeated_while_the_first_call_still_commits_is_success(
    first: Any, second: Any, worker: Any, accept: Any, act: Act
) -> None:
    (job,) = accept()
    claim = taken(worker, job)
    assert within(first, act, claim) is Ended.DONE
    again = second(act, claim)
    first.commit()
    assert again.result(timeout=10) is Ended.ALREADY


@pytest.mark.parametrize("act", ENDS.values(), ids=ENDS)
def test_an_end_repeated_while_the_first_call_rolls_back_is_done(
    first: Any, second: Any, worker: Any, accept: Any, act: Act
) -> None:
    (job,) = accept()
    claim = taken(worker, job)
    assert within(first, act, claim) is Ended.DONE
    again = second(act, claim)
    first.rollback()
    assert again.result(timeout=10) is Ended.DONE


@pytest.mark.parametrize("act", ENDS.values(), ids=ENDS)
def test_an_end_that_waited_for_a_rescue_is_lost(
    first: Any, second: Any, worker: Any, accept: Any, act: Act
) -> None:
    (job,) = accept()
    claim = taken(worker, job)
    assert [r.outcome for r in within(first, rescue, claim)] == ["rescued"]
    late = second(act, claim)
    first.commit()
    assert late.result(timeout=10) is Ended.LOST


@pytest.mark.parametrize("how", list(How))
def test_a_finish_and_another_end_of_one_claim_take_once(
    first: Any, second: Any, worker: Any, accept: Any, how: How
) -> None:
    for one, other in ((finish, ending(how)), (ending(how), finish)):
        (job,) = accept()
        claim = taken(worker, job)
        assert within(first, one, claim) is Ended.DONE
        late = second(other, claim)
        first.commit()
        assert late.result(timeout=10) is Ended.LOST


def test_a_rescue_leaves_what_is_just_being_ended_and_comes_back_for_what_was_not(
    first: Any, worker: Any, accept: Any
) -> None:
    (job,) = accept()
    claim = taken(worker, job)
    assert within(first, finish, claim) is Ended.DONE
    assert rescue(worker, claim) == [], "the row is locked: skipped, not waited for"
    first.rollback()
    assert [r.outcome for r in rescue(worker, claim)] == ["rescued"]


def test_a_finish_by_whoever_never_had_the_claim_is_lost_also_when_it_succeeded(
    worker: Any, accept: Any
) -> None:
    (job,) = accept()
    claim = taken(worker, job)
    assert finish(worker, claim) is Ended.DONE
    assert old_finish(worker, uuid4(), claim, ARTIFACT, 3) is Ended.LOST


@pytest.mark.parametrize("how", list(How))
def test_an_event_that_waited_for_another_is_not_earlier_than_it(
    database: Any, second: Any, worker: Any, accept: Any, how: How
) -> None:
    (job,) = accept()
    claim = taken(worker, job)
    with database.connect() as holder:
        holder.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [job])
        late = second(ending(how), claim)
        holder.execute("SELECT cancel_job('acme', %s, 'client', 'enough')", [job])
    assert late.result(timeout=10) is Ended.DONE
    rows = database.admin.execute("SELECT at FROM job_events WHERE job = %s ORDER BY seq", [job])
    times = [row[0] for row in rows]
    assert len(times) == 4
    assert times == sorted(times)
