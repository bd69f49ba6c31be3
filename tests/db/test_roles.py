"""Least privilege: what each role may do is decided here, once, for every relation and every function.

A new table, view, sequence or function fails these tests until it has its line.
"""

from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from db import replay
from db.pool import connect
from support.dead import die

WHO = {"who": "operator:eve", "reason": "the printer is back"}
READ = "SELECT"
#: relation -> role -> privileges, of the table or of any of its columns. No role: nobody but the owner.
RELATIONS: dict[str, dict[str, str]] = {
    "batches": {"portal": READ},
    "control": {"relay": READ},
    "documents": {"portal": "SELECT INSERT"},
    "job_events": {"portal": READ},
    "jobs": {"portal": READ, "worker": READ},
    "kinds": {"portal": READ, "worker": READ},
    "operator_actions": {},
    "outbox": {"relay": READ, "worker": "SELECT DELETE"},
    "probes": {},
    "quarantine": {},
    "queues": {"relay": READ, "worker": READ},
    "replay_runs": {},
    "requests": {"portal": READ},
    "schema_migrations": {},
    "teams": {"portal": READ},
    "tokens": {"portal": READ},
    "workers": {"worker": "SELECT INSERT UPDATE DELETE"},
    "dispatch_counts": {"operator": READ, "viewer": READ},
    "oldest_due": {"operator": READ, "portal": READ, "viewer": READ},
    "relay_epoch": {"relay": "SELECT UPDATE USAGE"},
    "control_version_seq": {},
    "operator_actions_id_seq": {},
    "outbox_id_seq": {},
    "quarantine_id_seq": {},
} | {
    f"operator_{view}": {"operator": READ}
    for view in (
        "audit", "dispatch", "events", "jobs", "lanes", "migrations", "probes", "quarantine", "queues",
        "remaining", "replays", "slots", "teams", "tokens", "workers",
    )
}  # fmt: skip
#: function -> the roles that may call it. No role: internal.
FUNCTIONS: dict[str, str] = {
    "accept_jobs": "portal", "accept_each": "portal", "over_quota": "portal", "cancel_job": "portal",
    "claim_each": "worker", "claim_jobs": "worker", "finish_jobs": "worker", "finish_each": "worker",
    "end_claim": "worker", "rescue_jobs": "worker",
    "claim_probe": "worker", "finish_probe": "worker",
    "quarantine_intent": "relay worker",
    "replay_jobs": "operator", "begin_replay": "operator", "replay_slice": "operator",
    "replay_quarantined": "operator",
    "cancel_as_operator": "operator", "set_lane": "operator", "pause_lane": "operator",
    "set_backlog": "operator", "create_team": "operator", "create_token": "operator",
    "revoke_token": "operator", "prunable": "operator", "prune_jobs": "operator",
    "artifacts_page": "operator", "send_probes": "operator", "end_probe": "operator",
    "preview_message_id": "portal relay worker operator viewer public",
    "preview_message": "", "put_intents": "", "replay_dead": "", "prune_rest": "", "check_settings": "",
    "need_read_committed": "", "refuse_change": "", "give_settings": "",
}  # fmt: skip
ROLES = ("portal", "relay", "worker", "operator", "viewer", "public")
HELD = """
SELECT c.relname, r.role, string_agg(p.name, ' ' ORDER BY p.n)
  FROM pg_class c
 CROSS JOIN (SELECT role, CASE role WHEN 'public' THEN role ELSE 'oncommit_' || role END AS name
               FROM unnest(%s::text[]) AS role) r
 CROSS JOIN unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER,USAGE}'::text[])
       WITH ORDINALITY AS p(name, n)
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
   AND CASE WHEN c.relkind = 'S'
            THEN p.name IN ('SELECT', 'UPDATE', 'USAGE') AND has_sequence_privilege(r.name, c.oid, p.name)
            WHEN p.name = 'USAGE' THEN false
            ELSE has_table_privilege(r.name, c.oid, p.name)
                 OR p.name IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
                    AND has_any_column_privilege(r.name, c.oid, p.name) END
 GROUP BY c.relname, r.role
"""
THERE = """
SELECT relname FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
"""
CALLABLE = """
SELECT p.proname, r.role
  FROM pg_proc p
 CROSS JOIN (SELECT role, CASE role WHEN 'public' THEN role ELSE 'oncommit_' || role END AS name
               FROM unnest(%s::text[]) AS role) r
 WHERE p.pronamespace = 'public'::regnamespace AND has_function_privilege(r.name, p.oid, 'EXECUTE')
"""


def held(admin: psycopg.Connection[Any]) -> dict[str, dict[str, str]]:
    """Return what RELATIONS says, as the server has it."""
    found: dict[str, dict[str, str]] = {name: {} for (name,) in admin.execute(THERE).fetchall()}
    for name, role, privileges in admin.execute(HELD, [list(ROLES)]).fetchall():
        found[name][role] = privileges
    return found


def callers(admin: psycopg.Connection[Any]) -> dict[str, set[str]]:
    """Return what FUNCTIONS says, as the server has it."""
    rows = admin.execute("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
    names = [name for (name,) in rows.fetchall()]
    assert len(names) == len(set(names)), "an older signature was left behind"
    found: dict[str, set[str]] = {name: set() for name in names}
    for name, role in admin.execute(CALLABLE, [list(ROLES)]).fetchall():
        found[name].add(role)
    return found


def test_every_relation_is_open_to_exactly_the_roles_that_were_decided(
    admin: psycopg.Connection[Any],
) -> None:
    assert held(admin) == RELATIONS


def test_every_function_is_open_to_exactly_the_roles_that_were_decided(
    admin: psycopg.Connection[Any],
) -> None:
    assert callers(admin) == {name: set(roles.split()) for name, roles in FUNCTIONS.items()}


def test_what_is_new_and_undecided_is_noticed(admin: psycopg.Connection[Any]) -> None:
    admin.execute("CREATE TABLE undecided (x int)")
    admin.execute("GRANT UPDATE (x) ON undecided TO oncommit_viewer")
    admin.execute("CREATE FUNCTION undecided() RETURNS int LANGUAGE sql RETURN 1")
    assert held(admin).keys() - RELATIONS.keys() == {"undecided"}
    assert held(admin)["undecided"] == {"viewer": "UPDATE"}
    assert callers(admin)["undecided"] == set(ROLES)


DEFINERS = """
SELECT p.proname, array_to_string(p.proconfig, ';') FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
 WHERE p.pronamespace = 'public'::regnamespace AND (p.prosecdef OR l.lanname = 'plpgsql')
"""


def test_every_function_with_the_owners_rights_looks_into_temporary_schemas_last(
    admin: psycopg.Connection[Any],
) -> None:
    rows = admin.execute(DEFINERS).fetchall()
    assert len(rows) >= 25
    for name, settings in rows:
        assert "search_path=pg_catalog, public, pg_temp" in (settings or "").split(";"), name


STATEMENTS = [
    ("portal", "UPDATE jobs SET priority = 0"),
    ("portal", "DELETE FROM jobs"),
    ("portal", "SELECT * FROM outbox"),
    ("portal", "SELECT claim_jobs(gen_random_uuid(), '{}', '{}')"),
    ("relay", "SELECT * FROM jobs"),
    ("relay", "SELECT * FROM documents"),
    ("relay", "DELETE FROM outbox"),
    ("worker", "UPDATE jobs SET priority = 0"),
    ("worker", "UPDATE outbox SET body = '{}'"),
    (
        "worker",
        "INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES ('a|1','previews','a',1,'{}')",
    ),
    ("worker", "SELECT * FROM tokens"),
    ("worker", "SELECT put_intents('{}', NULL)"),
    ("operator", "SELECT * FROM jobs"),
    ("operator", "SELECT title FROM jobs"),
    ("operator", "SELECT * FROM documents"),
    ("operator", "SELECT * FROM job_events"),
    ("operator", "SELECT hash FROM tokens"),
    ("operator", "INSERT INTO control (lane, who) VALUES ('*', 'me')"),
    ("operator", "SELECT replay_dead('{}', NULL, 'x', 'y')"),
    ("operator", "SELECT prune_rest(now(), true)"),
    ("operator", "UPDATE operator_jobs SET priority = 0"),
    ("operator", "DELETE FROM operator_events"),
    ("operator", "UPDATE operator_tokens SET revoked_at = NULL"),
    ("viewer", "SELECT * FROM operator_jobs"),
    ("viewer", "SELECT replay_jobs('{}', 'x', 'y')"),
    *(
        (role, statement)
        for role in ROLES[:-1]
        for statement in (
            "CREATE TABLE public.mine (x int)",
            "CREATE FUNCTION public.mine() RETURNS int LANGUAGE sql RETURN 1",
            "CREATE SCHEMA mine",
            "CREATE PUBLICATION mine FOR ALL TABLES",
            "ALTER TABLE jobs DISABLE TRIGGER ALL",
            "SET ROLE postgres",
            "SET session_replication_role = replica",
            "ALTER SYSTEM SET fsync = off",
            "COPY (SELECT 1) TO '/tmp/mine'",
            "BEGIN; LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE",
        )
    ),
]


@pytest.mark.parametrize("role", ROLES[:-1])
def test_a_role_cannot_reach_beyond_its_own(database: Any, role: Any) -> None:
    for statement in [text for who, text in STATEMENTS if who == role]:
        with psycopg.connect(database.dsn(role), autocommit=True) as conn:
            try:
                conn.execute(statement.encode())
            except InsufficientPrivilege:
                continue
        pytest.fail(f"{role} may: {statement}")


def test_events_and_the_audit_trail_cannot_be_changed_even_by_the_owner(
    admin: psycopg.Connection[Any], accept: Any
) -> None:
    accept()
    admin.execute("SELECT set_lane('acme', '{\"weight\": 2}', 'eve', 'fair')")
    for pruning in ("off", "on"):
        admin.execute("SELECT set_config('oncommit.pruning', %s, false)", [pruning])
        for table in ("job_events", "operator_actions"):
            for statement in (f"UPDATE {table} SET who = 'me'", f"TRUNCATE {table}", f"DELETE FROM {table}"):
                if (pruning, statement) == ("on", "DELETE FROM job_events"):
                    continue  # the road of prune_jobs
                with pytest.raises(InsufficientPrivilege, match="append-only"):
                    admin.execute(statement.encode())


SECRET = "a title that nobody but the team may see"
OUTPUTS = """
SELECT p.proname, coalesce(p.proargnames[array_position(p.proargmodes, 't'):], '{}')
  FROM pg_proc p
 WHERE p.pronamespace = 'public'::regnamespace
   AND has_function_privilege('oncommit_operator', p.oid, 'EXECUTE')
"""
FORBIDDEN = {"title", "document", "digest", "body", "error", "artifact", "simulate", "hash", "traceparent"}


def test_nothing_that_an_operator_reads_holds_a_title_a_digest_or_a_renderers_text(
    admin: psycopg.Connection[Any], operator: psycopg.Connection[Any], accept: Any
) -> None:
    jobs = accept(2)
    admin.execute("UPDATE jobs SET title = %s, simulate = '{\"sleep_ms\": 1}'", [SECRET])
    die(admin, jobs)
    replay.replay(operator, jobs, **WHO)
    admin.execute("SELECT quarantine_intent(message_id, 'no such actor', 'relay') FROM outbox")
    views = [name for name, roles in RELATIONS.items() if "operator" in roles]
    assert len(views) >= 17
    for view in views:
        cursor = operator.execute(f"SELECT row_to_json(v)::text, v.* FROM {view} v".encode())
        assert not {column.name for column in cursor.description or ()} & FORBIDDEN, view
        for text, *_ in cursor.fetchall():
            for forbidden in (SECRET, "a renderer's text", "sha256:", "sleep_ms", "render_preview"):
                assert forbidden not in text, view


def test_no_function_of_an_operator_returns_names_or_texts_but_the_audited_page_of_digests(
    admin: psycopg.Connection[Any],
) -> None:
    told = {name: set(columns) & FORBIDDEN for name, columns in admin.execute(OUTPUTS).fetchall()}
    assert told.pop("artifacts_page") == {"artifact", "document"}
    assert told
    assert not any(told.values()), told


def test_a_viewer_sees_counts_and_nothing_else(database: Any, accept: Any) -> None:
    accept(3)
    with connect(database.dsn("viewer"), "test") as conn:
        assert conn.execute("SELECT * FROM dispatch_counts").fetchall() == [("acme", "queued", 3)]
        row = conn.execute("SELECT * FROM oldest_due").fetchone()
        assert row is not None
        assert row[1] == 3
