"""The operator's statements: replay, pause, cancel, prune, and what the role may not do."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import CheckViolation, InsufficientPrivilege

from db import keeping, operate, oversight, replay
from db.jobs import Event, EventType, JobStatus, fold
from db.operate import UnknownTeam
from db.pool import connect
from db.replay import SLICE, Filter, UnknownRun

WHO = {"who": "operator:eve", "reason": "the printer is back"}
DIE = """
WITH j AS (
  UPDATE jobs SET status = 'dead', attempt = 1, error_class = %(error)s, finished_at = clock_timestamp(),
         updated_at = clock_timestamp(), version = version + 2
   WHERE id = ANY(%(jobs)s) AND status = 'queued' RETURNING *
), told AS (
  INSERT INTO job_events (job, seq, type, at, who, data)
  SELECT id, version + e.n, e.type, updated_at, 'worker:x', jsonb_build_object(
           'dispatch_no', dispatch_no, 'attempt', 1, 'worker', gen_random_uuid(),
           'error_class', %(error)s::text, 'error', 'a renderer''s text')
    FROM j CROSS JOIN (VALUES (-1, 'claimed'::event_type), (0, 'died')) AS e(n, type)
)
DELETE FROM outbox o USING j WHERE o.message_id = preview_message_id(j.team, j.id, j.dispatch_no)
"""


def die(admin: psycopg.Connection[Any], jobs: list[UUID], error: str = "RenderCrashed") -> None:
    """End queued jobs as a worker would: claimed once, died, intent consumed."""
    admin.execute(DIE, {"jobs": jobs, "error": error})


@pytest.fixture
def operator(database: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection as oncommit_operator."""
    with connect(database.dsn("operator"), "test operator") as conn:
        yield conn


def replays(admin: psycopg.Connection[Any]) -> dict[UUID, int]:
    return dict(
        admin.execute("SELECT job, count(*) FROM job_events WHERE type = 'replayed' GROUP BY job").fetchall()
    )


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


def test_no_statement_of_a_replay_of_ten_thousand_takes_a_second(
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
    assert max(seconds) < 1.0, seconds
    assert len(replays(admin)) == 10_000


def test_a_pause_is_a_row_that_says_who_and_a_claim_obeys_at_once(
    admin: psycopg.Connection[Any],
    operator: psycopg.Connection[Any],
    worker: psycopg.Connection[Any],
    accept: Any,
) -> None:
    (job,) = accept()
    assert operate.pause(operator, "*", True, **WHO)
    assert not operate.pause(operator, "*", True, who="operator:bob", reason="me too")
    shown = oversight.lanes(operator, "*")[0]
    assert (shown["paused"], shown["paused_by"]) == (True, "operator:eve")
    claim = "SELECT outcome FROM claim_jobs(%s, ARRAY[%s], ARRAY[1])"
    assert worker.execute(claim, [uuid4(), job]).fetchone() == ("paused",)
    assert admin.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
    operate.set_limits(operator, "acme", {"weight": 3}, max_backlog=7, **WHO)
    assert operate.pause(operator, "acme", True, **WHO)
    operate.set_limits(operator, "acme", {"max_running": 2}, max_backlog=None, who="operator:bob", reason="x")
    team = oversight.teams(operator)[0]
    assert (team["paused"], team["paused_by"], team["weight"]) == (True, "operator:eve", 3)
    assert (team["max_running"], team["max_backlog"]) == (2, 7)
    assert operate.pause(operator, "*", False, **WHO)
    assert worker.execute(claim, [uuid4(), job]).fetchone() == ("paused",)
    assert operate.pause(operator, "acme", False, **WHO)
    assert worker.execute(claim, [uuid4(), job]).fetchone() == ("taken",)
    with pytest.raises(UnknownTeam):
        operate.pause(operator, "nobody", True, **WHO)
    with pytest.raises(UnknownTeam):
        operate.set_limits(operator, "nobody", {"weight": 1}, max_backlog=None, **WHO)


def test_an_operators_cancel_is_audited_when_it_changes_something(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    (job,) = accept()
    assert operate.cancel(operator, job, **WHO) == "cancelled"
    assert operate.cancel(operator, job, **WHO) == "already"
    assert operate.cancel(operator, uuid4(), **WHO) == "unknown"
    acts = admin.execute("SELECT action, who, reason FROM operator_actions").fetchall()
    assert acts == [("cancel", "operator:eve", "the printer is back")]


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


VIEWS = {
    "operator_jobs", "operator_events", "operator_quarantine", "operator_teams", "operator_lanes",
    "operator_dispatch", "operator_remaining", "operator_slots", "operator_tokens", "operator_workers",
    "operator_queues", "operator_replays", "operator_audit", "operator_migrations", "dispatch_counts",
    "oldest_due",
}  # fmt: skip
ACTS = {
    "replay_jobs", "begin_replay", "replay_slice", "cancel_as_operator", "set_lane", "pause_lane",
    "set_backlog", "create_team", "create_token", "revoke_token", "prunable", "prune_jobs", "artifacts_page",
    "preview_message_id",
}  # fmt: skip
READABLE = """
SELECT c.relname FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
   AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege(%(role)s, c.oid, 'USAGE, SELECT, UPDATE')
       ELSE has_table_privilege(%(role)s, c.oid,
                                'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
            OR has_any_column_privilege(%(role)s, c.oid, 'SELECT, INSERT, UPDATE, REFERENCES') END
"""
CALLABLE = """
SELECT DISTINCT p.proname FROM pg_proc p
 WHERE p.pronamespace = 'public'::regnamespace AND has_function_privilege(%(role)s, p.oid, 'EXECUTE')
"""


@pytest.mark.parametrize(
    ("role", "views", "acts"),
    [
        ("oncommit_operator", VIEWS, ACTS),
        ("oncommit_viewer", {"dispatch_counts", "oldest_due"}, {"preview_message_id"}),
    ],
)
def test_a_role_reaches_exactly_its_views_and_functions(
    admin: psycopg.Connection[Any], role: str, views: set[str], acts: set[str]
) -> None:
    named = {"role": role}
    assert {row[0] for row in admin.execute(READABLE, named).fetchall()} == views
    assert {row[0] for row in admin.execute(CALLABLE, named).fetchall()} == acts


def test_the_operators_views_cannot_be_written_through(operator: psycopg.Connection[Any]) -> None:
    for statement in (
        "UPDATE operator_jobs SET priority = 0",
        "DELETE FROM operator_events",
        "INSERT INTO operator_queues VALUES ('mine')",
        "UPDATE operator_tokens SET revoked_at = NULL",
    ):
        with pytest.raises(InsufficientPrivilege):
            operator.execute(statement.encode())


SECRET = "a title that nobody but the team may see"


def test_nothing_that_an_operator_reads_holds_a_title_a_digest_or_a_renderers_text(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    jobs = accept(2)
    admin.execute("UPDATE jobs SET title = %s, simulate = '{\"sleep_ms\": 1}'", [SECRET])
    die(admin, jobs)
    replay.replay(operator, jobs, **WHO)
    admin.execute("SELECT quarantine_intent(message_id, 'no such actor', 'relay') FROM outbox")
    for view in VIEWS:
        told = operator.execute(f"SELECT row_to_json(v)::text FROM {view} v".encode()).fetchall()
        for (text,) in told:
            assert "sleep_ms" not in text, view
            assert "render_preview" not in text, view
            for forbidden in (SECRET, "a renderer's text", "sha256:"):
                assert forbidden not in text, view
