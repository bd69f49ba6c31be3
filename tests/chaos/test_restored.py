"""A backup of the database is put back: what Redis holds is of a life that is gone."""

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.waiting import eventually

from .scenario import Scenario
from .world import World

#: A message whose row never comes is given up after a minute, and only then is nothing left.
SETTLE_SECONDS = 120.0
GAVE_UP = re.compile(r'^claims_total\{answer="gave_up"\} ([0-9.]+)', re.MULTILINE)
#: By its column: the scenario that makes the table anew, in this same database, leaves another name behind.
LAST_ID = "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('outbox', 'id')::regclass), 0)"


def _messages(world: World) -> int:
    return int(world.valkey.client.hlen("oncommit:previews:messages"))  # type: ignore[arg-type]


def _given_up(world: World) -> float:
    pages = [worker.running.page("/metrics") for worker in world.of("worker")]
    return sum(float(found) for page in pages for found in GAVE_UP.findall(page))


def _last_id(world: World) -> int:
    row = world.admin.execute(LAST_ID).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.timeout(400)
def test_after_a_restore_stale_messages_are_dropped_and_every_new_job_runs(
    world: World, tmp_path: Path
) -> None:
    backup, row = tmp_path / "backup", world.admin.execute("SHOW data_directory").fetchone()
    assert row is not None
    datadir = Path(row[0])
    world.server.stop()
    subprocess.run(["cp", "-a", str(datadir), str(backup)], check=True)
    world.server.start()
    before = Scenario(world, random.Random(1))
    before.begin()
    world.pause("paused", paused=True)
    before.post("paused", *[{}] * 20, batch=True)
    eventually(lambda: _messages(world) >= 20, describe="the messages of jobs that will be gone")
    before.traffic.abandon()
    most = _last_id(world)
    world.server.kill()
    shutil.rmtree(datadir)
    subprocess.run(["cp", "-a", str(backup), str(datadir)], check=True)
    world.server.start()
    assert _last_id(world) < most, "ids repeat from here on"
    after = Scenario(world, random.Random(2))
    after.expect_interruptions()  # a render of the life that is gone may have been running
    after.begin()
    after.post("paused", *[{}] * 20, batch=True)
    after.answered(3)
    after.end(SETTLE_SECONDS)
    assert _given_up(world) > 0, "stale messages are counted"
