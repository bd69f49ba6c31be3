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
from ops.ports import LOOPBACK
from ops.processes import Command
from ops.server import EmbeddedServer

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


class ValkeyServer(EmbeddedServer):
    """A running Valkey; `start` after any ending comes back on the same port.

    `settings` begins as the plan's; a change counts from the next start on.
    """

    READY_SECONDS = 30.0

    def __init__(self, plan: ValkeyPlan, guardian: Guardian) -> None:
        self.plan = plan
        self.settings = dict(plan.settings)
        super().__init__(guardian)

    def command(self) -> Command:
        """Return the server with its whole configuration as arguments."""
        plan = self.plan
        options = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "dir": os.fspath(plan.datadir),
            "save": "",
            **self.settings,
        }
        return Command(
            name="valkey",
            argv=[os.fspath(plan.program), *(word for k, v in options.items() for word in (f"--{k}", v))],
            log=plan.log,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            manner=Manner(((signal.SIGTERM, 10.0),)),
            account=plan.account,
            cwd=Path("/"),
        )

    def prepare(self) -> None:
        """Make its folder."""
        self.plan.account.own(self.plan.datadir)

    @property
    def url(self) -> str:
        """Return the URL of its database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    def start(self, *, empty: bool = False) -> None:
        """Start it as every server; `empty` removes what it had kept."""
        if empty:
            shutil.rmtree(self.plan.datadir, ignore_errors=True)
        super().start()

    def answers(self) -> bool:
        """Tell whether it serves commands now; while it loads its file it does not."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=PING_SECONDS) as client:
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"+PONG")
        except OSError:
            return False
