"""The ground: real PostgreSQL servers, one for each decoder, Valkey servers and processes, as in production.

What tests relax is undone here: every commit is on disk before it is answered, and Valkey keeps its
append-only file. All contestants of a measure stand on the same server, each in a database of its own.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import psycopg

from ops.guardian import Guardian
from support.postgres import Database, Server, build_server, new_database, prepare
from support.processes import Processes, Running
from support.valkey import LocalValkey

Decoder = Literal["wal2json", "pgoutput"]
#: Over the tests' settings; the rest is what `oncommit up` starts (ops/postgres.py) and its defaults.
PRODUCTION = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_sender_timeout": "60s",
}
#: Of every process of ours: the defaults of runtime/settings.py where the tests have others.
OURS = {"ONCOMMIT_LOG_LEVEL": "info", "ONCOMMIT_SIMULATION": "0"}
LOOK_SECONDS = 0.005
DIGEST = "sha256:" + "0" * 64
DOCUMENT = "INSERT INTO documents (team, digest, size) VALUES (%s, %s, 1) ON CONFLICT DO NOTHING"
ACCEPT = """
SELECT outcome FROM accept_jobs(%s, %s, %s, %s, false, %s::uuid[], %s::text[], %s::text[], %s::text[],
                                %s::smallint[], %s::int[], %s::text[], NULL, 'bench')
"""
#: A twentieth of the work, for a look at whether everything runs; then nothing waits for the disk.
QUICK = 0.05
HURRIED = {"fsync": "off"}


class Ground:
    """Servers that are started when somebody stands on them first; `size` 1 is the whole work of a turn."""

    def __init__(self, folder: Path, guardian: Guardian, size: float = 1.0, *, hurried: bool = False) -> None:
        self.folder = folder
        self.guardian = guardian
        self.size = size
        self._hurried = hurried
        self.versions: dict[str, str] = {}
        self._servers: dict[str, Server] = {}

    def scaled(self, count: int, least: int = 1) -> int:
        """Return so many, or the part of them that this run's size takes."""
        return max(least, round(count * self.size))

    def server(self, decoder: Decoder) -> Server:
        """Return the server whose relay uses this decoder.

        Raises:
            AssertionError: this machine has none, as one without wal2json.

        """
        if decoder not in self._servers:
            kind: Literal["system", "embedded"] = "system" if decoder == "wal2json" else "embedded"
            settings = PRODUCTION | (HURRIED if self._hurried else {})
            server = build_server(kind, self.folder, self.guardian, settings)
            server.start()
            prepare(server)
            self._servers[decoder] = server
            with server.connect() as conn:
                major, minor = divmod(conn.info.server_version, 10_000)
                self.versions[decoder] = f"PostgreSQL {major}.{minor} with {decoder}"
        return self._servers[decoder]

    def program(self, decoder: Decoder, name: str) -> str:
        """Return the path of a client program of that server, such as pgbench."""
        plan = self.server(decoder).host._postgres.plan  # noqa: SLF001 -- a LocalHost by construction
        return os.fspath(plan.binaries.folder / name)

    @contextmanager
    def database(self, decoder: Decoder = "wal2json") -> Generator[Database]:
        """Make a migrated database."""
        with new_database(self.server(decoder)) as found:
            yield found

    @contextmanager
    def valkey(self) -> Generator[LocalValkey]:
        """Start a Valkey that keeps an append-only file, as `oncommit up` and the containers do."""
        found = LocalValkey(self.folder, self.guardian)
        found.start()
        try:
            found.persist("everysec")
            info: Mapping[str, Any] = found.client.info("server")  # type: ignore[assignment]
            self.versions["valkey"] = f"Valkey {info.get('valkey_version') or info['redis_version']}"
            yield found
        finally:
            found.close()

    @contextmanager
    def world(self, decoder: Decoder = "wal2json") -> Generator["World"]:
        """Make a database and a Valkey of one's own, and a starter of processes on them."""
        with ExitStack() as stack:
            database = stack.enter_context(self.database(decoder))
            valkey = stack.enter_context(self.valkey())
            folder = Path(tempfile.mkdtemp(prefix="world-", dir=self.folder))
            folder.chmod(0o711)
            processes = Processes(folder, self.guardian, database, valkey)
            stack.callback(processes.close)
            yield World(database, valkey, processes)

    def close(self) -> None:
        """Stop the servers."""
        for server in self._servers.values():
            server.stop()


@dataclass(frozen=True)
class World:
    """A contestant's own database, Valkey and processes."""

    database: Database
    valkey: LocalValkey
    processes: Processes

    @property
    def admin(self) -> psycopg.Connection:
        """Return the superuser's autocommit connection."""
        return self.database.admin

    def team(self, team: str = "acme") -> str:
        """Make a team with one document, whose bytes are in the store."""
        self.admin.execute("SELECT create_team(%s, 'bench')", [team])
        self.admin.execute(DOCUMENT, [team, DIGEST])
        path = Path(self.processes.blobs, "00", "0" * 64)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"bench")
        return team

    def accept(
        self, team: str = "acme", count: int = 1, *, simulate: Mapping[str, Any] | None = None
    ) -> list[UUID]:
        """Commit so many jobs of a team in one transaction, as the portal does."""
        ids = [uuid4() for _ in range(count)]
        simulated = json.dumps(dict(simulate)) if simulate else None
        rows = (
            ["page"] * count, [DIGEST] * count, [None] * count, [5] * count, [5] * count, [simulated] * count,
        )  # fmt: skip
        batch = uuid4() if count > 1 else None
        row = self.admin.execute(ACCEPT, [team, str(uuid4()), b"f" * 32, batch, ids, *rows]).fetchone()
        assert row == ("new",), row
        return ids

    def relay(self, *, ready: bool = True, **env: str) -> Running:
        """Start a relay; `ready`: and wait until it publishes."""
        return self.processes.relay(ready=ready, **{**OURS, **env})

    def python(self, module: str, *argv: str, **env: str) -> Running:
        """Start `python -m module argv...`."""
        return self.processes.start(module.rpartition(".")[2], [sys.executable, "-m", module, *argv], env)

    def in_redis(self, queue: str = "previews") -> int:
        """Return how many messages of ours Redis holds."""
        return int(self.valkey.client.hlen(f"oncommit:{queue}:messages"))  # type: ignore[arg-type]

    def number(self, query: str, values: Sequence[Any] = ()) -> float:
        """Return the one number of a query."""
        row = self.admin.execute(query, values).fetchone()  # type: ignore[call-overload]
        return float(row[0]) if row and row[0] is not None else 0.0


def until(condition: Callable[[], Any], limit: float, *, every: float = LOOK_SECONDS) -> float:
    """Wait until the condition holds; return how long that took, seconds.

    Raises:
        TimeoutError: longer than `limit` seconds.

    """
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > limit:
            raise TimeoutError(f"not within {limit:g} s")
        time.sleep(every)
    return time.perf_counter() - began


@contextmanager
def new_ground(size: float, *, hurried: bool = False) -> Generator[Ground]:
    """Make a ground in a folder of its own, and take it down; `hurried`: nothing waits for the disk."""
    folder = Path(tempfile.mkdtemp(prefix="oncommit-bench-"))
    folder.chmod(0o711)
    try:
        with Guardian() as guardian:
            ground = Ground(folder, guardian, size, hurried=hurried)
            try:
                yield ground
            finally:
                ground.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
