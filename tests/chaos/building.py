"""Building worlds: with a server of its own, or on one that others share; and taking them down."""

import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.account import servers_account
from ops.guardian import Guardian
from support.kinds import find
from support.postgres import Server, build_server, new_database, prepare
from support.valkey import LocalValkey

from .world import World


@contextmanager
def world_on(server: Server, folder: Path, servers_folder: Path, guardian: Guardian) -> Generator[World]:
    """Make a world on a running, prepared server; it is not started."""
    valkey = LocalValkey(servers_folder, guardian)
    valkey.start()
    try:
        with new_database(server) as database:
            # A clone's sequences are as the template left them, and PostgreSQL takes the next 32 numbers for
            # logged already: a crash before the next checkpoint would turn them back.
            database.admin.execute("CHECKPOINT")
            world = World(folder, database, valkey, guardian)
            try:
                yield world
            finally:
                world.close()
    finally:
        valkey.close()


@contextmanager
def server_of_its_own(at: Path | None = None, **settings: str) -> Generator[tuple[Server, Guardian]]:
    """Start a prepared server: wal2json's if this machine has it, else the embedded one.

    `settings` are PostgreSQL's; its cluster is made in `at`, else in a folder that is removed.
    """
    folder = at or Path(tempfile.mkdtemp(prefix="oncommit-chaos-"))
    folder.chmod(0o711)
    try:
        with Guardian() as guardian:
            found = find("system", servers_account(), folder / "look")
            server = build_server("system" if found else "embedded", folder, guardian, settings)
            server.start()
            try:
                prepare(server)
                yield server, guardian
            finally:
                server.stop()
    finally:
        if at is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def whole_world(folder: Path, at: Path | None = None, **settings: str) -> Generator[World]:
    """Make a world with a server of its own; `at` and `settings` as in `server_of_its_own`."""
    with (
        server_of_its_own(at, **settings) as (server, guardian),
        tempfile.TemporaryDirectory(prefix="oncommit-chaos-valkey-") as servers_folder,
    ):
        Path(servers_folder).chmod(0o711)
        with world_on(server, folder, Path(servers_folder), guardian) as world:
            yield world


def logs(world: World) -> Iterator[tuple[str, str]]:
    """Yield (process, its whole log, of every start)."""
    for member in world.members:
        yield member.name, member.running.process.command.log.read_text(encoding="utf-8", errors="replace")
