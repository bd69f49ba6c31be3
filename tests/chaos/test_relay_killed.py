"""The relay dies over and over, also right after a write; and one message comes again and again."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from broker.lanes import PRIORITY_STEP, Lanes, Limit, Outgoing
from support.waiting import eventually

from .scenario import Scenario
from .world import World

NAMESPACE, QUEUE = "oncommit", "previews"
MESSAGES = f"{NAMESPACE}:{QUEUE}:messages"
OPEN = Limit("free", 0, None, 1, None, 1, paused=False)
#: 2,000 jobs at 100 a second, posted 50 at a time; 30 deaths meanwhile, each third right after a write.
BATCHES, BATCH, SECONDS = 40, 50, 20.0
DEATHS = 30


class Killer:
    """Kills whichever relay reigns, at random or within milliseconds of a write."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(9)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.deaths = 0

    @contextmanager
    def at_work(self) -> Iterator["Killer"]:
        self._thread.start()
        try:
            yield self
            self._thread.join(120)
        finally:
            self._stopped.set()
            self._thread.join(10)

    def _run(self) -> None:
        while self.deaths < DEATHS and not self._stopped.wait(self._rng.uniform(0.2, SECONDS / DEATHS)):
            if self.deaths % 3 == 0:
                self._wait_for_a_write()
            self._world.active_relay().kill()
            self.deaths += 1

    def _wait_for_a_write(self) -> None:
        """Return within a millisecond or so of the next write of any relay, or after 5 s without one."""
        client, until = self._world.valkey.client, time.monotonic() + 5.0
        before = client.hget(f"{NAMESPACE}:token", "seq")
        while client.hget(f"{NAMESPACE}:token", "seq") == before and time.monotonic() < until:
            continue


def one_message(world: World) -> Outgoing:
    """Return a message of the free team exactly as Redis holds it."""
    for name, value in world.valkey.client.hgetall(MESSAGES).items():  # type: ignore[union-attr]
        message_id, (score, body) = name.decode(), value.split(b" ", 1)
        if message_id.startswith("free|"):
            priority, intent = divmod(int(score), PRIORITY_STEP)
            return Outgoing(QUEUE, message_id, "free", priority, intent, 0, body)
    raise AssertionError("no message waits")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_thirty_deaths_of_the_relay_under_2000_jobs_start_each_once(scenario: Scenario, world: World) -> None:
    with Killer(world).at_work() as killer:
        began = time.monotonic()
        for n in range(BATCHES):
            scenario.post("free", *[{}] * BATCH, batch=True)
            world.pass_time(max(began + (n + 1) * SECONDS / BATCHES - time.monotonic(), 0))
    assert killer.deaths == DEATHS
    row = world.admin.execute("SELECT count(*) FROM jobs WHERE team = 'free'").fetchone()
    assert row is not None
    assert row[0] >= BATCHES * BATCH
    scenario.end(settle_seconds=120)


def test_the_very_same_message_sent_again_and_again_starts_its_job_once(
    scenario: Scenario, world: World
) -> None:
    lanes = Lanes(world.valkey.client, NAMESPACE)
    with scenario.during("team-paused"):
        world.pause("free", paused=True)
        try:
            scenario.post("free", {})
            eventually(lambda: world.valkey.client.hlen(MESSAGES), describe="a message that waits")
            message = one_message(world)
            for _ in range(2):
                lanes.send(message, OPEN)
        finally:
            world.pause("free", paused=False)
        job = UUID(message.message_id.split("|")[1].rsplit(".", 1)[0])
        for _ in range(2):
            lanes.send(message, OPEN)
        scenario.rendered(1)
    scenario.end()
    lanes.send(message, OPEN)  # long after it is done
    eventually(lambda: not world.valkey.client.hexists(MESSAGES, message.message_id))
    starts = [r for r in world.processes.renders() if UUID(r["job"]) == job and r["phase"] == "start"]
    assert len(starts) == 1
