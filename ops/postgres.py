"""One PostgreSQL server: a cluster of its own on a loopback port, with `wal_level=logical`."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from ops.account import Account
from ops.binaries import PostgresBinaries
from ops.ending import Manner
from ops.guardian import Guardian
from ops.ports import LOOPBACK
from ops.processes import Command, StartError
from ops.server import EmbeddedServer

SUPERUSER = "postgres"
INITDB_SECONDS = 120.0

# Fast shutdown (SIGINT) disconnects clients and writes a checkpoint; a logical client that answers but never
# confirms can hold it up for ever, so an immediate one (SIGQUIT) follows: safe, the next start replays.
MANNER = Manner(((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0)))

BASE_SETTINGS: Mapping[str, str] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # the data folder's path may be longer than a socket's name can be
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "shared_buffers": "128MB",
    # A slot that nobody reads must not fill the disk either: a lost one costs a resync, never a job.
    "max_slot_wal_keep_size": "2GB",
    "max_wal_size": "256MB",  # bounds the disk that it takes, and the time a crash costs at the next start
    "password_encryption": "scram-sha-256",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


@dataclass(frozen=True, slots=True)
class PostgresPlan:
    """What to start.

    Attributes:
        binaries: which PostgreSQL.
        datadir: its cluster; made by initdb when there is none.
        password: the superuser's, fixed at initdb.
        log: file of the server's log.
        account: whom it runs as.
        settings: on top of `BASE_SETTINGS`.

    """

    binaries: PostgresBinaries
    datadir: Path
    password: str
    log: Path
    account: Account
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


class PostgresServer(EmbeddedServer):
    """A running PostgreSQL; `start` after any ending brings the same cluster back on the same port."""

    READY_SECONDS = 60.0  # a crashed server replays its WAL first; max_wal_size bounds that to seconds

    def __init__(self, plan: PostgresPlan, guardian: Guardian) -> None:
        self.plan = plan
        super().__init__(guardian)

    def command(self) -> Command:
        """Return the postmaster; its port is in its configuration."""
        plan = self.plan
        return Command(
            name="postgres",
            argv=[os.fspath(plan.binaries.folder / "postgres"), "-D", os.fspath(plan.datadir)],
            log=plan.log,
            env=_environment(),
            manner=MANNER,
            account=plan.account,
            cwd=Path("/"),
        )

    def prepare(self) -> None:
        """Make the cluster where there is none, and write its configuration."""
        if not (self.plan.datadir / "PG_VERSION").exists():
            self._initdb()
        self._configure()

    def dsn(self, dbname: str = "postgres", user: str = SUPERUSER, password: str | None = None) -> str:
        """Return a connection string as keywords; the superuser's password is known."""
        if password is None and user == SUPERUSER:
            password = self.plan.password
        return make_conninfo(host=LOOPBACK, port=self.port, user=user, password=password, dbname=dbname)

    def answers(self) -> bool:
        """Tell whether a superuser can connect now."""
        try:
            psycopg.connect(self.dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def _initdb(self) -> None:
        plan = self.plan
        # Made beside its place and moved there whole: a start that was killed leaves no half cluster behind.
        made = plan.datadir.with_name(f"{plan.datadir.name}.new")
        for half in (made, plan.datadir):
            shutil.rmtree(half, ignore_errors=True)
        plan.account.own(made)
        # An argument could be read by everybody, and a pipe of root's cannot be opened by the account.
        secret = plan.datadir.with_name(f"{plan.datadir.name}.password")
        secret.touch(mode=0o600)
        plan.account.give(secret)
        secret.write_text(f"{plan.password}\n", encoding="ascii")
        command = [
            os.fspath(plan.binaries.folder / "initdb"), "--pgdata", os.fspath(made),
            "--username", SUPERUSER, "--pwfile", os.fspath(secret), "--auth", "scram-sha-256",
            "--encoding", "UTF8", "--no-locale",
            *(["--no-sync"] if plan.settings.get("fsync") == "off" else []),
        ]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603 -- our own command line
                command, check=False, capture_output=True, text=True, timeout=INITDB_SECONDS,
                cwd="/", env=_environment(), **plan.account.popen(),
            )  # fmt: skip
        finally:
            secret.unlink()
        if done.returncode != 0:
            raise StartError(f"initdb failed in {plan.datadir}:\n{done.stderr.strip()}")
        with (made / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.write("\n# Written at each start; ALTER SYSTEM overrides it.\ninclude = 'oncommit.conf'\n")
        made.rename(plan.datadir)

    def _configure(self) -> None:
        settings = {**BASE_SETTINGS, **self.plan.settings, "port": str(self.port)}
        binaries = self.plan.binaries
        # Newer minor releases load only listed plugins; older ones do not start with that setting.
        if binaries.has_wal2json and binaries.knows("output_plugin_libraries", self.plan.account):
            settings.setdefault("output_plugin_libraries", "pgoutput, test_decoding, wal2json")
        lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items()]
        (self.plan.datadir / "oncommit.conf").write_text("".join(lines), encoding="utf-8")


def _environment() -> dict[str, str]:
    # Neither the launcher's PG... variables nor its locale have a say in the cluster.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
