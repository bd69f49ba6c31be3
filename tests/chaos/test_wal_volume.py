"""No relay runs any more, and PostgreSQL lies on a small volume: the slot's WAL is bounded and told of."""

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from ops.commands.doctor import findings_of
from ops.diagnosis import Finding, Level
from runtime.settings import Settings
from support.full_disk import Disk, wanted

from .building import whole_world
from .scenario import Scenario
from .world import World

VOLUME = 1 << 30
#: Of the volume: what the slot may keep, so that the rest of the database and its next checkpoint fit.
KEEP_MB = 256
ALARM_AT = 0.6
NOISE = "SELECT pg_logical_emit_message(false, 'noise', repeat(md5(random()::text), 32768))"  # 1 MB
SLOT = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"


def used(folder: Path) -> float:
    """Return how full the volume is, of 1."""
    found = shutil.disk_usage(folder)
    return found.used / found.total


@contextmanager
def without_relays(world: World) -> Iterator[None]:
    """End the relays and hold them down."""
    relays = world.of("relay")
    for relay in relays:
        relay.hand.acquire()
        relay.expected = True
        relay.running.kill()
    try:
        yield
    finally:
        for relay in relays:
            relay.hand.release()


def doctor_on_the_slot(world: World) -> Finding:
    """Return what `oncommit doctor` says of the slot."""
    given = Settings(
        database_url=SecretStr(world.database.url()),
        redis_url=SecretStr(world.valkey.url),
        slot=world.database.slot,
    )
    return next(found for found in findings_of(given) if found.check == "slot")


@pytest.fixture
def volume() -> Iterator[Path]:
    """Make a volume of 1 GB that the servers' account can reach."""
    with tempfile.TemporaryDirectory(prefix="oncommit-volume-") as folder:
        Path(folder).chmod(0o711)
        disk = Disk(Path(folder, "pg"), VOLUME)
        yield disk.folder
        disk.close()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(not wanted(), reason="told in the session's header")
def test_a_relay_that_is_gone_fills_no_volume_and_loses_no_job(volume: Path, tmp_path: Path) -> None:
    settings = {
        "max_slot_wal_keep_size": f"{KEEP_MB}MB",
        "max_wal_size": "128MB",
        "min_wal_size": "32MB",
        "checkpoint_timeout": "30s",
    }
    with whole_world(tmp_path, volume, **settings) as world:
        world.start()
        scenario = Scenario(world, random.Random(20))
        scenario.begin()
        full: list[float] = []
        with without_relays(world):
            scenario.answered(1)
            warned = doctor_on_the_slot(world)
            assert warned.level is Level.WARN
            assert "NOT READ" in warned.detail
            assert "start the relay" in warned.advice
            assert used(volume) < ALARM_AT, "told before it matters"
            for n in range(VOLUME >> 20):
                world.admin.execute(NOISE)
                full.append(used(volume))
                if n % 256 == 0:
                    scenario.answered(1)
            row = world.admin.execute(SLOT, [world.database.slot]).fetchone()
            assert row == ("lost",), "it was given up for the volume's sake"
            lost = doctor_on_the_slot(world)
            assert lost.level is Level.FAIL
            assert "losing no job" in lost.advice
            scenario.answered(1)
        assert max(full) < 0.9, f"a volume's worth of WAL was written: {max(full):.0%} full at most"
        scenario.end(settle_seconds=120)
        assert "PANIC" not in world.server.log_text()
