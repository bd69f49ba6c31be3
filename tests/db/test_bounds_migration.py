"""0004: a database that holds a rate which Redis cannot count with comes through, and holds none after."""

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import psycopg
import pytest

from db.migrate import CREATE_LEDGER, WRITE_LEDGER, migrate

OLD = ("0001_tables.sql", "0002_operators.sql", "0003_due.sql")
LATEST = """
SELECT max_running, weight, rate_per_second, burst, paused, who FROM control
 WHERE lane = %s ORDER BY version DESC LIMIT 1
"""
PAUSED_BY = "SELECT paused_by, paused_reason FROM operator_lanes WHERE lane = 'paused'"


@pytest.fixture
def before(server: Any) -> Iterator[Any]:
    """A database as of the migrations before, with settings of that time."""
    name = "migrate_bounds"
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        conn.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
    with psycopg.connect(server.dsn(name), autocommit=True) as conn:
        conn.execute(CREATE_LEDGER)
        for migration in OLD:
            text = files("db").joinpath("migrations", migration).read_bytes()
            conn.execute(text)
            conn.execute(WRITE_LEDGER, [migration, hashlib.sha256(text).hexdigest()])
        conn.execute("INSERT INTO teams (id) VALUES ('slow'), ('paused'), ('fine')")
        conn.execute(
            "INSERT INTO control (lane, max_running, weight, rate_per_second, burst, paused, who, reason)"
            " VALUES ('slow', 3, 2, 1e-300, 4, false, 'eve', ''), ('fine', 1, 1, 1e-9, 1, false, 'eve', ''),"
            " ('fine', 1, 1, 0.5, 1, false, 'eve', ''), ('paused', 1, 1, 5e-324, 1, true, 'bob', 'the flood')"
        )
        yield conn
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_rates_below_the_bound_go_up_to_it_and_nothing_else_changes(before: Any) -> None:
    migrate(f"{before.info.dsn} password={before.info.password}")
    assert before.execute(LATEST, ["slow"]).fetchone() == (3, 2, 1e-6, 4, False, "migrate")
    assert before.execute(LATEST, ["fine"]).fetchone() == (1, 1, 0.5, 1, False, "eve")
    assert before.execute(LATEST, ["paused"]).fetchone() == (1, 1, 1e-6, 1, True, "migrate")
    assert before.execute(PAUSED_BY).fetchone() == ("bob", "the flood")
    assert before.execute("SELECT count(*) FROM control WHERE rate_per_second < 1e-6").fetchone() == (0,)
    row = before.execute("SELECT convalidated FROM pg_constraint WHERE conname = 'rate_has_an_interval'")
    assert row.fetchone() == (True,)
