"""What everybody wants to know at one moment is looked up once; nobody's leaving takes it from the others."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from db.errors import DatabaseError
from portal.database import opened
from portal.limits import Backlogs
from portal.shared_looks import SharedLooks
from support.postgres import Database
from support.waiting import eventually

ASKERS = 40
WAITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE usename = 'oncommit_portal' AND wait_event_type = 'Lock' AND datname = current_database()
"""
LOCK = "LOCK TABLE teams IN ACCESS EXCLUSIVE MODE"


@asynccontextmanager
async def backlogs(database: Database) -> AsyncGenerator[Backlogs]:
    """Yield the backlogs of a portal's pool."""
    async with opened(database.dsn("portal")) as way:
        yield Backlogs(way)


async def waiting(database: Database, count: int) -> None:
    """Wait until so many of the portal's statements wait for a lock."""
    await asyncio.to_thread(
        eventually, lambda: database.admin.execute(WAITING).fetchone() == (count,), timeout=10
    )


def test_all_who_ask_at_one_moment_share_one_look_at_the_backlog(database: Database) -> None:
    database.admin.execute("INSERT INTO teams (id, max_backlog) VALUES ('full', 0), ('free', 10)")

    async def scene() -> tuple[list[bool], list[bool]]:
        async with backlogs(database) as found:
            with database.server.connect(database.name) as holder:
                holder.execute("BEGIN")
                holder.execute(LOCK)
                full = [asyncio.create_task(found.over("full", 1)) for _ in range(ASKERS)]
                free = [asyncio.create_task(found.over("free", 1)) for _ in range(ASKERS)]
                await waiting(database, 2)
                full[0].cancel()  # whoever began the look leaves
                # Whoever would look for himself had come to the server within a fraction of this.
                until = time.monotonic() + 0.3
                while time.monotonic() < until:
                    assert database.admin.execute(WAITING).fetchone() == (2,)
                    await asyncio.sleep(0.02)
                holder.execute("ROLLBACK")
            return await asyncio.gather(*full[1:]), await asyncio.gather(*free)

    full, free = asyncio.run(scene())
    assert set(full) == {True}
    assert set(free) == {False}


def test_a_look_that_failed_fails_those_who_shared_it_and_nobody_after(database: Database) -> None:
    database.admin.execute("INSERT INTO teams (id) VALUES ('blue')")

    async def scene() -> bool:
        async with backlogs(database) as found:
            with database.server.connect(database.name) as holder:
                holder.execute("BEGIN")
                holder.execute(LOCK)
                asked = [asyncio.create_task(found.over("blue", 1)) for _ in range(3)]
                await waiting(database, 1)
                database.admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE usename = 'oncommit_portal' AND wait_event_type = 'Lock'"
                )
                failed = await asyncio.gather(*asked, return_exceptions=True)
                assert all(isinstance(f, DatabaseError) for f in failed), failed
                holder.execute("ROLLBACK")
            return await found.over("blue", 1)

    assert asyncio.run(scene()) is False


def test_a_look_that_is_too_old_is_not_joined() -> None:
    """A slow server makes no answer older than is promised."""

    async def scene() -> list[int]:
        looks = SharedLooks[str, int](0.1)
        gates = [asyncio.Event(), asyncio.Event()]
        begun: list[int] = []

        async def look() -> int:
            number = len(begun)
            begun.append(number)
            await gates[number].wait()
            return number

        first = asyncio.create_task(looks.at("k", look))
        second = asyncio.create_task(looks.at("k", look))
        await asyncio.sleep(0.11)  # what is tested is the passing of this time
        third = asyncio.create_task(looks.at("k", look))
        await asyncio.sleep(0)
        gates[0].set()
        assert await first == await second == 0
        fourth = asyncio.create_task(looks.at("k", look))
        await asyncio.sleep(0)
        gates[1].set()
        return [await third, await fourth]

    assert asyncio.run(scene()) == [1, 1]


@pytest.mark.parametrize("leaver", [0, 1])
def test_one_who_leaves_takes_the_look_from_nobody(leaver: int) -> None:
    async def scene() -> str:
        looks = SharedLooks[str, str](60)
        gate = asyncio.Event()

        async def look() -> str:
            await gate.wait()
            return "seen"

        askers = [asyncio.create_task(looks.at("k", look)) for _ in range(2)]
        await asyncio.sleep(0)
        askers[leaver].cancel()
        gate.set()
        return await askers[1 - leaver]

    assert asyncio.run(scene()) == "seen"
