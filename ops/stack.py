"""The whole local stack: PostgreSQL and Valkey (unless the user has their own), portals, a relay, workers.

    with Stack(plan, say=print) as stack:   # starts in order, each waited for; stops in reverse
        stack.serve()                       # restarts what dies, until KeyboardInterrupt

Whatever way the launcher ends, its guardian leaves no process behind.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from db.operate import TokenOrder, create_team, store_token
from ops import reach
from ops.account import servers_account
from ops.binaries import choose_postgres, valkey_program
from ops.guardian import Guardian
from ops.home import Home
from ops.ports import LOOPBACK, free_port
from ops.postgres import PostgresPlan, PostgresServer
from ops.reach import Reach
from ops.services import Service, Services, fresh_log
from ops.signals import undisturbed
from ops.stale import check_own_servers
from ops.tending import Tended, Tending
from ops.valkey import ValkeyPlan, ValkeyServer
from runtime.settings import settings

TEAM = "demo"
WHO = "oncommit up"
EACH_ITS_OWN = ("ONCOMMIT_DATABASE_URL", "ONCOMMIT_REPLICATION_URL", "ONCOMMIT_HEALTH_", "ONCOMMIT_PORT")


@dataclass(frozen=True, slots=True)
class StackPlan:
    """What to start, and where.

    Attributes:
        home: the stack's folder.
        portals, workers: how many processes; threads: of each worker.
        postgres: settings of the embedded server on top of the safe defaults.

    """

    home: Path = Path(".oncommit")
    portals: int = 1
    workers: int = 1
    threads: int = 4
    postgres: dict[str, str] = field(default_factory=dict[str, str])


class Stack:
    """The running stack.

    Attributes:
        home: its folder.
        postgres, valkey: the embedded servers; None where the user's own are used.
        reach: connection strings of every role; valid once started.
        redis_url: where Redis is.
        portals: base URLs.
        team, token: a team and its token, ready for use.
        services: portals, relay and workers.

    """

    def __init__(self, plan: StackPlan, say: Callable[[str], None] = lambda _: None) -> None:
        self.plan = plan
        self.say = say
        settings()  # a wrong variable is told before anything is started, and `..._FILE` is read
        self.account = servers_account()
        self.home = Home(plan.home, self.account)
        self.postgres: PostgresServer | None = None
        self.valkey: ValkeyServer | None = None
        self.reach = Reach("", {})
        self.redis_url = ""
        self.portals: list[str] = []
        self.team, self.token = TEAM, ""
        self.services: list[Service] = []
        self._guardian: Guardian | None = None
        self._tending = Tending([], say)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything, in order, and wait until it is ready.

        Raises:
            StaleVariablesError: a variable names a server that is not there.
            HomeError: another stack runs in this folder.
            NoServerError, NoAccountError: a server cannot be had here.
            StartError: a process did not become ready.
            MigrationError, DatabaseError, psycopg.Error: the database was not brought up to date.

        """
        check_own_servers()
        guardian = self._guardian = Guardian(keep=(self.home.lock(),))
        if explanation := self.home.explanation():
            self.say(explanation)
        self._start_valkey(guardian)
        self._start_postgres(guardian)
        self._start_services(guardian)
        self._make_team()

    def _start_postgres(self, guardian: Guardian) -> None:
        if url := reach.own("DATABASE_URL"):
            self.say("PostgreSQL: your own (ONCOMMIT_DATABASE_URL)")
            self.reach = reach.of_own_database(url)
            return
        binaries = choose_postgres(self.account, self.home.servers / "binaries")
        plan = PostgresPlan(
            binaries=binaries,
            # A cluster belongs to one major version: another gets a folder of its own.
            datadir=self.home.servers / f"postgres-{binaries.major}",
            password=self.home.secret(f"postgres-{binaries.major}"),
            log=fresh_log(self.home.logs, "postgres"),
            account=self.account,
            settings=self.plan.postgres,
        )
        self.postgres = PostgresServer(plan, guardian)
        self.postgres.start()
        decoder = "wal2json" if binaries.has_wal2json else "pgoutput"
        self.say(f"PostgreSQL {binaries.major} ({decoder}) on {LOOPBACK}:{self.postgres.port}")
        self.reach = reach.of_embedded_database(self.postgres, self.home)

    def _start_valkey(self, guardian: Guardian) -> None:
        if url := reach.own("REDIS_URL"):
            self.say("Redis: your own (ONCOMMIT_REDIS_URL)")
            self.redis_url = url
            return
        plan = ValkeyPlan(
            program=valkey_program(self.account, self.home.servers / "binaries"),
            datadir=self.home.servers / "valkey",
            log=fresh_log(self.home.logs, "valkey"),
            account=self.account,
        )
        self.valkey = ValkeyServer(plan, guardian)
        self.valkey.start()
        self.redis_url = self.valkey.url
        self.say(f"Valkey on {LOOPBACK}:{self.valkey.port}")

    def environment(self) -> dict[str, str]:
        """Return the environment of every process, without the database URL, which differs by role."""
        # A health port or file that was meant for one process cannot serve them all.
        env = {name: value for name, value in os.environ.items() if not name.startswith(EACH_ITS_OWN)}
        env["ONCOMMIT_REDIS_URL"] = self.redis_url
        # Absolute: the folder is shared, and a process may be started from another one.
        env["ONCOMMIT_BLOBS"] = os.path.abspath(os.environ.get("ONCOMMIT_BLOBS") or self.home.blobs)  # noqa: PTH100
        if self.postgres is not None and not env.get("ONCOMMIT_SIMULATION"):
            env["ONCOMMIT_SIMULATION"] = "1"
        return env

    def _start_services(self, guardian: Guardian) -> None:
        make = Services(self.home, guardian, self.reach.parts, self.environment())
        fixed = reach.own("PORT")
        ports = [int(fixed) if fixed and n == 0 else free_port() for n in range(self.plan.portals)]
        self.portals = [f"http://{LOOPBACK}:{port}" for port in ports]
        grace_seconds = settings().shutdown_grace_seconds
        self.services = [
            make.relay("relay", self.reach.replication),
            *(
                make.worker(f"worker-{n + 1}", self.plan.threads, grace_seconds)
                for n in range(self.plan.workers)
            ),
            *(make.portal(f"portal-{n + 1}", port) for n, port in enumerate(ports)),
        ]
        # Started together and waited for one by one: each needs seconds for its imports.
        for service in self.services:
            service.start()
        for service in self.services:
            service.wait()
        self.say(f"{', '.join(service.name for service in self.services)}: ready")
        self._tending = Tending(self._tended(), self.say)

    def _tended(self) -> list[Tended]:
        servers = (self.postgres, self.valkey)
        named = [(server.process.name, server) for server in servers if server is not None]
        return [
            *(Tended(name, partial(_runs, server), server.start) for name, server in named),
            *(Tended(service.name, partial(_runs, service), service.start) for service in self.services),
        ]

    def _make_team(self) -> None:
        operator = self.reach.parts["operator"]
        create_team(operator, self.team, who=WHO)
        # Kept between runs, so that a client's configuration stays valid; a new database learns it again.
        self.token = f"oc_{self.home.secret('token')}"
        store_token(operator, self.token, TokenOrder(self.team, label=WHO), who=WHO)

    def tend(self) -> list[str]:
        """Start again what has died, each no faster than its back-off allows; return the names."""
        return self._tending.run_once(time.monotonic())

    def serve(self) -> None:
        """Tend the stack until KeyboardInterrupt."""
        self._tending.run()

    def stop(self) -> None:
        """Stop everything in order: first what takes work, then the relay, then the servers."""
        with undisturbed():
            self._stop()

    def _stop(self) -> None:
        working = [service for service in self.services if service.name != "relay"]
        with ThreadPoolExecutor(max_workers=max(1, len(working))) as pool:
            for ended in [pool.submit(service.process.end) for service in working]:
                ended.result()
        for service in self.services:
            service.process.end()
        # The relay is gone, so its unconfirmed stream cannot hold PostgreSQL's shutdown up.
        for server in (self.valkey, self.postgres):
            if server is not None:
                server.stop()
        if self._guardian is not None:
            self._guardian.close()
        self.home.unlock()

    def pids(self) -> dict[str, int]:
        """Return the pid of every process that was started, by name."""
        servers = {"postgres": self.postgres, "valkey": self.valkey}
        found = {name: server.process.pid for name, server in servers.items() if server is not None}
        return found | {service.name: service.process.pid for service in self.services}


def _runs(one: PostgresServer | ValkeyServer | Service) -> bool:
    return one.process.running
