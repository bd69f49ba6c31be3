"""The world: a PostgreSQL, a Valkey, portal, two relays, two workers, and a proxy on each of their links.

Whatever ends is started again, as a supervisor would, unless a fault holds it down; an end that no
fault accounts for is written into the history.
"""

import threading
from pathlib import Path
from typing import Any

import httpx
import psycopg

from ops.guardian import Guardian
from support.postgres import Database
from support.processes import Processes
from support.proxy import Proxy
from support.team import token_for
from support.valkey import LocalValkey

from . import small_disk
from .history import History
from .member import Member, Part
from .settings import SETTINGS, TEAMS

LOOK_SECONDS = 0.1

DOCUMENTS = 10  # of each team
ANSWER_SECONDS = 4.0  # a client's patience with one try

SET_LANE = "SELECT set_lane(%s, %s::jsonb, 'chaos', 'limits of the run')"
PAUSE = "SELECT pause_lane(%s, %s, 'chaos', 'a fault')"


class World:
    """Everything that runs, and the hands on it."""

    def __init__(self, folder: Path, database: Database, valkey: LocalValkey, guardian: Guardian) -> None:
        self.folder = folder
        self.database = database
        self.server = database.server
        self.valkey = valkey
        self.processes = Processes(folder, guardian, database, valkey)
        self.store_is_tmpfs = small_disk.mount(self.processes.blobs)
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

    def http(self, patience: float = ANSWER_SECONDS) -> httpx.Client:
        """Return a client of the portal that waits for an answer to each try so long, seconds."""
        door = self.portal.door
        url = self.portal.running.url if door is None else f"http://127.0.0.1:{door.port}"
        return httpx.Client(base_url=url, timeout=patience, trust_env=False)

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
        open_to_clients = part == "portal" and not self._direct
        door = Proxy(int(running.env["ONCOMMIT_PORT"])) if open_to_clients else None
        self.members.append(Member(name, part, running, postgres, redis, door))

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
            for link in (member.postgres, member.redis, member.door):
                if link is not None:
                    link.close()
        if self._admin is not None:
            self._admin.close()
        self.history.close()
        if self.store_is_tmpfs:
            small_disk.unmount(self.processes.blobs)


def _through(database_url: str, redis: Proxy | None) -> dict[str, str]:
    found = {"ONCOMMIT_DATABASE_URL": database_url}
    return found | ({"ONCOMMIT_REDIS_URL": f"redis://127.0.0.1:{redis.port}/0"} if redis else {})
