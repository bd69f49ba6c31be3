"""A standby that lags: a real physical replication client that says late what it has flushed."""

import select
import struct
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

_DATA = struct.Struct("!QQq")  # start, end of WAL on the server, time
_STATUS = struct.Struct("!cQQQqB")  # 'r', written, flushed, applied, time, reply asked
_EPOCH_2000 = 946_684_800
TICK_SECONDS = 0.05


class Standby:
    """Streams the server's WAL as `name` and confirms each position `lag` seconds after it came.

    Attributes:
        lag: seconds; may be changed at any time.

    """

    def __init__(self, dsn: str, name: str, lag: float) -> None:
        self.lag = lag
        info = make_conninfo(dsn, replication="true", application_name=name)
        self._conn = psycopg.connect(info, autocommit=True)
        self._arrived: deque[tuple[float, int]] = deque()
        self._flushed = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Self:
        """Begin to stream, from where the server is now."""
        pg = self._conn.pgconn
        found = pg.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2)
        assert found is not None
        answer = pg.exec_(b"START_REPLICATION PHYSICAL " + found)
        assert answer.status == ExecStatus.COPY_BOTH, answer.error_message
        self._thread.start()
        return self

    def close(self) -> None:
        """Leave; whoever waits for it waits on until the server is told to wait for nobody."""
        self._stopped.set()
        self._thread.join(5)
        self._conn.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        pg = self._conn.pgconn
        while not self._stopped.is_set():
            select.select([pg.socket], [], [], TICK_SECONDS)
            pg.consume_input()
            while (size := pg.get_copy_data(1))[0] > 0:
                self._take(bytes(size[1]))
            if size[0] < 0:  # the server has ended the stream
                return
            self._confirm()

    def _take(self, message: bytes) -> None:
        if message[:1] == b"w":
            start, _, _ = _DATA.unpack_from(message, 1)
            self._arrived.append((time.monotonic(), start + len(message) - 1 - _DATA.size))

    def _confirm(self) -> None:
        while self._arrived and self._arrived[0][0] <= time.monotonic() - self.lag:
            _, self._flushed = self._arrived.popleft()
        now = int((time.time() - _EPOCH_2000) * 1_000_000)
        pg = self._conn.pgconn
        pg.put_copy_data(_STATUS.pack(b"r", self._flushed, self._flushed, self._flushed, now, 0))
        pg.flush()
