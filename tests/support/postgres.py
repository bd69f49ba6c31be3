"""Fixtures of PostgreSQL: one server of each kind for the session, one migrated database for each test."""

import dataclasses
import secrets
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from db.cluster import set_role_password
from db.migrate import migrate
from ops.account import servers_account
from ops.binaries import Kind
from ops.guardian import Guardian
from ops.ports import LOOPBACK
from ops.postgres import SUPERUSER, PostgresPlan, PostgresServer
from support.containers import ContainerPostgres
from support.kinds import ServerKind, find, kinds

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


class Host(Protocol):
    """What a PostgreSQL runs in: processes of this machine, or a container."""

    version: int
    has_wal2json: bool
    password: str

    @property
    def port(self) -> int: ...
    @property
    def running(self) -> bool: ...
    def begin(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def quit(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def log_text(self) -> str: ...
    def remove(self) -> None: ...


class LocalHost:
    """A PostgreSQL in processes of this machine."""

    def __init__(self, postgres: PostgresServer) -> None:
        self._postgres = postgres
        self.version = postgres.plan.binaries.major
        self.has_wal2json = postgres.plan.binaries.has_wal2json
        self.password = postgres.plan.password
        self.begin, self.stop, self.kill = postgres.start, postgres.stop, postgres.kill

    @property
    def port(self) -> int:
        return self._postgres.port

    @property
    def running(self) -> bool:
        return self._postgres.process.running

    def quit(self) -> None:
        """Shut it down at once, without a checkpoint."""
        self._postgres.process.signal(signal.SIGQUIT)
        self._postgres.stop()

    def freeze(self) -> None:
        self._postgres.process.freeze()

    def thaw(self) -> None:
        self._postgres.process.thaw()

    def log_text(self) -> str:
        return self._postgres.plan.log.read_text(encoding="utf-8")

    def remove(self) -> None:
        """Stop it and remove its cluster: the next one has other passwords."""
        self._postgres.stop()
        shutil.rmtree(self._postgres.plan.datadir, ignore_errors=True)


class Server:
    """A PostgreSQL server that a test may stop, kill and restart; it runs again before the next test."""

    def __init__(self, kind: ServerKind, host: Host, passwords: dict[str, str]) -> None:
        self.kind = kind
        self.host = host
        self.passwords = passwords
        self.version = host.version
        self.has_wal2json = host.has_wal2json

    @property
    def decoder(self) -> str:
        """Return the output plugin that the relay picks on this server."""
        return "wal2json" if self.has_wal2json else "pgoutput"

    @property
    def port(self) -> int:
        return self.host.port

    def dsn(self, dbname: str = "postgres", user: str | None = None) -> str:
        """Return a connection string, as the superuser or as one of the oncommit roles."""
        password = self.passwords[user] if user else self.host.password
        return make_conninfo(
            host=LOOPBACK, port=self.port, user=user or SUPERUSER, password=password, dbname=dbname
        )

    def connect(self, dbname: str = "postgres") -> psycopg.Connection:
        """Return an autocommit connection as the superuser."""
        return psycopg.connect(self.dsn(dbname), autocommit=True)

    def stop(self) -> None:
        self.host.stop()

    def start(self) -> None:
        if not self.host.running:
            self.host.begin()

    def kill(self) -> None:
        """SIGKILL every process of the server."""
        self.host.kill()

    def restart(self, mode: Literal["fast", "immediate", "kill"] = "fast") -> None:
        """Stop in this mode, then start on the same port."""
        if mode == "kill":
            self.kill()
        elif mode == "immediate":
            self.host.quit()
        else:
            self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop every process of the server where it is."""
        self.host.freeze()

    def thaw(self) -> None:
        self.host.thaw()

    def log_text(self) -> str:
        """Return what the server logged."""
        return self.host.log_text()


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
    return Server(kind, LocalHost(PostgresServer(plan, guardian)), new_passwords())


def new_passwords() -> dict[str, str]:
    """Return a password for each role."""
    return {f"oncommit_{role}": secrets.token_urlsafe(16) for role in ROLES}


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
    kind: ServerKind = request.param
    if kind == "container":
        container = ContainerPostgres(servers_folder, secrets.token_urlsafe(16), TEST_SETTINGS)
        server = Server(kind, container, new_passwords())
    else:
        server = build_server(kind, servers_folder, guardian)
    try:
        server.start()
        prepare(server)
        yield server
    finally:
        server.host.remove()


@pytest.fixture
def server(session_server: Server) -> Iterator[Server]:
    """Give the session's running PostgreSQL; a test that stopped or froze it finds that undone."""
    session_server.start()
    yield session_server
    if session_server.host.running:
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
        password = self.server.passwords[user] if role else self.server.host.password
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
    if server.host.running:
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
