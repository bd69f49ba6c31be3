"""PgBouncer between a role and its PostgreSQL, in transaction mode, which a test may kill and start again."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from ops.account import servers_account
from ops.guardian import Guardian
from ops.ports import LOOPBACK, free_port
from ops.processes import Command, Process
from support.postgres import Database, Role
from support.waiting import eventually

#: Beside /usr/bin, where Debian puts it and where a user's PATH does not look.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
#: What docs/runbook.md says to put into pgbouncer.ini is here word for word; the rest is this test's.
SETTINGS = """\
[databases]
{name} = host={host} port={server_port} dbname={name}

[pgbouncer]
pool_mode = transaction
ignore_startup_parameters = options

listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
default_pool_size = {pool}
max_client_conn = 200
"""


def program() -> str | None:
    """Return the path of PgBouncer, None when this machine has none."""
    return shutil.which("pgbouncer", path=PATH)


def wanted() -> bool:
    """Tell whether its tests run: where it is; and in CI always, so that a missing one fails there."""
    return program() is not None or os.environ.get("CI") == "true"


def told() -> list[str]:
    """Return the sentence of the session's header when its tests are left out."""
    return [] if wanted() else ["PgBouncer: NOT ON THIS MACHINE, the tests behind it do not run"]


class Bouncer:
    """A PgBouncer with one pool of `pool` server connections for each role of `database`."""

    def __init__(
        self, folder: Path, guardian: Guardian, database: Database, *, pool: int = 3, without: str = ""
    ) -> None:
        found = program()
        assert found is not None, "pgbouncer is not on this machine: apt-get install pgbouncer"
        account = servers_account()
        account.own(folder)
        self.database = database
        self.port = free_port()
        users = folder / "users.txt"
        users.write_text(
            "".join(f'"{user}" "{password}"\n' for user, password in database.server.passwords.items()),
            encoding="utf-8",
        )
        settings = folder / "pgbouncer.ini"
        text = SETTINGS.format(
            name=database.name,
            host=LOOPBACK,
            server_port=database.server.port,
            port=self.port,
            users=users,
            pool=pool,
        )
        settings.write_text("".join(f"{line}\n" for line in text.splitlines() if line != without), "utf-8")
        for path in (users, settings):
            account.give(path)
        command = Command(
            name="pgbouncer",
            argv=[found, os.fspath(settings)],
            log=folder / "pgbouncer.log",
            env={},
            account=account,
            cwd=folder,
        )
        self.process = Process(command, guardian)

    def url(self, role: Role) -> str:
        """Return the URL by which this role comes through it."""
        return self.database.url(role, self.port)

    def start(self) -> None:
        """Start it, and return when it serves."""
        self.process.start()
        eventually(self._serves, describe=self.process.log_tail)

    def _serves(self) -> bool:
        try:
            psycopg.connect(self.url("portal"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL: its clients and its servers lose their connections at one moment."""
        self.process.kill()

    def close(self) -> None:
        """End it."""
        self.process.kill()


MakeBouncer = Callable[..., Bouncer]


@pytest.fixture
def bouncer(servers_folder: Path, guardian: Guardian, database: Database) -> Iterator[MakeBouncer]:
    """Make PgBouncers in front of the test's database; keyword arguments are those of `Bouncer`."""
    made: list[Bouncer] = []

    def make(**settings: object) -> Bouncer:
        folder = servers_folder / f"pgbouncer-{database.name}-{len(made)}"
        made.append(Bouncer(folder, guardian, database, **settings))  # type: ignore[arg-type]
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()
