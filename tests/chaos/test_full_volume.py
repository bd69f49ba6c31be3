"""PostgreSQL's data volume is full while renders run: what is rendered is kept until there is room again."""

import random
import subprocess
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import psycopg
import pytest

from ops.guardian import Guardian
from support.full_disk import Disk, wanted
from support.kinds import local_kinds
from support.postgres import Server, build_server, prepare
from support.waiting import eventually

from .building import world_on
from .scenario import Scenario
from .settings import LOST_SECONDS
from .steady import BOUND_SECONDS, begun, pids, rendered_once
from .world import World

VOLUME = 300_000_000
FILL_EVERY_SECONDS = 0.05
#: The first ends when the volume is full, be it slowly filled; the time limit is 20 s.
RENDER_SECONDS = 10
#: Longer than a lost worker is given.
FULL_SECONDS = 3 * LOST_SECONDS
#: What a finish says that finds no room for its event.
NO_ROOM = "finishes wait for the database: 53100 DiskFull"
#: Nothing but the table's own pages is to decide; rows fill them whole, neither shortened nor put elsewhere.
ONLY_PAGES = """
ALTER TABLE job_events DROP CONSTRAINT job_events_pkey, ALTER COLUMN data SET STORAGE PLAIN
"""
#: It takes room that is left in the table's pages: where sessions contend, PostgreSQL adds dozens at a time.
NO_FOREIGN_KEYS = "SET session_replication_role = replica"
TAKE_SOME = """
INSERT INTO job_events (job, seq, type, at, who, data)
VALUES (gen_random_uuid(), 1, 'accepted', now(), 'test', jsonb_build_object('x', repeat('x', %s)))
"""
#: Characters in such a row.
SIZES = (7000, 1800, 600, 100, 1)


@contextmanager
def small_server(folder: Path, guardian: Guardian) -> Generator[tuple[Server, Disk]]:
    """Start a server on a small volume, its WAL elsewhere: it can be read when it cannot be written."""
    room = Disk(folder / "data", VOLUME)
    try:
        server = build_server(local_kinds()[0], room.folder, guardian, {"autovacuum": "off"})
        server.start()
        server.stop()
        wal = room.folder / f"postgres-{server.kind}" / "pg_wal"
        subprocess.run(["cp", "-a", wal, folder / "wal"], check=True)
        subprocess.run(["rm", "-r", wal], check=True)
        wal.symlink_to(folder / "wal")
        server.start()
        try:
            prepare(server)
            yield server, room
        finally:
            server.stop()
    finally:
        room.close()


def no_room(world: World) -> bool:
    """Tell whether a worker has a render that it could not write down."""
    return any(NO_ROOM in worker.running.log_text() for worker in world.of("worker"))


def refused(scenario: Scenario) -> bool:
    """Tell whether somebody heard 503; nobody waited for it longer than the portal may take."""
    answers = scenario.history.of("answer")
    assert max(answer["seconds"] for answer in answers) < BOUND_SECONDS
    return any(answer["status"] == 503 for answer in answers)


@contextmanager
def full(world: World, room: Disk) -> Generator[None]:
    """Leave no room for the block, also where PostgreSQL removes a file of its own; write both down."""
    world.admin.execute(ONLY_PAGES)
    world.history.add("inject", fault="volume-full", interrupts=False, touches=["postgres"])
    over, there_is_none = Event(), Event()

    def keep() -> None:
        # Not rolled back before the end: the room of rows that are rolled back is anybody's.
        with world.server.connect(world.database.name) as conn, conn.transaction(force_rollback=True):
            conn.execute(NO_FOREIGN_KEYS)
            while not over.wait(FILL_EVERY_SECONDS):
                room.fill()
                for size in SIZES:
                    with suppress(psycopg.errors.DiskFull):
                        while True:
                            with conn.transaction():
                                conn.execute(TAKE_SOME, [size])
                there_is_none.set()

    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(keep)
        try:
            assert there_is_none.wait(30)
            yield
        finally:
            over.set()
            kept.result()
            room.free()
            world.history.add("heal", fault="volume-full")


@pytest.mark.timeout(300)
@pytest.mark.skipif(not wanted(), reason="told in the session's header")
def test_a_full_data_volume_costs_neither_a_render_nor_an_attempt(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="oncommit-full-") as found, Guardian() as guardian:
        folder = Path(found)
        folder.chmod(0o711)
        with (
            small_server(folder, guardian) as (server, room),
            world_on(server, tmp_path, folder, guardian) as world,
        ):
            world.start()
            scenario = Scenario(world, random.Random(0))
            scenario.begin()
            running, batch = pids(world), begun(scenario, seconds=RENDER_SECONDS)
            with full(world, room), world.http() as http:
                eventually(
                    lambda: no_room(world), timeout=60, describe="a render that could not be written down"
                )
                eventually(lambda: refused(scenario), describe="a job that could not be accepted")
                world.pass_time(FULL_SECONDS)
                seen = http.get(f"/v1/batches/{batch}", headers=world.bearer("capped"))
            assert seen.status_code == 200
            scenario.end()
            rendered_once(world, batch)
            assert pids(world) == running
