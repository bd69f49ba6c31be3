"""Pruning: what ended long ago goes, whole, and nothing else ever does."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from db import keeping, operate, oversight, replay
from db.pool import connect
from db.replay import Filter
from support.dead import die
from support.waiting import eventually

WHO = {"who": "operator:eve", "reason": "the printer is back"}


WAITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE application_name = 'test operator' AND datname = current_database() AND wait_event_type = 'Lock'
"""


def test_the_outbox_is_vacuumed_by_count_and_not_by_share(admin: psycopg.Connection[Any]) -> None:
    row = admin.execute("SELECT reloptions FROM pg_class WHERE oid = 'outbox'::regclass").fetchone()
    assert row is not None
    assert {"autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=5000"} <= set(row[0])


def batch_of(admin: psycopg.Connection[Any], job: UUID) -> UUID:
    row = admin.execute("SELECT batch FROM jobs WHERE id = %s", [job]).fetchone()
    assert row is not None
    return UUID(str(row[0]))


def prune(conn: psycopg.Connection[Any], *, dead_too: bool = False) -> keeping.Pruned:
    _, _, before = oversight.prunable(conn, timedelta(0), dead_too=dead_too)
    return sum(keeping.prune(conn, before, dead_too=dead_too, **WHO), keeping.Pruned())


def test_pruning_takes_what_ended_with_its_history_and_keeps_the_dead_and_the_living(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    (done,), (lost,), (living,) = accept(key="a"), accept(), accept()
    operate.cancel(operator, done, **WHO)
    die(admin, [lost])
    assert oversight.prunable(operator, timedelta(days=1), dead_too=True)[0] == 0
    assert oversight.prunable(operator, timedelta(0), dead_too=False)[0] == 1
    gone = prune(operator)
    assert (gone.jobs, gone.events, gone.requests) == (1, 2, 1)
    assert {row[0] for row in admin.execute("SELECT id FROM jobs").fetchall()} == {lost, living}
    assert prune(operator).jobs == 0
    assert prune(operator, dead_too=True).jobs == 1
    assert admin.execute("SELECT id FROM jobs").fetchall() == [(living,)]
    assert admin.execute("SELECT count(*) FROM job_events").fetchone() == (1,)
    acts = admin.execute("SELECT count(*) FROM operator_actions WHERE action = 'prune'").fetchone()
    assert acts == (2,)
    with pytest.raises(InsufficientPrivilege):
        admin.execute("DELETE FROM job_events")


def test_a_batch_is_pruned_whole_or_not_at_all(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    jobs = accept(3)
    for job in jobs[:2]:
        operate.cancel(operator, job, **WHO)
    assert prune(operator).jobs == 0
    die(admin, jobs[2:])
    assert prune(operator).jobs == 0
    assert oversight.prunable(operator, timedelta(0), dead_too=True)[:2] == (3, 1)
    gone = prune(operator, dead_too=True)
    assert (gone.jobs, gone.batches, gone.requests) == (3, 1, 1)
    for table in ("jobs", "job_events", "requests", "batches"):
        assert admin.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (0,)


def test_pruning_takes_superseded_settings_but_never_the_one_in_force_nor_who_paused(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], team: str
) -> None:
    for weight in (2, 3):
        operate.set_limits(operator, team, {"weight": weight}, max_backlog=None, **WHO)
    operate.pause(operator, "*", True, **WHO)
    assert prune(operator).rest == 2
    assert admin.execute("SELECT weight FROM control WHERE lane = 'acme'").fetchall() == [(3,)]
    assert oversight.lanes(operator, "*")[0]["paused_by"] == "operator:eve"


def test_nothing_dead_expires_by_itself(admin: psycopg.Connection[Any], accept: Any) -> None:
    """A dead job has no intent, no due time, and nothing but pruning and replay has a way to it."""
    (job,) = accept()
    die(admin, [job])
    admin.execute("UPDATE jobs SET finished_at = now() - interval '10 years'")
    assert admin.execute("SELECT rescue_jobs('{}', '{}', '{}', '{}', '{}', 'steward')").fetchall() == []
    assert admin.execute("SELECT status FROM jobs").fetchone() == ("dead",)


def test_what_may_not_go_does_not_end_the_pruning_of_what_may(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any, monkeypatch: Any
) -> None:
    """Among single jobs and among batches: the dead and the living lie between those that ended."""
    monkeypatch.setattr(keeping, "PRUNE_SLICE", 2)
    kept, gone = 0, 0
    for n in range(12):
        for count in (1, 3):
            jobs = accept(count)
            if n % 3 == 0:
                die(admin, jobs)
                kept += count
            elif n % 3 == 1:
                kept += count
            else:
                for job in jobs:
                    operate.cancel(operator, job, **WHO)
                gone += count
    assert oversight.prunable(operator, timedelta(0), dead_too=False)[0] == gone
    assert prune(operator).jobs == gone
    assert admin.execute("SELECT count(*) FROM jobs").fetchone() == (kept,)
    assert prune(operator).jobs == 0


def test_a_batch_without_jobs_does_not_end_the_pruning_of_the_others(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    admin.execute(
        "INSERT INTO batches (id, team, size, created_at) VALUES (%s, 'acme', 1, now() - interval '1 day')",
        [UUID(int=1)],
    )
    for job in accept(3):
        operate.cancel(operator, job, **WHO)
    assert prune(operator).batches == 1


def test_a_batch_that_is_replayed_while_pruning_waits_for_it_stays_and_the_next_one_goes(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], database: Any, accept: Any
) -> None:
    batches = sorted((accept(2) for _ in range(2)), key=lambda jobs: batch_of(admin, jobs[0]))
    for jobs in batches:
        die(admin, jobs)
    with database.connect("operator") as other, ThreadPoolExecutor(1) as thread:
        other.execute("SELECT")
        assert replay.replay(other, batches[0][:1], **WHO) == {batches[0][0]: "replayed"}
        pruned = thread.submit(prune, operator, dead_too=True)
        eventually(lambda: admin.execute(WAITING).fetchone() == (1,) or pruned.done())
        other.commit()
        assert pruned.result(timeout=20).batches == 1
    left = admin.execute("SELECT id FROM jobs ORDER BY id").fetchall()
    assert left == [(job,) for job in sorted(batches[0])]
    assert prune(operator, dead_too=True).jobs == 0


def test_two_prunes_at_once_take_each_row_once(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], database: Any, accept: Any
) -> None:
    for count in (1, 2) * 15:
        for job in accept(count):
            operate.cancel(operator, job, **WHO)

    def once(_: int) -> int:
        with connect(database.dsn("operator"), "test pruner") as conn:
            return prune(conn).jobs

    with ThreadPoolExecutor(3) as threads:
        taken = sum(threads.map(once, range(3)))
    assert taken + prune(operator).jobs == 45
    for table in ("jobs", "job_events", "requests", "batches"):
        assert admin.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (0,)


def test_a_replay_that_is_going_on_is_not_pruned_away_and_old_ones_are(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    die(admin, accept(4))
    run = replay.begin(operator, Filter(), afresh=False, **WHO)
    assert replay.replay_slice(operator, run, 1, **WHO).more
    prune(operator)
    assert not replay.replay_slice(operator, run, 10, **WHO).more
    abandoned = replay.begin(operator, Filter(team="acme"), afresh=False, **WHO)
    admin.execute("UPDATE replay_runs SET begun_at = begun_at - interval '25 h' WHERE id = %s", [abandoned])
    prune(operator)
    assert admin.execute("SELECT count(*) FROM replay_runs").fetchone() == (0,)
