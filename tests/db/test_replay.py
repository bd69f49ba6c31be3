"""Replay of dead jobs: each once, only the dead, and whoever begins, interrupts or repeats it."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import CheckViolation

from db import operate, replay
from db.jobs import Event, EventType, JobStatus, fold
from db.pool import connect
from db.replay import SLICE, Filter, UnknownRun
from support.dead import die, replays

WHO = {"who": "operator:eve", "reason": "the printer is back"}


def sweep(conn: psycopg.Connection[Any], run: UUID, size: int = SLICE) -> int:
    """Run all slices of a run; return how many they replayed."""
    total, more = 0, True
    while more:
        done = replay.replay_slice(conn, run, size, **WHO)
        total, more = total + done.replayed, done.more
    return total


def test_a_replayed_job_is_the_same_job_with_the_next_dispatch_and_fresh_attempts(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    (job,) = accept()
    die(admin, [job])
    assert replay.replay(operator, [job], **WHO) == {job: "replayed"}
    row = admin.execute(
        "SELECT status, dispatch_no, attempt, error_class, finished_at, version FROM jobs"
    ).fetchone()
    assert row == ("queued", 2, 0, None, None, 4)
    assert admin.execute("SELECT message_id FROM outbox").fetchall() == [(f"acme|{job}.2",)]
    event = admin.execute("SELECT who, data ->> 'reason' FROM job_events WHERE type = 'replayed'").fetchone()
    assert event == ("operator:eve", "the printer is back")
    act = admin.execute("SELECT who, action, reason, target -> 'jobs' ->> 0 FROM operator_actions").fetchone()
    assert act == ("operator:eve", "replay", "the printer is back", str(job))
    events = admin.execute(
        "SELECT seq, type, at, who, data FROM job_events WHERE job = %s ORDER BY seq", [job]
    )
    state = fold(Event(seq, EventType(kind), *rest) for seq, kind, *rest in events.fetchall())
    assert (state.status, state.dispatch_no, state.attempt) == (JobStatus.QUEUED, 2, 0)


def test_twenty_replays_of_one_job_at_once_are_one_replay(
    admin: psycopg.Connection[Any], database: Any, accept: Any
) -> None:
    (job,) = accept()
    die(admin, [job])

    def once(_: int) -> str:
        with connect(database.dsn("operator"), "test operator") as conn:
            return replay.replay(conn, [job], **WHO)[job]

    with ThreadPoolExecutor(20) as threads:
        outcomes = list(threads.map(once, range(20)))
    assert sorted(outcomes) == ["already queued"] * 19 + ["replayed"]
    assert replays(admin) == {job: 1}
    assert admin.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
    assert admin.execute("SELECT count(*) FROM operator_actions").fetchone() == (1,)


@pytest.mark.parametrize("how", ["queued", "processing", "retrying", "succeeded", "cancelled"])
def test_only_the_dead_are_replayed(
    admin: psycopg.Connection[Any],
    operator: psycopg.Connection[Any],
    worker: psycopg.Connection[Any],
    accept: Any,
    how: str,
) -> None:
    (job,) = accept()
    me = uuid4()
    if how not in {"queued", "cancelled"}:
        worker.execute("SELECT claim_jobs(%s, ARRAY[%s], ARRAY[1])", [me, job])
    if how == "retrying":
        worker.execute("SELECT end_claim(%s, %s, 1, 1, 'failed', 'X', 'x', 60000, true, 'w')", [me, job])
    if how == "succeeded":
        artifact = "sha256:" + "1" * 64
        worker.execute(
            "SELECT finish_jobs(%s, ARRAY[%s], ARRAY[1], ARRAY[1], ARRAY[%s], ARRAY[3::bigint])",
            [me, job, artifact],
        )
    if how == "cancelled":
        operate.cancel(operator, job, **WHO)
    before = admin.execute("SELECT * FROM jobs").fetchall()
    assert replay.replay(operator, [job, uuid4()], **WHO)[job] == f"already {how}"
    assert admin.execute("SELECT * FROM jobs").fetchall() == before
    assert not replays(admin)


def test_an_unknown_job_is_said_to_be_unknown(operator: psycopg.Connection[Any]) -> None:
    job = uuid4()
    assert replay.replay(operator, [job], **WHO) == {job: "unknown"}


@pytest.mark.parametrize("reason", ["", "r" * 1001])
def test_a_replay_without_a_proper_reason_changes_nothing(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any, reason: str
) -> None:
    (job,) = accept()
    die(admin, [job])
    with pytest.raises(CheckViolation):
        operator.execute("SELECT replay_jobs(ARRAY[%s], 'eve', %s)", [job, reason])
    assert admin.execute("SELECT status FROM jobs").fetchone() == ("dead",)


def test_a_run_replays_each_once_though_half_die_again_at_once(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    jobs = accept(60)
    die(admin, jobs)
    run = replay.begin(operator, Filter(), afresh=False, **WHO)
    more = True
    while more:
        more = replay.replay_slice(operator, run, 7, **WHO).more
        die(admin, jobs[::2])
    assert replays(admin) == dict.fromkeys(jobs, 1)
    assert replay.run(operator, run).done == 60
    assert replay.replay_slice(operator, run, 7, **WHO) == replay.Slice(0, 60, more=False)


def test_the_same_words_resume_an_unfinished_run_and_other_words_do_not(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    die(admin, accept(3))
    wanted = Filter(team="acme", since=timedelta(hours=2))
    run = replay.begin(operator, wanted, afresh=False, **WHO)
    replay.replay_slice(operator, run, 1, **WHO)
    assert replay.begin(operator, wanted, afresh=False, **WHO) == run
    assert replay.begin(operator, Filter(team="acme"), afresh=False, **WHO) != run
    assert replay.begin(operator, wanted, afresh=True, **WHO) != run
    assert sweep(operator, run) == 2
    assert replay.begin(operator, wanted, afresh=False, **WHO) != run
    with pytest.raises(UnknownRun):
        replay.replay_slice(operator, uuid4(), 1, **WHO)


def test_filters_and_limit_are_respected_by_plan_and_run(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    crashed, timed_out = accept(5), accept(4)
    die(admin, crashed, "RenderCrashed")
    (noon,) = admin.execute("SELECT clock_timestamp()").fetchone() or (None,)
    die(admin, timed_out, "RenderTimeout")
    thumbnail = accept(1)
    admin.execute("UPDATE jobs SET kind = 'thumbnail' WHERE id = %s", thumbnail)
    die(admin, thumbnail, "RenderTimeout")
    for wanted, expected in [
        (Filter(error="RenderCrashed", most=2), 2),
        (Filter(kind="thumbnail"), 1),
        (Filter(team="other"), 0),
        (Filter(since=noon, kind="page", most=100), 4),
        (Filter(since=datetime(2100, 1, 1, tzinfo=UTC)), 0),
        (Filter(), 3),
    ]:
        assert sum(row["jobs"] for row in replay.plan(operator, wanted)) == expected, wanted
        assert sweep(operator, replay.begin(operator, wanted, afresh=False, **WHO), 2) == expected, wanted
    assert set(replays(admin).values()) == {1}


def test_a_run_comes_back_for_what_somebody_else_had_locked(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], database: Any, accept: Any
) -> None:
    jobs = accept(4)
    die(admin, jobs)
    run = replay.begin(operator, Filter(), afresh=False, **WHO)
    with database.connect() as other:
        other.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [jobs[1]])
        assert replay.replay_slice(operator, run, 10, **WHO) == replay.Slice(3, 3, more=True)
        assert replay.replay_slice(operator, run, 10, **WHO) == replay.Slice(0, 3, more=True)
    assert replay.replay_slice(operator, run, 10, **WHO) == replay.Slice(1, 4, more=False)


def test_two_operators_on_one_run_share_the_work(
    admin: psycopg.Connection[Any], database: Any, accept: Any
) -> None:
    jobs = accept(300)
    die(admin, jobs)

    def work(_: int) -> int:
        with connect(database.dsn("operator"), "test operator") as conn:
            return sweep(conn, replay.begin(conn, Filter(most=200), afresh=False, **WHO), 20)

    with ThreadPoolExecutor(2) as threads:
        assert sum(threads.map(work, range(2))) == 200
    assert len(replays(admin)) == 200
    assert set(replays(admin).values()) == {1}


def test_a_replay_of_ten_thousand_goes_in_slices_whose_cost_does_not_grow(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    die(admin, accept(10_000))
    admin.execute("ANALYZE")
    run = replay.begin(operator, Filter(), afresh=False, **WHO)
    seconds, more = [], True
    while more:
        started = time.perf_counter()
        more = replay.replay_slice(operator, run, SLICE, **WHO).more
        seconds.append(time.perf_counter() - started)
    assert len(seconds) == 10_000 // SLICE + 1  # the last one finds nothing more
    # How long one takes on a quiet machine is measured by `make replay`. The quickest: others only add to it.
    first, last = seconds[: len(seconds) // 4], seconds[-len(seconds) // 4 : -1]
    assert min(last) < 3 * min(first), seconds
    assert len(replays(admin)) == 10_000
