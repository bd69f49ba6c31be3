"""Short names for what the tests of the database use."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from db.pool import connect

DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def admin(database: Any) -> psycopg.Connection[Any]:
    """The superuser's autocommit connection."""
    conn: psycopg.Connection[Any] = database.admin
    return conn


@pytest.fixture
def team(admin: psycopg.Connection[Any]) -> str:
    """A team with one document, DIGEST."""
    admin.execute("INSERT INTO teams (id) VALUES ('acme')")
    admin.execute("INSERT INTO documents (team, digest, size) VALUES ('acme', %s, 3)", [DIGEST])
    return "acme"


@pytest.fixture
def worker(database: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection as oncommit_worker."""
    with connect(database.dsn("worker"), "test worker") as conn:
        yield conn


@pytest.fixture
def operator(database: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection as oncommit_operator."""
    with connect(database.dsn("operator"), "test operator") as conn:
        yield conn


@pytest.fixture
def accept(admin: psycopg.Connection[Any], team: str) -> Any:
    """Accept jobs by SQL; returns their ids."""

    def accept_(count: int = 1, *, key: str | None = None, max_attempts: int = 3) -> list[UUID]:
        ids = [uuid4() for _ in range(count)]
        batch = uuid4() if count > 1 else None
        row = admin.execute(
            "SELECT outcome FROM accept_jobs(%s, %s, %s, %s, false, %s::uuid[], %s::text[], %s::text[],"
            " %s::text[], %s::smallint[], %s::int[], %s::text[], NULL, 'test')",
            [
                team,
                str(uuid4()) if key is None else key,
                b"f" * 32,
                batch,
                ids,
                ["page"] * count,
                [DIGEST] * count,
                [None] * count,
                [5] * count,
                [max_attempts] * count,
                [None] * count,
            ],
        ).fetchone()
        assert row == ("new",)
        return ids

    return accept_
