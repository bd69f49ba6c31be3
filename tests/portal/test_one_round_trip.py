"""What a joint commit no longer asks for and still has: READ COMMITTED, a commit, and a living connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo

from db.accept import Acceptance, Decision, NewJob, Outcome, accept_each, array
from db.errors import DatabaseError, Refused, Unavailable
from ops.ports import LOOPBACK
from portal.database import opened
from support.postgres import Database
from support.waiting import eventually

DIGEST = "sha256:" + "0" * 64
MINE = "SELECT pg_backend_pid()"
THERE = """
SELECT pid FROM pg_stat_activity WHERE usename = 'oncommit_portal' AND datname = current_database()
"""
END = "SELECT pg_terminate_backend(%s)"
#: Refused by the commit itself, when the rows of the answer are made already.
LATE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'canary'; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON jobs DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION refuse();
"""


@pytest.fixture(autouse=True)
def team(database: Database) -> None:
    """A team with one document, DIGEST."""
    database.admin.execute("INSERT INTO teams (id) VALUES ('acme')")
    database.admin.execute("INSERT INTO documents (team, digest, size) VALUES ('acme', %s, 3)", [DIGEST])


def jobs(database: Database) -> int:
    row = database.admin.execute("SELECT count(*) FROM jobs").fetchone()
    assert row is not None
    return int(row[0])


def asked(key: str) -> Acceptance:
    """Return what a request asks for."""
    return Acceptance("acme", key, b"f" * 32, [NewJob(uuid4(), "page", DIGEST, None, 5, None, None)])


async def accepted(database: Database, level: str) -> list[Decision]:
    """Accept two jobs in a session that has this default and no options of ours, as one of a pooler has."""
    async with await AsyncConnection.connect(database.dsn("portal"), autocommit=True) as conn:
        await conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        await conn.execute(f"SET default_transaction_isolation = '{level}'".encode())
        return await accept_each(conn, [asked("a"), asked("b")])


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_another_default_of_the_session_changes_nothing(database: Database, level: str) -> None:
    decisions = asyncio.run(accepted(database, level))
    assert [decision.outcome for decision in decisions] == [Outcome.NEW] * 2
    assert jobs(database) == 2


def test_what_is_not_committed_is_not_told_to_be_decided(database: Database) -> None:
    async def scene() -> None:
        async with await AsyncConnection.connect(database.dsn("portal")) as conn:
            try:
                await accept_each(conn, [asked("k")])
            finally:
                await conn.rollback()

    with pytest.raises(DatabaseError, match="not committed"):
        asyncio.run(scene())
    assert jobs(database) == 0


def test_what_its_commit_refuses_is_not_told_to_be_decided(database: Database) -> None:
    database.admin.execute(LATE)
    with pytest.raises(Refused):
        asyncio.run(accepted(database, "read committed"))
    assert jobs(database) == 0


@asynccontextmanager
async def without_the_last_word(port: int) -> AsyncIterator[int]:
    """Lead to a server; after an answer with rows the connection ends before it says that it committed."""

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(LOOPBACK, port)

        async def ask() -> None:
            while data := await client.read(65_536):
                to_server.write(data)

        asking = asyncio.create_task(ask())
        try:
            rows = False
            while True:
                head = await server.readexactly(5)
                rest = await server.readexactly(int.from_bytes(head[1:]) - 4)
                rows |= head[:1] == b"D"  # DataRow
                if rows and head[:1] == b"Z":  # ReadyForQuery
                    return
                to_client.write(head + rest)
        finally:
            asking.cancel()
            to_client.close()
            to_server.close()

    async with await asyncio.start_server(serve, LOOPBACK, 0) as listening:
        yield listening.sockets[0].getsockname()[1]


def test_rows_without_the_end_of_the_transaction_decide_nothing(database: Database) -> None:
    wanted = asked("k")

    async def scene() -> list[Decision]:
        async with without_the_last_word(database.server.port) as port:
            dsn = make_conninfo(database.dsn("portal"), port=port, sslmode="disable", gssencmode="disable")
            async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
                with pytest.raises(Unavailable):
                    await accept_each(conn, [wanted])
        async with await AsyncConnection.connect(database.dsn("portal"), autocommit=True) as conn:
            return await accept_each(conn, [wanted])

    (decision,) = asyncio.run(scene())
    assert (decision.outcome, decision.job) == (Outcome.OLD, wanted.jobs[0].id), "the key finds out"


def test_a_connection_that_the_server_ended_is_replaced_before_anybody_gets_it(database: Database) -> None:
    async def mine(conn: AsyncConnection[Any]) -> int:
        row = await (await conn.execute(MINE)).fetchone()
        assert row is not None
        return int(row[0])

    async def scene() -> None:
        async with opened(database.url("portal")) as way:
            await way.run(mine)
            # One, or two where the first was asked for before it was there. The pool gives them in turn.
            ended = {pid for (pid,) in database.admin.execute(THERE)}
            for pid in ended:
                database.admin.execute(END, [pid])
            await asyncio.to_thread(
                eventually, lambda: not ended & {pid for (pid,) in database.admin.execute(THERE)}
            )
            assert ended
            assert not ended & {await way.run(mine) for _ in range(4)}

    asyncio.run(scene())


TEXTS = st.lists(
    st.one_of(
        st.none(),
        st.text(st.characters(codec="utf-8", exclude_characters="\0")),
        st.text(st.sampled_from("\\\"{},NULL \n\t'")),
    ),
    max_size=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(TEXTS)
@example([])
@example([None, "NULL", "null", "", " ", '"', "\\", '\\"', "{", "}", ",", "a,b", "\\x00"])
def test_an_array_is_read_by_postgresql_as_it_was_meant(database: Database, texts: list[str | None]) -> None:
    assert database.admin.execute("SELECT %s::text[]", [array(texts)]).fetchone() == (texts,)
