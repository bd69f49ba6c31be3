"""Least privilege: what each role cannot do."""

from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

REFUSED = [
    ("oncommit_portal", "UPDATE jobs SET priority = 0"),
    ("oncommit_portal", "DELETE FROM jobs"),
    (
        "oncommit_portal",
        "INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES ('a|1','previews','a',1,'{}')",
    ),
    ("oncommit_portal", "SELECT * FROM outbox"),
    ("oncommit_portal", "SELECT replay_jobs('{}', 'x', 'y')"),
    ("oncommit_relay", "SELECT * FROM jobs"),
    ("oncommit_relay", "SELECT * FROM documents"),
    ("oncommit_relay", "DELETE FROM outbox"),
    ("oncommit_worker", "UPDATE jobs SET priority = 0"),
    (
        "oncommit_worker",
        "INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES ('a|1','previews','a',1,'{}')",
    ),
    ("oncommit_worker", "SELECT * FROM tokens"),
    ("oncommit_worker", "SELECT put_intents('{}', NULL)"),
    ("oncommit_portal", "SELECT send_probes(1, 'previews', 'x', 'y')"),
    ("oncommit_worker", "SELECT send_probes(1, 'previews', 'x', 'y')"),
    ("oncommit_worker", "SELECT * FROM probes"),
    ("oncommit_operator", "SELECT claim_probe('x', 0, gen_random_uuid())"),
    ("oncommit_operator", "SELECT * FROM probes"),
    ("oncommit_viewer", "SELECT * FROM operator_probes"),
    ("oncommit_operator", "SELECT * FROM jobs"),
    ("oncommit_operator", "SELECT * FROM documents"),
    ("oncommit_operator", "SELECT * FROM job_events"),
    ("oncommit_operator", "SELECT * FROM tokens"),
    ("oncommit_operator", "INSERT INTO control (lane, who) VALUES ('*', 'me')"),
    ("oncommit_operator", "DELETE FROM outbox"),
    ("oncommit_viewer", "SELECT * FROM operator_jobs"),
    ("oncommit_viewer", "SELECT replay_jobs('{}', 'x', 'y')"),
]


@pytest.mark.parametrize(("role", "statement"), REFUSED, ids=[f"{r}: {s[:40]}" for r, s in REFUSED])
def test_a_role_cannot_reach_beyond_its_own(database: Any, role: str, statement: str) -> None:
    with (
        psycopg.connect(database.dsn(role.removeprefix("oncommit_")), autocommit=True) as conn,
        pytest.raises(InsufficientPrivilege),
    ):
        conn.execute(statement.encode())


def test_no_view_of_the_operator_shows_names_or_texts(database: Any) -> None:
    rows = database.admin.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name LIKE 'operator%'"
    ).fetchall()
    assert rows
    assert not {column for _, column in rows} & {
        "title",
        "document",
        "digest",
        "body",
        "error",
        "artifact",
        "simulate",
    }


def test_events_cannot_be_changed_even_by_the_owner(admin: psycopg.Connection[Any], accept: Any) -> None:
    accept()
    for statement in ("UPDATE job_events SET who = 'me'", "DELETE FROM job_events", "TRUNCATE job_events"):
        with pytest.raises(InsufficientPrivilege):
            admin.execute(statement.encode())
