"""Acceptances that arrive together: one commit, and everybody's own outcome."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from db.accept import Acceptance, Decision, NewJob, Outcome
from db.errors import Refused, Unavailable
from portal.database import opened
from portal.joint_commit import HELD_UP_SECONDS, MAX_GROUP, JointCommit
from support.postgres import Database
from support.proxy import Proxy
from support.waiting import eventually

DIGEST = "sha256:" + "0" * 64
WAIT = 2.0
SESSIONS = """
SELECT count(*) FROM pg_stat_activity
 WHERE usename = 'oncommit_portal' AND datname = current_database()
"""
WAITING = SESSIONS + " AND wait_event_type = 'Lock'"
IN_HAND = SESSIONS + " AND state <> 'idle'"
COMMITS = "SELECT count(*) FROM jobs GROUP BY xmin ORDER BY min(created_at)"
KEYS = "SELECT coalesce(array_agg(key ORDER BY key), '{}') FROM requests"
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF NEW.title = 'bad' THEN RAISE EXCEPTION 'canary'; END IF; RETURN NEW; END $$;
CREATE TRIGGER t BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION refuse();
"""


@pytest.fixture(autouse=True)
def team(database: Database) -> None:
    """A team with one document, DIGEST."""
    database.admin.execute("INSERT INTO teams (id) VALUES ('acme')")
    database.admin.execute("INSERT INTO documents (team, digest, size) VALUES ('acme', %s, 3)", [DIGEST])


def asked(key: str, title: str | None = None) -> Acceptance:
    """Return what a request asks for."""
    return Acceptance("acme", key, b"f" * 32, [NewJob(uuid4(), "page", DIGEST, title, 5, None, None)])


@asynccontextmanager
async def a_joint(database: Database, port: int | None = None) -> AsyncGenerator[JointCommit]:
    """Yield the way of a portal to the database, or to the proxy at `port`."""
    async with opened(database.url("portal", port)) as way:
        joint = JointCommit(way)
        yield joint
        await joint.close()


def count(database: Database, query: str) -> int:
    """Return the one number of a query."""
    row = database.admin.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0


@asynccontextmanager
async def under_way(
    database: Database, joint: JointCommit, *wanted: Acceptance, wait: float = WAIT
) -> AsyncGenerator[list[asyncio.Task[Decision]]]:
    """Keep a first group of one at the database for the block; yield its task, and those of the others."""
    with database.server.connect(database.name) as holder:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE outbox IN SHARE MODE")
        tasks = [asyncio.create_task(joint.accept(asked("first"), wait=WAIT))]
        await asyncio.to_thread(eventually, lambda: count(database, WAITING) == 1)
        tasks += [asyncio.create_task(joint.accept(each, wait=wait)) for each in wanted]
        await asyncio.sleep(0)  # they take their seats
        yield tasks
        holder.execute("ROLLBACK")


async def outcomes(tasks: Sequence[asyncio.Task[Decision]]) -> list[Outcome | type]:
    """Return each one's outcome, or the type of what it raised."""
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [each.outcome if isinstance(each, Decision) else type(each) for each in found]


def test_who_comes_while_a_group_is_under_way_is_the_next_one_and_groups_are_bounded(
    database: Database,
) -> None:
    async def scene() -> list[Outcome | type]:
        async with a_joint(database) as joint:
            others = [asked(f"k{n}") for n in range(MAX_GROUP + 10)]
            async with under_way(database, joint, *others) as tasks:
                pass
            return await outcomes(tasks)

    assert set(asyncio.run(scene())) == {Outcome.NEW}
    assert sorted(database.admin.execute(COMMITS).fetchall()) == [(1,), (10,), (MAX_GROUP,)]


def test_one_that_is_refused_costs_its_neighbours_nothing(database: Database) -> None:
    database.admin.execute(REFUSE)

    async def scene() -> list[Outcome | type]:
        async with a_joint(database) as joint:
            wanted = [asked("a"), asked("b", "bad"), asked("c"), asked("a")]
            async with under_way(database, joint, *wanted) as tasks:
                pass
            return await outcomes(tasks)

    # Tried alone, the second "a" is no longer one of the same call, and finds the first.
    assert asyncio.run(scene()) == [Outcome.NEW, Outcome.NEW, Refused, Outcome.NEW, Outcome.OLD]


def test_a_key_that_is_held_keeps_only_its_own_request(database: Database) -> None:
    async def scene() -> list[Outcome | type]:
        with database.server.connect(database.name) as holder:
            holder.execute("BEGIN")
            holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('acme|held', 0))")
            async with a_joint(database) as joint:
                tasks = [asyncio.create_task(joint.accept(asked(k), wait=WAIT)) for k in ("a", "held", "b")]
                return await outcomes(tasks)

    assert asyncio.run(scene()) == [Outcome.NEW, Outcome.BUSY, Outcome.NEW]


def test_one_who_leaves_takes_nobody_along(database: Database) -> None:
    async def scene() -> tuple[list[Outcome | type], int]:
        async with a_joint(database) as joint:
            async with under_way(database, joint, asked("seated"), asked("stays")) as tasks:
                tasks[0].cancel()
                tasks[1].cancel()
            found = await outcomes(tasks)
            return found, count(database, IN_HAND)

    found, in_hand = asyncio.run(scene())
    assert found == [asyncio.CancelledError, asyncio.CancelledError, Outcome.NEW]
    assert in_hand == 0
    # What was on its way is accepted, and its key finds out; what had not left yet is not.
    assert database.admin.execute(KEYS).fetchone() == (["first", "stays"],)


def test_who_cannot_leave_in_time_is_told_so_and_nothing_is_written(database: Database) -> None:
    async def scene() -> list[Outcome | type]:
        async with a_joint(database) as joint:
            async with under_way(database, joint, asked("late"), wait=0.0) as tasks:
                pass
            return await outcomes(tasks)

    assert asyncio.run(scene()) == [Outcome.NEW, Unavailable]
    assert database.admin.execute(KEYS).fetchone() == (["first"],)


def test_a_lost_reply_is_unavailable_for_each_and_the_same_keys_find_out(database: Database) -> None:
    keys = [f"k{n}" for n in range(5)]

    async def scene(proxy: Proxy) -> tuple[list[Outcome | type], list[Outcome | type]]:
        async with a_joint(database, proxy.port) as joint:
            with database.server.connect(database.name) as holder:
                holder.execute("BEGIN")
                holder.execute("LOCK TABLE outbox IN SHARE MODE")
                tasks = [asyncio.create_task(joint.accept(asked(key), wait=WAIT)) for key in keys]
                await asyncio.to_thread(eventually, lambda: count(database, WAITING) == 1)
                proxy.cut()
                lost = await outcomes(tasks)
            proxy.restore()
            await asyncio.to_thread(eventually, lambda: count(database, IN_HAND) == 0)
            found: list[Outcome | type] = [Unavailable]
            while Unavailable in found:  # the pool finds its way back
                again = [asyncio.create_task(joint.accept(asked(key), wait=WAIT)) for key in keys]
                found = await outcomes(again)
            return lost, found

    with Proxy(database.server.port) as proxy:
        lost, found = asyncio.run(scene(proxy))
    assert lost == [Unavailable] * len(keys)
    assert set(found) <= {Outcome.NEW, Outcome.OLD}
    assert len(set(found)) == 1, "a group is committed whole or not at all"
    assert database.admin.execute(KEYS).fetchone() == (keys,)


def test_two_portals_with_the_same_keys_in_their_groups_make_one_job_of_each(database: Database) -> None:
    rounds, keys = 8, 24

    async def ask(joint: JointCommit, key: str) -> Outcome:
        while True:
            decision = await joint.accept(asked(key), wait=WAIT)
            if decision.outcome is not Outcome.BUSY:
                return decision.outcome
            await asyncio.sleep(0.01)  # as the portal does: another one is deciding it

    async def scene() -> Counter[Outcome]:
        found = Counter[Outcome]()
        async with a_joint(database) as one, a_joint(database) as two:
            for number in range(rounds):
                names = [f"{number}-{n}" for n in range(keys)]
                ways = [ask(one, name) for name in names] + [ask(two, name) for name in reversed(names)]
                found += Counter(await asyncio.gather(*ways))
        return found

    assert asyncio.run(scene()) == {Outcome.NEW: rounds * keys, Outcome.OLD: rounds * keys}
    assert count(database, "SELECT count(*) FROM jobs") == rounds * keys


def test_closing_calls_back_what_is_on_its_way(database: Database) -> None:
    async def scene() -> list[Outcome | type]:
        async with a_joint(database) as joint:
            async with under_way(database, joint, asked("seated")) as tasks:
                await joint.close()
                found = await outcomes(tasks)
                await asyncio.to_thread(eventually, lambda: count(database, IN_HAND) == 0)
            return found

    assert asyncio.run(scene()) == [asyncio.CancelledError] * 2
    assert database.admin.execute(KEYS).fetchone() == ([],)


def test_nobody_leaves_any_more_while_calling_back_takes_its_time(database: Database) -> None:
    async def scene(proxy: Proxy) -> list[Outcome | type]:
        async with (
            a_joint(database, proxy.port) as joint,
            under_way(database, joint, asked("seated")) as tasks,
        ):
            proxy.slow(3 * HELD_UP_SECONDS)
            await joint.close()
            return await outcomes(tasks)

    with Proxy(database.server.port) as proxy:
        assert asyncio.run(scene(proxy)) == [asyncio.CancelledError] * 2
    assert database.admin.execute(KEYS).fetchone() == ([],)


def test_a_group_that_is_held_up_holds_up_nobody_behind_it(database: Database) -> None:
    database.admin.execute("INSERT INTO teams (id) VALUES ('other')")
    database.admin.execute("INSERT INTO documents (team, digest, size) VALUES ('other', %s, 3)", [DIGEST])
    theirs = [
        Acceptance("other", f"k{n}", b"f" * 32, [NewJob(uuid4(), "page", DIGEST, None, 5, None, None)])
        for n in range(3)
    ]

    async def scene() -> None:
        async with a_joint(database) as joint:
            with database.server.connect(database.name) as holder:
                holder.execute("BEGIN")
                holder.execute("SELECT FROM documents WHERE team = 'acme' FOR UPDATE")
                held_up = asyncio.create_task(joint.accept(asked("first"), wait=WAIT))
                await asyncio.to_thread(eventually, lambda: count(database, WAITING) == 1)
                others = await asyncio.gather(*(joint.accept(each, wait=WAIT) for each in theirs))
                assert [decision.outcome for decision in others] == [Outcome.NEW] * 3
                assert not held_up.done()
                holder.execute("ROLLBACK")
            assert (await held_up).outcome is Outcome.NEW

    asyncio.run(scene())
