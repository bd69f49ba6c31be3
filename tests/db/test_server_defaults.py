"""What a database may have set for itself: date style, search path, encoding. Nothing depends on it."""

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from db import oversight, replay
from db.accept import Acceptance, NewJob, Outcome, accept_each
from db.cluster import set_role_password
from db.migrate import migrate
from db.outbox import append
from db.pool import async_pool, connect
from db.replay import Filter
from support.postgres import DROP, Database, Server

#: As companies set them: a German cluster, an application's own schema, an old client, an old habit.
DEFAULTS = (
    "datestyle = 'German'",
    "search_path = 'app', 'nowhere'",
    "client_encoding = 'LATIN1'",
    "standard_conforming_strings = off",
    "timezone = 'Australia/Lord_Howe'",
    "intervalstyle = 'sql_standard'",
)
TITLE = "Grüße 日本 ☃"
DIGEST = "sha256:" + "0" * 64
SET = sql.SQL("ALTER DATABASE {} SET {}")


@pytest.fixture(params=DEFAULTS)
def peculiar(request: pytest.FixtureRequest, database: Database) -> Database:
    """Return a migrated database with a default of its own, and with decoys where its search path leads."""
    database.admin.execute("CREATE SCHEMA app CREATE TABLE outbox (x int)")
    database.admin.execute("GRANT USAGE ON SCHEMA app TO PUBLIC")
    database.admin.execute("GRANT ALL ON app.outbox TO PUBLIC")
    database.admin.execute("INSERT INTO teams (id) VALUES ('acme')")
    database.admin.execute("INSERT INTO documents (team, digest, size) VALUES ('acme', %s, 3)", [DIGEST])
    database.admin.execute(SET.format(sql.Identifier(database.name), sql.SQL(request.param)))
    return database


def test_a_job_is_accepted_with_its_title_whatever_the_database_has_set(peculiar: Database) -> None:
    async def accepted() -> None:
        job = NewJob(uuid4(), "page", DIGEST, TITLE, 5, None, None)
        wanted = Acceptance("acme", "key", b"\\\0\n\xff" * 8, [job])
        pool = async_pool(peculiar.dsn("portal"), "test", size=1, timeout=5)
        async with pool, pool.connection() as conn:
            (decision,) = await accept_each(conn, [wanted])
            assert decision.outcome is Outcome.NEW
            row = await (await conn.execute("SELECT title, created_at FROM jobs")).fetchone()
        assert row == (TITLE, decision.created_at)

    asyncio.run(accepted())


def test_operators_and_workers_read_times_and_write_intents(peculiar: Database) -> None:
    with connect(peculiar.dsn("operator"), "test") as conn:
        (team,) = oversight.teams(conn)
        assert team["created_at"].tzinfo is not None
        assert replay.plan(conn, Filter()) == []
    with connect(peculiar.dsn("worker"), "test") as conn:
        assert conn.execute("SELECT clock_timestamp()").fetchone() is not None


@pytest.mark.parametrize("path", ["app, public", "app"])
def test_an_intent_goes_to_the_outbox_that_is_relayed(database: Database, path: str) -> None:
    """An application's connection has the application's search path, and often an `outbox` of its own."""
    database.admin.execute("CREATE SCHEMA app CREATE TABLE outbox (x int)")
    database.admin.execute("INSERT INTO queues VALUES ('receipts')")
    with psycopg.connect(database.dsn()) as conn:
        conn.execute(sql.SQL("SET search_path = {}").format(sql.SQL(path)))  # type: ignore[arg-type]
        message_id = append(conn, "send", lane="acme", queue="receipts")
    assert database.admin.execute("SELECT message_id FROM public.outbox").fetchall() == [(message_id,)]


@pytest.fixture
def empty(server: Server) -> Iterator[str]:
    """Return the name of an empty database."""
    name = f"peculiar_{secrets.token_hex(6)}"
    with server.connect() as conn:
        conn.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        yield name
        conn.execute(DROP.format(sql.Identifier(name)))


@pytest.mark.parametrize("default", DEFAULTS)
def test_migrations_lay_everything_where_it_is_looked_for(server: Server, empty: str, default: str) -> None:
    with server.connect(empty) as conn:
        conn.execute("CREATE SCHEMA app")
        conn.execute(SET.format(sql.Identifier(empty), sql.SQL(default)))  # type: ignore[arg-type]
    assert "functions" in migrate(server.dsn(empty))
    assert migrate(server.dsn(empty)) == []
    with server.connect(empty) as conn:
        found = conn.execute("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename = 'jobs'").fetchall()
    assert found == [("public",)]


def test_behind_a_pooler_the_roles_have_the_same_forms(database: Database) -> None:
    """A pooler leaves out the options of a connection."""
    name = sql.Identifier(database.name)
    for default in DEFAULTS:
        database.admin.execute(SET.format(name, sql.SQL(default)))
    for role in ("portal", "worker"):
        set_role_password(database.dsn(), f"oncommit_{role}", database.server.passwords[f"oncommit_{role}"])
        with psycopg.connect(database.dsn(role)) as conn:  # type: ignore[arg-type]
            found: list[Any] = [
                conn.execute(f"SHOW {setting}".encode()).fetchone()
                for setting in ("datestyle", "search_path", "standard_conforming_strings")
            ]
        assert found == [("ISO, MDY",), ("public",), ("on",)]
