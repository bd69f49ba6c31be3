"""The tables locked for a minute, a slow server: 503 in bounded time, and no render and no attempt is lost.

PostgreSQL itself ends statements here, while its sessions live on and its answers come.
"""

import random
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from .scenario import Scenario
from .steady import BOUND_SECONDS, Asking, begun, pids, rendered_once
from .world import World

#: Longer than a lost worker (4 s) or a claim (a time limit of 20 s, and 30 s more) is given.
LOCKED_SECONDS = 60.0
#: So long statements wait, which may take a second; then they are served for a moment; again and again.
HELD_SECONDS, SERVED_SECONDS = 1.6, 0.4
SLOW_SECONDS = 20.0
STATEMENT_TIMEOUT = "?options=-c%20statement_timeout%3D1s"
LOCK = "LOCK jobs, outbox IN ACCESS EXCLUSIVE MODE"
CANCELLED = "canceling statement due to statement timeout"


@pytest.mark.timeout(300)
def test_tables_that_are_locked_for_a_minute_cost_neither_a_render_nor_an_attempt(
    scenario: Scenario, world: World
) -> None:
    running, batch = pids(world), begun(scenario)
    with Asking(scenario) as asking, scenario.during("tables-locked"):
        asking.begin()
        world.pass_time(LOCKED_SECONDS)
        meanwhile = [answer["status"] for answer in asking.answers]
        assert [member.running.get("/livez") for member in world.members] == [200] * len(world.members)
    assert len(meanwhile) >= LOCKED_SECONDS / BOUND_SECONDS
    assert set(meanwhile) == {503}
    scenario.end()
    assert rendered_once(world, batch) == 0
    assert pids(world) == running


@contextmanager
def locked(world: World) -> Generator[None]:
    """Hold the tables for the block, as one long statement of somebody's after another does."""
    with psycopg.connect(world.database.dsn()) as other:
        other.execute(LOCK)
        yield


@contextmanager
def frozen(world: World) -> Generator[None]:
    """Stop every process of the server for the block."""
    world.server.freeze()
    try:
        yield
    finally:
        world.server.thaw()


@contextmanager
def stuttering(world: World, held: Callable[[World], Any]) -> Generator[None]:
    """Let the server be held up for most of the block's time, a while at a time."""
    over = threading.Event()

    def stutter() -> None:
        while not over.is_set():
            with held(world):
                over.wait(HELD_SECONDS)
            over.wait(SERVED_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(stutter)
        try:
            yield
        finally:
            over.set()
        done.result()


@pytest.fixture
def hurried(world: World) -> Iterator[Scenario]:
    """Begin a scenario in which no statement of any process may take longer than a second."""
    for member in world.members:
        url = member.running.env["ONCOMMIT_DATABASE_URL"]
        member.change_to(ONCOMMIT_DATABASE_URL=url + STATEMENT_TIMEOUT)
    try:
        for member in world.members:
            member.running.wait_ready(timeout=90)
        found = Scenario(world, random.Random(0))
        found.begin()
        yield found
        found.end()
    finally:
        for member in world.members:
            member.change_to(ONCOMMIT_DATABASE_URL=member.running.env["ONCOMMIT_DATABASE_URL"])
        for member in world.members:
            member.running.wait_ready(timeout=90)


@pytest.mark.parametrize("held", [locked, frozen])
def test_a_server_so_slow_that_it_ends_statements_loses_neither_a_render_nor_an_attempt(
    hurried: Scenario, world: World, held: Callable[[World], Any]
) -> None:
    running, batch = pids(world), begun(hurried)
    ended = world.server.log_text().count(CANCELLED)
    hurried.history.add("inject", fault="slow", interrupts=False, touches=["postgres"])
    with Asking(hurried) as asking:
        with stuttering(world, held):
            asking.begin()
            world.pass_time(SLOW_SECONDS)
        hurried.history.add("heal", fault="slow")
    assert world.server.log_text().count(CANCELLED) > ended
    hurried.end()
    rendered_once(world, batch)
    assert pids(world) == running
