"""Dial: opens the replication connection beside the relay's loop, which polls meanwhile.

Who connects to an address that does not answer waits for seconds, and dispatch would wait along. The
loop waits a moment only, and comes back for what the dial has brought.
"""

import threading
from concurrent.futures import Future, wait
from typing import Any, Final

import psycopg

from relay.errors import ServerAway
from relay.replication import connect

Connection = psycopg.Connection[Any]


class Dial:
    """At most one connection under way as a walsender of `dsn`. For one thread to ask."""

    def __init__(self, dsn: str, wal_sender_timeout: float) -> None:
        self._dsn: Final = dsn
        self._wal_sender_timeout: Final = wal_sender_timeout
        self._under_way: Future[Connection] | None = None
        self._why = "no replication connection: the address has not answered yet"

    def connection(self, patience: float) -> Connection:
        """Return a connection once; the caller's from then on. Begins one when none is under way.

        Raises:
            ServerAway: none within `patience` seconds, and it is tried on; or it cannot be had, says why.

        """
        if self._under_way is None:
            self._under_way = Future()
            arguments = (self._dsn, self._wal_sender_timeout, self._under_way)
            threading.Thread(target=_dial, args=arguments, name="dial", daemon=True).start()
        found = self._under_way
        wait([found], timeout=patience)
        if not found.done():
            raise ServerAway(self._why)  # of the last try, so that one trouble is told once
        self._under_way = None
        try:
            return found.result()
        except ServerAway as error:
            self._why = str(error)
            raise

    def close(self) -> None:
        """Let go of what is under way: it is closed when it comes."""
        if self._under_way is not None:
            self._under_way.add_done_callback(_hang_up)
            self._under_way = None


def _dial(dsn: str, wal_sender_timeout: float, found: "Future[Connection]") -> None:
    try:
        found.set_result(connect(dsn, wal_sender_timeout))
    except BaseException as error:  # noqa: BLE001 -- the loop's thread raises it
        found.set_exception(error)


def _hang_up(found: "Future[Connection]") -> None:
    if found.exception() is None:
        found.result().close()
