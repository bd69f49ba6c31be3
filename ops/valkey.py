"""One Valkey server on a loopback port. Its content is disposable; it is kept only to make restarts cheap."""

import os
import shutil
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.account import Account
from ops.ending import Manner
from ops.guardian import Guardian
from ops.ports import LOOPBACK, free_port
from ops.processes import Command, Process, StartError

READY_SECONDS = 30.0
PORT_TRIES = 5
ADDRESS_IN_USE = "Address already in use"
PING_SECONDS = 2.0

# What `oncommit up` uses. A set of dispatches must not lose members to make room, hence noeviction; losing a
# second of writes in a crash is repaired from PostgreSQL, hence everysec.
KEPT: Mapping[str, str] = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
# What tests use: a crash loses everything.
DISPOSABLE: Mapping[str, str] = {"appendonly": "no", "maxmemory-policy": "noeviction"}


@dataclass(frozen=True, slots=True)
class ValkeyPlan:
    """What to start: the program, its folder, its log, whom it runs as, and its configuration."""

    program: Path
    datadir: Path
    log: Path
    account: Account
    settings: Mapping[str, str] = field(default_factory=lambda: dict(KEPT))


class ValkeyServer:
    """A running Valkey; `start` after any ending comes back on the same port.

    `settings` begins as the plan's; a change counts from the next start on.
    """

    def __init__(self, plan: ValkeyPlan, guardian: Guardian) -> None:
        self.plan = plan
        self.settings = dict(plan.settings)
        self._guardian = guardian
        self._answered = False
        self.port = free_port()
        self.process = self._process()

    def _process(self) -> Process:
        plan = self.plan
        options = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "dir": os.fspath(plan.datadir),
            "save": "",
            **self.settings,
        }
        argv = [os.fspath(plan.program), *(word for k, v in options.items() for word in (f"--{k}", v))]
        command = Command(
            name="valkey",
            argv=argv,
            log=plan.log,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            manner=Manner(((signal.SIGTERM, 10.0),)),
            account=plan.account,
            cwd=Path("/"),
        )
        return Process(command, self._guardian)

    @property
    def url(self) -> str:
        """Return the URL of its database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    def start(self, *, empty: bool = False) -> None:
        """Start it and wait until it serves; `empty` removes what it had kept.

        Raises:
            StartError: it does not; the message has the end of its log.

        """
        if empty:
            shutil.rmtree(self.plan.datadir, ignore_errors=True)
        self.plan.account.own(self.plan.datadir)
        for left in reversed(range(PORT_TRIES)):
            self.process = self._process()
            self.process.start()
            try:
                self.process.wait_until(self.answers, READY_SECONDS)
            except StartError:
                self.process.kill()
                if self._answered or left == 0 or ADDRESS_IN_USE not in self.process.log_text():
                    raise
                self.port = free_port()
            else:
                self._answered = True
                return

    def answers(self) -> bool:
        """Tell whether it serves commands now; while it loads its file it does not."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=PING_SECONDS) as client:
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def stop(self) -> None:
        """Shut it down in order."""
        self.process.end()

    def kill(self) -> None:
        """SIGKILL it."""
        self.process.kill()
