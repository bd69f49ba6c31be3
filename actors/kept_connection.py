"""One kept connection for a thread of its own, made again at each use after it was lost.

A pool backs off for longer the longer the server was away; a heartbeat that comes back late looks
like a lost worker. So the threads around the work keep their own connection and try every second.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from db import pool
from db.errors import Conflict, DatabaseError, Refused, translated


class KeptConnection:
    """A connection to `dsn`, for one user at a time."""

    def __init__(self, dsn: str, application: str) -> None:
        self._dsn = dsn
        self._application = application
        self._conn: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()

    @contextmanager
    def connection(self) -> Generator[psycopg.Connection[Any]]:
        """Give the connection; when it may be broken the next use makes a new one.

        A refusal or a conflict is an answer: whoever answers is there.

        Raises:
            Unavailable: the server cannot be reached.

        """
        with self._lock:
            if self._conn is None:
                with translated():
                    self._conn = pool.connect(self._dsn, self._application)
            try:
                yield self._conn
            except DatabaseError as error:
                if self._conn.closed or not isinstance(error, Refused | Conflict):
                    self._drop()
                raise

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._conn is not None:
            with suppress(psycopg.Error):
                self._conn.close()
            self._conn = None
