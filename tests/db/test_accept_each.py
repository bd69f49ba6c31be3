"""Single jobs that are accepted together, by SQL: each with its own outcome, and none at another's cost."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import IntegrityError
from psycopg.rows import dict_row

from db.accept import ACCEPT, ACCEPT_EACH

DIGEST = "sha256:" + "0" * 64
COLUMNS = (
    "team", "key", "fingerprint", "over", "id", "kind", "document", "title", "priority", "most", "simulate",
    "traceparent", "who",
)  # fmt: skip
WRITTEN = """
SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM job_events), (SELECT count(*) FROM outbox),
       (SELECT count(*) FROM requests)
"""
ROWS = (
    "SELECT * FROM jobs",
    "SELECT * FROM job_events",
    "SELECT queue, lane, priority, not_before, message_id, body FROM outbox",
    "SELECT * FROM requests",
)


def asked(key: str, **fields: Any) -> dict[str, Any]:
    """Return one request."""
    given = {
        "team": "acme", "key": key, "fingerprint": b"f" * 32, "over": False, "id": uuid4(), "kind": "page",
        "document": DIGEST, "title": None, "priority": 5, "most": None, "simulate": None,
        "traceparent": None, "who": "test",
    }  # fmt: skip
    return given | fields


def accept(conn: psycopg.Connection[Any], *requests: dict[str, Any]) -> list[tuple[str, UUID | None]]:
    """Accept requests together; return each one's outcome and job."""
    rows = conn.execute(ACCEPT_EACH, [[r[name] for r in requests] for name in COLUMNS]).fetchall()
    return [(row[0], row[1]) for row in rows]


@pytest.mark.usefixtures("team")
def test_each_request_has_its_own_outcome(admin: psycopg.Connection[Any], database: Any) -> None:
    admin.execute("INSERT INTO teams (id) VALUES ('other')")
    first = asked("decided")
    assert accept(admin, first) == [("new", first["id"])]
    requests = [
        asked("decided"), asked("decided", fingerprint=b"g" * 32), asked("fresh"), asked("fresh"),
        asked("held"), asked("no-document", document="sha256:" + "1" * 64), asked("fresh", team="other"),
        asked("full", over=True), asked("last", most=7, kind="thumbnail"),
    ]  # fmt: skip
    with database.server.connect(database.name) as holder:
        holder.execute("BEGIN")
        holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('acme|held', 0))")
        with database.server.connect(database.name) as quick:
            quick.execute("SET lock_timeout = '1ms'")  # nobody waits for the key that is held
            found = accept(quick, *requests)
    # The second 'fresh' and 'decided' of one call cannot be judged in it.
    assert found == [
        ("old", first["id"]), ("busy", None), ("new", requests[2]["id"]), ("busy", None), ("busy", None),
        ("unknown_documents", None), ("unknown_documents", None), ("backlog_full", None),
        ("new", requests[8]["id"]),
    ]  # fmt: skip
    assert admin.execute(WRITTEN).fetchone() == (3, 3, 3, 3)
    assert accept(admin, requests[1], requests[3]) == [("mismatch", None), ("old", requests[2]["id"])]
    assert accept(admin, requests[4]) == [("new", requests[4]["id"])]


@pytest.mark.parametrize(
    ("column", "value"), [("kind", "film"), ("priority", 10), ("most", 0), ("title", "x" * 201)]
)
@pytest.mark.usefixtures("team")
def test_what_is_refused_leaves_nothing_of_anybody(
    admin: psycopg.Connection[Any], column: str, value: Any
) -> None:
    with pytest.raises(IntegrityError):
        accept(admin, asked("a"), asked("b", **{column: value}), asked("c"))
    assert admin.execute(WRITTEN).fetchone() == (0, 0, 0, 0)


@pytest.mark.usefixtures("team")
def test_together_or_alone_the_same_rows_are_written(admin: psycopg.Connection[Any]) -> None:
    job = UUID(int=7)
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    alone = ["page"], [DIGEST], ["Title"], [3], [None], ['{"sleep_ms": 1}']
    seen: list[list[dict[str, Any]]] = []
    for together in (False, True):
        with admin.transaction(force_rollback=True), admin.cursor(row_factory=dict_row) as cursor:
            if together:
                request = asked(
                    "k", id=job, title="Title", priority=3, simulate='{"sleep_ms": 1}', traceparent=trace
                )
                cursor.execute(ACCEPT_EACH, [[request[name]] for name in COLUMNS])
            else:
                cursor.execute(ACCEPT, ["acme", "k", b"f" * 32, None, False, [job], *alone, trace, "test"])
            rows = [row for query in ROWS for row in cursor.execute(query.encode()).fetchall()]
        for row in rows:
            for moment in ("created_at", "updated_at", "at"):
                if moment in row:
                    row[moment] = None
            if "body" in row:
                row["body"] = row["body"].partition(',"message_timestamp":')[0]
        seen.append(rows)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 4
