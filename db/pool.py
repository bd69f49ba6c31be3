"""Connections: how each process reaches PostgreSQL.

READ COMMITTED is pinned per transaction or checked by the statement itself, not trusted to the server's
default; every session gives up on a lock or a statement that takes too long, so that trouble in the database
is an error in bounded time and never a hang. Settings travel as startup options, so a role's own defaults
cannot undo them; a pooler leaves options out, and then those of the role count (db/functions/90_roles.sql).

Nothing is kept in a session from one transaction to the next, and nothing is prepared on the server:
a process may be behind a pooler in transaction mode, where the next transaction has another session.
"""

import select
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

#: A statement of the hot paths takes milliseconds; 15 s means the server is in trouble.
STATEMENT_TIMEOUT = "15s"
#: Long enough for any transition that holds a job's row, short enough to answer 503 in bounded time.
LOCK_TIMEOUT = "5s"
#: A client that froze inside a transaction must not pin vacuum or slot creation for ever.
IDLE_TIMEOUT = "30s"
CONNECT_TIMEOUT = 5  # seconds
#: Notice a peer that is gone, not merely slow, within 15 s (5 + 2 x 5).
KEEPALIVES: Mapping[str, int] = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,  # milliseconds
}
#: The pool doubles its pause between tries up to this: the first caller after an outage of any length
#: starts anew, so that service is back within seconds of the server and not within a minute.
RECONNECT_SECONDS = 4.0
#: Of every connection: transactions begin where the code says so, and no statement is prepared.
ALWAYS: Any = {"autocommit": True, "prepare_threshold": None}
OPTIONS = (
    "-c default_transaction_isolation=read\\ committed",
    f"-c statement_timeout={STATEMENT_TIMEOUT}",
    f"-c lock_timeout={LOCK_TIMEOUT}",
    f"-c idle_in_transaction_session_timeout={IDLE_TIMEOUT}",
    # What a database or a role may have otherwise, and what the driver and the statements here rely upon.
    "-c timezone=UTC",
    "-c datestyle=ISO,MDY",
    "-c search_path=public",
    "-c standard_conforming_strings=on",
)


def with_options(dsn: str, application: str) -> str:
    """Return `dsn` with the session settings of this module; what the DSN itself says wins."""
    given = conninfo_to_dict(dsn)
    merged: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT,
        "application_name": application,
        "client_encoding": "UTF8",
        **KEEPALIVES,
        **given,
        "options": " ".join([*OPTIONS, str(given.get("options") or "")]).strip(),
    }
    return make_conninfo("", **merged)


def _configure(conn: Connection[Any]) -> None:
    conn.isolation_level = IsolationLevel.READ_COMMITTED


async def _configure_async(conn: AsyncConnection[Any]) -> None:
    await conn.set_isolation_level(IsolationLevel.READ_COMMITTED)


def connect(dsn: str, application: str) -> Connection[Any]:
    """Return one autocommit connection with the session settings of this module.

    Raises:
        psycopg.OperationalError: the server is away or refuses.

    """
    conn: Connection[Any] = psycopg.connect(with_options(dsn, application), **ALWAYS)
    _configure(conn)
    return conn


def pool(dsn: str, application: str, *, size: int, timeout: float = 5.0) -> ConnectionPool[Connection[Any]]:
    """Return an open pool of autocommit connections; it need not have reached the server yet.

    `size` is the most connections it holds; `timeout` how long a caller waits for one, seconds.
    """
    return ConnectionPool(
        with_options(dsn, application),
        min_size=1,
        max_size=size,
        timeout=timeout,
        kwargs=ALWAYS,
        configure=_configure,
        # A connection that the server dropped is replaced before a caller gets it, not after.
        check=ConnectionPool.check_connection,
        reconnect_timeout=RECONNECT_SECONDS,
        open=True,
        name=application,
    )


async def _look_at(conn: AsyncConnection[Any]) -> None:
    """Raise OperationalError if the server has ended the connection.

    Its end is there to be read, and else nothing is: a server has nothing to say on an idle connection, but
    for rare notices. So it is asked only when there is something to read; the others cost no round trip.
    """
    waiting = select.poll()  # unlike select(), of any number of open files
    waiting.register(conn.pgconn.socket, select.POLLIN)
    if waiting.poll(0):
        await AsyncConnectionPool.check_connection(conn)


def async_pool(
    dsn: str, application: str, *, size: int, timeout: float
) -> AsyncConnectionPool[AsyncConnection[Any]]:
    """Return the portal's pool, not yet open: `async with` it. Fields as in `pool`."""
    return AsyncConnectionPool(
        with_options(dsn, application),
        min_size=1,
        max_size=size,
        timeout=timeout,
        kwargs=ALWAYS,
        configure=_configure_async,
        check=_look_at,
        reconnect_timeout=RECONNECT_SECONDS,
        open=False,
        name=application,
    )
