"""The world: a PostgreSQL, a Valkey, portal, two relays, two workers, and a proxy on each of their links.

Whatever ends is started again, as a supervisor would, unless a fault holds it down; an end that no
fault accounts for is written into the history.
"""

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg

from ops.account import servers_account
from ops.guardian import Guardian
from support.postgres import Database, Server, build_server, find, new_database, prepare
from support.processes import Processes
from support.proxy import Proxy
from support.team import token_for
from support.valkey import Valkey

from .history import History
from .member import Member, Part

LOOK_SECONDS = 0.1
BLOBS_MB = 200  # room for 4,000 previews, and filled by a fault within a second

DOCUMENTS = 10  # of each team
ANSWER_SECONDS = 4.0  # a client's patience with one try

#: Shorter than in production, so that a run sees many losses; still several heartbeats (0.5 s).
LOST_SECONDS = 4.0
GRACE_SECONDS = 1.0
SETTINGS = {
    "ONCOMMIT_WORKER_LOST_SECONDS": str(LOST_SECONDS),
    "ONCOMMIT_SHUTDOWN_GRACE_SECONDS": str(GRACE_SECONDS),
    "ONCOMMIT_BACKOFF_BASE_MS": "200",
    "ONCOMMIT_BACKOFF_CAP_MS": "2000",
    "ONCOMMIT_AUDIT_SECONDS": "5",
    "ONCOMMIT_RENDER_TIMEOUT_SECONDS": "20",
    "ONCOMMIT_LOG_LEVEL": "info",
}
#: Teams and their limits; `paused` is the one that faults pause.
TEAMS: dict[str, dict[str, Any]] = {
    "free": {},
    "capped": {"max_running": 2},
    "heavy": {"weight": 3},
    "rated": {"rate_per_second": 20, "burst": 5},
    "paused": {},
}
SET_LANE = "SELECT set_lane(%s, %s::jsonb, 'chaos', 'limits of the run')"
PAUSE = "SELECT pause_lane(%s, %s, 'chaos', 'a fault')"


class World:
    """Everything that runs, and the hands on it."""

    def __init__(self, folder: Path, database: Database, valkey: Valkey, guardian: Guardian) -> None:
        self.folder = folder
        self.database = database
        self.server = database.server
        self.valkey = valkey
        self.processes = Processes(folder, guardian, database, valkey)
        self.store_is_tmpfs = _mount(self.processes.blobs)
        self.members: list[Member] = []
        self.tokens: dict[str, str] = {}
        self.documents: dict[str, list[str]] = {}
        self.history = History(folder / "history.jsonl")
        self._histories = 1
        self._direct = False
        self._admin: psycopg.Connection | None = None
        self._stopped = threading.Event()
        self._tender = threading.Thread(target=self._tend, name="tender", daemon=True)

    # -- the hands

    @property
    def admin(self) -> psycopg.Connection:
        """The superuser's autocommit connection, a new one when the server broke the last."""
        if self._admin is not None:
            try:
                self._admin.execute("SELECT 1")
            except psycopg.Error:
                self._admin.close()
                self._admin = None
        if self._admin is None:
            self._admin = psycopg.connect(self.database.dsn(), autocommit=True, connect_timeout=5)
        return self._admin

    def of(self, part: Part) -> list[Member]:
        return [member for member in self.members if member.part == part]

    @property
    def portal(self) -> Member:
        return self.of("portal")[0]

    def active_relay(self) -> Member:
        """Return the relay that reigns, the first one if none says so."""
        relays = self.of("relay")
        return next((r for r in relays if r.role() in {"relay", "polling"}), relays[0])

    def standby_relay(self) -> Member:
        """Return the other relay."""
        active = self.active_relay()
        return next(r for r in self.of("relay") if r is not active)

    def pass_time(self, seconds: float) -> None:
        """Let it be for so long: the length of a fault, never a wait for something to have happened."""
        self._stopped.wait(seconds)

    def pause(self, team: str, *, paused: bool) -> None:
        """Pause or resume a team, and write down before and after."""
        self.history.add("pausing" if paused else "resuming", team=team)
        self.admin.execute(PAUSE, [team, paused])
        self.history.add("paused" if paused else "resumed", team=team)

    def new_history(self) -> History:
        """Begin a new history, for the next scenario in the same world."""
        self.history.close()
        self._histories += 1
        self.history = History(self.folder / f"history-{self._histories}.jsonl")
        return self.history

    # -- building it up and taking it down

    def start(
        self, *, portals: int = 1, relays: int = 2, workers: int = 2, threads: int = 2,
        direct: bool = False, **env: str,
    ) -> None:  # fmt: skip
        """Start every process and wait until it is ready; `env` goes over the world's own settings.

        `direct`: straight to the servers, not through the proxies, which are Python and slow.
        """
        self._direct = direct
        self.make_teams()
        for n in range(portals):
            self._add("portal", f"portal-{n + 1}", env)
        for n in range(relays):
            self._add("relay", f"relay-{n + 1}", env)
        for n in range(workers):
            self._add("worker", f"worker-{n + 1}", env, threads=threads)
        for member in self.members:
            member.running.wait_ready(timeout=90)
        for team in TEAMS if portals else ():
            self.documents[team] = [self.put(team, f"{team} {n}") for n in range(DOCUMENTS)]
        self._tender.start()

    def make_teams(self) -> None:
        """Make the teams, their tokens and their limits."""
        for team, limits in TEAMS.items():
            self.tokens[team], _ = token_for(self.database, team)
            if limits:
                self.database.admin.execute(SET_LANE, [team, psycopg.types.json.Jsonb(limits)])

    def http(self) -> httpx.Client:
        """Return a client of the portal that is patient for ANSWER_SECONDS with each try."""
        return httpx.Client(base_url=self.portal.running.url, timeout=ANSWER_SECONDS, trust_env=False)

    def bearer(self, team: str) -> dict[str, str]:
        """Return the header that says who asks."""
        return {"Authorization": f"Bearer {self.tokens[team]}"}

    def put(self, team: str, text: str) -> str:
        """Put a document of a team; return its digest."""
        with self.http() as http:
            answer = http.put("/v1/documents", content=text.encode(), headers=self.bearer(team))
            answer.raise_for_status()
            return str(answer.json()["document"])

    def _add(self, part: Part, name: str, env: dict[str, str], **options: Any) -> None:
        postgres = Proxy(self.server.port)
        redis = None if part == "portal" else Proxy(self.valkey.port)
        given = {
            **SETTINGS,
            **({} if self._direct else _through(self.database.url(part, port=postgres.port), redis)),
            **env,
        }
        running = getattr(self.processes, part)(ready=False, **options, **given)
        self.members.append(Member(name, part, running, postgres, redis))

    def _tend(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            for member in self.members:
                with member.hand:
                    self._look_after(member)

    def _look_after(self, member: Member) -> None:
        if member.running.running:
            return
        code, expected = member.running.returncode, member.expected or member.expects_to_die
        self.history.add("ended", process=member.name, code=code, expected=expected)
        if not expected:
            (self.folder / f"{member.name}.ended.log").write_text(member.running.process.log_tail())
        member.expected = False
        member.running.restart()

    def close(self) -> None:
        """Stop everything."""
        self._stopped.set()
        if self._tender.is_alive():
            self._tender.join(10)
        self.processes.close()
        for member in self.members:
            member.postgres.close()
            if member.redis is not None:
                member.redis.close()
        if self._admin is not None:
            self._admin.close()
        self.history.close()
        if self.store_is_tmpfs:
            subprocess.run(["umount", str(self.processes.blobs)], check=False)


def _through(database_url: str, redis: Proxy | None) -> dict[str, str]:
    found = {"ONCOMMIT_DATABASE_URL": database_url}
    return found | ({"ONCOMMIT_REDIS_URL": f"redis://127.0.0.1:{redis.port}/0"} if redis else {})


def _mount(folder: Path) -> bool:
    """Give the blobs a small disk of their own, so that it can be filled; tell whether that may be done."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={BLOBS_MB}m,mode=0755", "oncommit-chaos", str(folder)]
    try:
        return os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def world_on(server: Server, folder: Path, servers_folder: Path, guardian: Guardian) -> Generator[World]:
    """Make a world on a running, prepared server; it is not started."""
    valkey = Valkey(servers_folder, guardian)
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
def whole_world(folder: Path, **settings: str) -> Generator[World]:
    """Make a world with a server of its own: wal2json's if this machine has it, else the embedded one.

    `settings` are PostgreSQL's.
    """
    servers_folder = Path(tempfile.mkdtemp(prefix="oncommit-chaos-"))
    servers_folder.chmod(0o711)
    try:
        with Guardian() as guardian:
            found = find("system", servers_account(), servers_folder / "look")
            server = build_server("system" if found else "embedded", servers_folder, guardian, settings)
            server.start()
            try:
                prepare(server)
                with world_on(server, folder, servers_folder, guardian) as world:
                    yield world
            finally:
                server.stop()
    finally:
        shutil.rmtree(servers_folder, ignore_errors=True)


def logs(world: World) -> Iterator[tuple[str, str]]:
    """Yield (process, its whole log, of every start)."""
    for member in world.members:
        yield member.name, member.running.process.command.log.read_text(encoding="utf-8", errors="replace")
