"""The stack's own processes: how portal, relay and workers are started, and how their health is asked."""

import http.client
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ops.ending import Manner
from ops.guardian import Guardian
from ops.home import Home
from ops.ports import LOOPBACK
from ops.processes import Command, Process
from ops.reach import Part

# What Python is given; a worker's number of threads follows.
PORTAL = ("-m", "portal")
RELAY = ("-m", "relay")
WORKER = ("-m", "dramatiq", "actors:setup", "-p", "1", "-t")
# Python and its imports take seconds on a busy machine; the relay may wait for a slot besides.
READY_SECONDS = 60.0
PROBE_SECONDS = 2.0
OK = 200
PORTAL_GRACE_SECONDS = 15.0
RELAY_GRACE_SECONDS = 10.0
# On top of the grace that a worker gives its renders.
WORKER_GRACE_SECONDS = 10.0


def answers(url: str, path: str) -> bool:
    """Tell whether GET `path` below the base `url` answers 200 within 2 s."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or LOOPBACK, parts.port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Service:
    """A process of the stack and how to ask whether it is ready."""

    process: Process
    ready: Callable[[], bool]
    before: Callable[[], None]

    @property
    def name(self) -> str:
        """Return its name: `portal-1`, `relay`, `worker-2`."""
        return self.process.name

    def start(self) -> None:
        """Start it, without waiting for it."""
        self.before()
        self.process.start()

    def wait(self) -> None:
        """Return when it is ready.

        Raises:
            StartError: it ended, or was not ready in time.

        """
        self.process.wait_until(self.ready, READY_SECONDS)


class Services:
    """Makes the stack's services from one environment."""

    def __init__(
        self, home: Home, guardian: Guardian, databases: Mapping[Part, str], env: Mapping[str, str]
    ) -> None:
        self._home = home
        self._guardian = guardian
        self._databases = databases
        self._env = dict(env)

    def portal(self, name: str, port: int) -> Service:
        """Return a portal on a loopback port."""
        url = f"http://{LOOPBACK}:{port}"
        env = {"ONCOMMIT_HOST": LOOPBACK, "ONCOMMIT_PORT": str(port)}
        process = self._process(name, "portal", PORTAL, env, PORTAL_GRACE_SECONDS)
        return Service(process, lambda: answers(url, "/readyz"), lambda: None)

    def relay(self, name: str, replication: str | None) -> Service:
        """Return a relay; `replication` is for its stream when its own URL will not do."""
        env = {"ONCOMMIT_REPLICATION_URL": replication} if replication else {}
        return self._with_health_file(name, "relay", RELAY, env, RELAY_GRACE_SECONDS)

    def worker(self, name: str, threads: int, grace_seconds: float) -> Service:
        """Return a Dramatiq process with one worker process of so many threads."""
        arguments = (*WORKER, str(threads))
        return self._with_health_file(name, "worker", arguments, {}, grace_seconds + WORKER_GRACE_SECONDS)

    def _with_health_file(
        self, name: str, part: Part, arguments: tuple[str, ...], env: dict[str, str], grace_seconds: float
    ) -> Service:
        file = self._home.logs / f"{name}.url"

        def ready() -> bool:
            return file.exists() and answers(file.read_text(encoding="utf-8").strip(), "/readyz")

        env = {**env, "ONCOMMIT_HEALTH_FILE": os.fspath(file)}
        process = self._process(name, part, arguments, env, grace_seconds)
        # What an earlier process wrote leads nowhere, or worse, to somebody else's port.
        return Service(process, ready, lambda: file.unlink(missing_ok=True))

    def _process(
        self, name: str, part: Part, arguments: tuple[str, ...], env: Mapping[str, str], grace_seconds: float
    ) -> Process:
        command = Command(
            name=name,
            argv=[sys.executable, *arguments],
            log=fresh_log(self._home.logs, name),
            env={**self._env, "ONCOMMIT_DATABASE_URL": self._databases[part], **env},
            manner=Manner(((15, grace_seconds),)),
        )
        return Process(command, self._guardian)


def fresh_log(folder: Path, name: str) -> Path:
    """Return a process's log file; what the run before wrote moves to `<name>.log.1`."""
    log = folder / f"{name}.log"
    if log.exists():
        log.replace(folder / f"{name}.log.1")
    return log
