"""The words in Python and in PostgreSQL are the same words."""

import psycopg
import pytest

from db.jobs import STATUS_AFTER, EventType, JobStatus


@pytest.mark.parametrize(("name", "enum"), [("job_status", JobStatus), ("event_type", EventType)])
def test_an_enum_is_the_same_in_sql_and_in_python(admin: psycopg.Connection, name: str, enum: type) -> None:
    rows = admin.execute(
        "SELECT enumlabel FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid WHERE typname = %s", [name]
    ).fetchall()
    assert {row[0] for row in rows} == {str(member) for member in enum}


def test_every_event_leads_somewhere() -> None:
    assert set(STATUS_AFTER) == set(EventType)
