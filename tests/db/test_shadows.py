"""A role brings temporary tables and functions of the schema's own names: no function falls for them."""

from collections.abc import Iterator
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
import pytest

from support.dead import die

ARTIFACT = "sha256:" + "1" * 64
#: Tables that the functions read and write, with the columns that would serve an attacker.
TABLES: tuple[LiteralString, ...] = (
    "jobs (id uuid, team text, status text, worker uuid, attempt int, dispatch_no int, version int)",
    "job_events (job uuid, seq int, type text, at timestamptz, who text, data jsonb)",
    "outbox (id bigint, message_id text, queue text, lane text, priority int, body text)",
    "control (version bigint, lane text, max_running int, paused boolean)",
    "teams (id text, max_backlog int)",
    "tokens (id uuid, team text, hash bytea)",
    "documents (team text, digest text)",
    "kinds (name text, queue text, max_attempts int)",
    "operator_actions (id bigint, who text)",
    "requests (team text, key text, fingerprint bytea)",
    "workers (id uuid, heartbeat_at timestamptz)",
)
FUNCTIONS: tuple[LiteralString, ...] = (
    "preview_message_id(text, uuid, int) RETURNS text",
    "preview_message(text, text, uuid, int, text, timestamptz) RETURNS text",
    "put_intents(uuid[], timestamptz) RETURNS void",
    "check_settings(jsonb) RETURNS void",
    "need_read_committed() RETURNS void",
    "replay_dead(uuid[], uuid, text, text) RETURNS uuid[]",
    "cancel_job(text, uuid, text, text) RETURNS text",
    "clock_timestamp() RETURNS timestamptz",
    "now() RETURNS timestamptz",
    "left(text, int) RETURNS text",
    "jsonb_build_object(text, text) RETURNS jsonb",
)
TRAP = " LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''fell for the shadow''; END'"


def shadowed(conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Put a shadow before everything, where the session's own look-ups would find it first."""
    for table in TABLES:
        conn.execute("CREATE TEMP TABLE " + table)
    for function in FUNCTIONS:
        conn.execute("CREATE FUNCTION pg_temp." + function + TRAP)
    conn.execute("SET search_path = pg_temp, public, pg_catalog")
    return conn


@pytest.fixture(params=["portal", "worker", "operator"])
def attacker(request: pytest.FixtureRequest, database: Any) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    with psycopg.connect(database.dsn(request.param), autocommit=True) as conn:
        yield request.param, shadowed(conn)


def portal(conn: psycopg.Connection[Any], team: str, job: Any, _: Any) -> None:
    new = uuid4()
    row = conn.execute(
        "SELECT outcome FROM public.accept_jobs(%s, 'shadow', %s, NULL, false, ARRAY[%s]::uuid[],"
        " '{page}', ARRAY[%s], '{NULL}', '{5}', '{NULL}', '{NULL}', NULL, 'shadow')",
        [team, b"f" * 32, new, "sha256:" + "0" * 64],
    ).fetchone()
    assert row == ("new",)
    assert conn.execute("SELECT public.over_quota(%s, 1)", [team]).fetchone() == (False,)
    assert conn.execute("SELECT public.cancel_job(%s, %s, 'x', 'y')", [team, job]).fetchone() == (
        "cancelled",
    )


def worker(conn: psycopg.Connection[Any], _: str, job: Any, other: Any) -> None:
    me = uuid4()
    for claimed in (job, other):
        row = conn.execute(
            "SELECT outcome FROM public.claim_jobs(%s, ARRAY[%s], '{1}')", [me, claimed]
        ).fetchone()
        assert row == ("taken",)
    row = conn.execute(
        "SELECT outcome FROM public.finish_jobs(%s, ARRAY[%s], '{1}', '{1}', ARRAY[%s], '{3}')",
        [me, job, ARTIFACT],
    ).fetchone()
    assert row == ("done",)
    row = conn.execute(
        "SELECT public.end_claim(%s, %s, 1, 1, 'failed', 'X', 'x', 10, true, 'w')", [me, other]
    ).fetchone()
    assert row == ("done",)
    assert conn.execute("SELECT public.rescue_jobs('{}', '{}', '{}', '{}', '{}', 'w')").fetchall() == []


def operator(conn: psycopg.Connection[Any], team: str, job: Any, other: Any) -> None:
    assert conn.execute("SELECT public.create_team('shadow', 'x')").fetchone() == (True,)
    assert conn.execute("SELECT public.pause_lane(%s, true, 'x', 'y')", [team]).fetchone() == (True,)
    row = conn.execute("SELECT outcome FROM public.replay_jobs(ARRAY[%s], 'x', 'y')", [other]).fetchone()
    assert row == ("replayed",)
    assert conn.execute("SELECT public.cancel_as_operator(%s, 'x', 'y')", [job]).fetchone() == ("cancelled",)
    run = conn.execute(
        "SELECT public.begin_replay('{}', NULL, NULL, NULL, NULL, NULL, false, 'x', 'y')"
    ).fetchone()
    assert run is not None
    assert conn.execute("SELECT replayed FROM public.replay_slice(%s, 10, 'x', 'y')", run).fetchone() == (0,)


ACTS = {"portal": portal, "worker": worker, "operator": operator}


def test_functions_act_on_the_real_tables_whatever_the_caller_shadows(
    admin: psycopg.Connection[Any], attacker: tuple[str, psycopg.Connection[Any]], team: str, accept: Any
) -> None:
    role, conn = attacker
    (job,), (other,) = accept(), accept()
    if role == "operator":
        die(admin, [other])
    before = admin.execute("SELECT count(*) FROM job_events").fetchone()
    ACTS[role](conn, team, job, other)
    after = admin.execute("SELECT count(*) FROM job_events").fetchone()
    assert before is not None
    assert after is not None
    assert after > before, "the real history went on"
    for table in TABLES:
        name = table.partition(" ")[0]
        assert conn.execute(f"SELECT count(*) FROM pg_temp.{name}".encode()).fetchone() == (0,), name
