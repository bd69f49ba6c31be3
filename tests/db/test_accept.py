"""Acceptance, by SQL: all of a request or nothing of it, whatever the caller forgot to check."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import IntegrityError

DIGEST = "sha256:" + "0" * 64
ACCEPT = """
SELECT outcome FROM accept_jobs(
  'acme', 'key', decode(repeat('66', 32), 'hex'), %(batch)s, false, %(ids)s::uuid[], %(kinds)s::text[],
  %(documents)s::text[], %(titles)s::text[], %(priorities)s::smallint[], %(most)s::int[],
  %(simulate)s::text[], NULL, 'test')
"""
WRITTEN = """
SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM job_events), (SELECT count(*) FROM outbox),
       (SELECT count(*) FROM requests), (SELECT count(*) FROM batches)
"""


def request(size: int) -> dict[str, Any]:
    return {
        "batch": uuid4() if size > 1 else None,
        "ids": [uuid4() for _ in range(size)],
        "kinds": ["page"] * size,
        "documents": [DIGEST] * size,
        "titles": [None] * size,
        "priorities": [5] * size,
        "most": [3] * size,
        "simulate": [None] * size,
    }


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("kinds", "film"),
        ("kinds", None),
        ("priorities", 10),
        ("priorities", None),
        ("most", 0),
        ("most", 1001),
        ("ids", UUID(int=0)),
        ("titles", "x" * 201),
    ],
)
@pytest.mark.usefixtures("team")
def test_one_wrong_item_is_refused_and_nothing_of_the_request_is_written(
    admin: psycopg.Connection[Any], size: int, column: str, value: Any
) -> None:
    wrong = request(size)
    wrong[column][-1] = value
    if column == "ids":  # the same id twice, or once more
        good = request(1) | {"ids": [UUID(int=0)]}
        admin.execute(ACCEPT.replace("'key'", "'other'").encode(), good)
    before = admin.execute(WRITTEN).fetchone()
    with pytest.raises(IntegrityError):
        admin.execute(ACCEPT, wrong)
    assert admin.execute(WRITTEN).fetchone() == before
    assert admin.execute(ACCEPT, request(size)).fetchone() == ("new",), "the key was not used up"


@pytest.mark.usefixtures("team")
def test_lists_of_other_lengths_are_refused(admin: psycopg.Connection[Any]) -> None:
    for column in ("kinds", "documents", "priorities"):
        wrong = request(3)
        wrong[column] = wrong[column][:-1]
        with pytest.raises(IntegrityError):
            admin.execute(ACCEPT, wrong)
    assert admin.execute(WRITTEN).fetchone() == (0, 0, 0, 0, 0)
