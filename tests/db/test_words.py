"""The words in Python and in PostgreSQL are the same words."""

import re
from pathlib import Path

import psycopg
import pytest

from db.jobs import STATUS_AFTER, EventType, JobStatus


@pytest.mark.parametrize(("name", "enum"), [("job_status", JobStatus), ("event_type", EventType)])
def test_an_enum_is_the_same_in_sql_and_in_python(admin: psycopg.Connection, name: str, enum: type) -> None:
    rows = admin.execute(
        "SELECT enumlabel FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid WHERE typname = %s", [name]
    ).fetchall()
    assert {row[0] for row in rows} == {str(member) for member in enum}


def test_the_page_tells_every_event_and_where_it_leads() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    table = page.split("| event | from → to |")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.MULTILINE))
    assert set(rows) == {str(event) for event in EventType}
    for event, status in STATUS_AFTER.items():
        told = rows[event].rpartition("→")[2].strip()
        assert told == (str(status) if status else "processing"), event


def test_the_page_has_the_picture_of_the_readme() -> None:
    root = Path(__file__).parents[2]
    picture = (root / "README.md").read_text(encoding="utf-8").split("```\n")[1]
    assert "portal" in picture
    assert picture in (root / "docs" / "how-it-works.md").read_text(encoding="utf-8")


def test_every_event_leads_somewhere() -> None:
    assert set(STATUS_AFTER) == set(EventType)
