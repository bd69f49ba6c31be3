"""Variables that an ended stack left in a shell, found before they are taken for the user's own servers."""

import socket
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ops import reach
from ops.ports import LOOPBACK

KNOCK_SECONDS = 3
LOCAL = frozenset({LOOPBACK, "localhost", "::1"})
UNSET = "unset ONCOMMIT_DATABASE_URL ONCOMMIT_REDIS_URL ONCOMMIT_URL ONCOMMIT_TOKEN"


class StaleVariablesError(RuntimeError):
    """A variable names a server that is not there, or one that no stack can be built on."""


def check_own_servers() -> None:
    """Return when the servers that the variables name can be used, or none is named.

    Raises:
        StaleVariablesError: one cannot; the message says what to unset or set.

    """
    if url := reach.own("DATABASE_URL"):
        _check_database(url)
    if url := reach.own("REDIS_URL"):
        _check_redis(url)


def _check_database(url: str) -> None:
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # the text is not repeated: it may hold a password
        raise StaleVariablesError(
            "ONCOMMIT_DATABASE_URL is no PostgreSQL URL: correct it, or unset it"
        ) from None
    user = str(given.get("user") or "")
    if user in {f"oncommit_{part}" for part in reach.PARTS}:
        raise StaleVariablesError(
            f"ONCOMMIT_DATABASE_URL is that of {user}, as `oncommit up` and `make run` print it for another "
            f"stack: a stack of its own needs none ({UNSET}), one on your server needs its owner's"
        )
    if given.get("host") in LOCAL:
        try:
            psycopg.connect(url, connect_timeout=KNOCK_SECONDS).close()
        except psycopg.OperationalError as error:
            why = (str(error).strip().splitlines() or ["no answer"])[-1].strip()
            raise StaleVariablesError(
                f"ONCOMMIT_DATABASE_URL names your own PostgreSQL, which does not serve ({why}): start it; "
                f"or, for a server of the stack's own, {UNSET}"
            ) from None


def _check_redis(url: str) -> None:
    parts = urlsplit(url)
    if parts.hostname not in LOCAL:
        return
    port = parts.port or 6379
    try:
        socket.create_connection((parts.hostname, port), KNOCK_SECONDS).close()
    except OSError as error:
        raise StaleVariablesError(
            f"ONCOMMIT_REDIS_URL names your own Redis, and nobody answers at {parts.hostname}:{port} "
            f"({error.strerror or error}): start it; or, if it is of a stack that has ended, {UNSET}"
        ) from None
