"""The replication stream: the streaming protocol of PostgreSQL spoken over libpq (psycopg.pq).

Manual, "Streaming Replication Protocol". The server sends `w` (data) and `k` (keepalive) messages
inside COPY; the client answers with `r` (status). Nothing here knows tables or Redis.

Stopping: a fast shutdown of PostgreSQL waits, without limit, until each walsender's client has
confirmed all that was sent or has gone; it asks for a status again and again meanwhile. So a client
that answers while it holds an unconfirmed transaction would hang the server. `read` notices
those questions and, after two seconds of them, closes and raises ServerAway: what is not
confirmed is sent again after the restart.
"""

import logging
import struct
import time
from dataclasses import dataclass
from typing import Final, Self

import psycopg

from relay import replication
from relay.errors import ServerAway, StreamError
from relay.events import Decoder, lsn_text
from relay.replication import Identity

log = logging.getLogger(__name__)

_DATA: Final = struct.Struct("!QQq")  # start, end of WAL on the server, time
_KEEPALIVE: Final = struct.Struct("!QqB")  # end of WAL that was looked at, time, reply asked
_STATUS: Final = struct.Struct("!cQQQqB")  # kind, written, flushed, applied, time, reply asked
_PG_EPOCH_S: Final = 946_684_800  # 2000-01-01 UTC in Unix seconds: where PostgreSQL's clock starts

# A burst is one Lua call downstream, and all that is ever held in memory here.
MAX_FRAMES: Final = 1_000
MAX_BYTES: Final = 4 << 20
# A transaction's frames follow each other within microseconds: a look after 0.3 ms brings a small one
# whole, and 5 ms after the first frame the burst goes out in any case.
_LINGER_S: Final = 0.000_3
_LINGER_MAX_S: Final = 0.005
# A server that wants to stop asks again as soon as it is answered; else at half its timeout, >= 0.5 s.
_QUICK_S: Final = 0.4
# Answering 10 questions a second keeps a stopping server from spinning with us; after 20 we go.
_REPLY_SPACING_S: Final = 0.1
_STOP_QUESTIONS: Final = 20
# Idle positions may be confirmed in leisure: each one makes the server save its slot.
_IDLE_CONFIRM_S: Final = 1.0
# A polite end of COPY takes a round trip; the socket is closed anyway after this.
_CLOSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of the output plugin. `lsn` is its header's position, 0 for pgoutput's relations."""

    lsn: int
    payload: memoryview


class ReplicationStream:
    """An open stream of one slot. Single-threaded: read, publish, confirm, in turn.

    Attributes:
        identity: which life of which database is read.
        pid: of the walsender, for `slot.owns_slot`.
        received: the furthest position the server has sent; nothing beyond it can be confirmed.
        confirmed: what the server may forget; 0 until the first confirmation of this stream.

    """

    def __init__(self, conn: psycopg.Connection, identity: Identity, wal_sender_timeout: float) -> None:
        self._conn = conn
        self._pg = conn.pgconn
        self._timeout = wal_sender_timeout
        self.identity: Final = identity
        self.pid: Final = self._pg.backend_pid
        self.received = 0
        self.confirmed = 0
        self._idle_position = 0
        self._sent_at = time.monotonic()
        self._reply_due = False
        self._asked_at = 0.0
        self._quick_questions = 0
        self._unanswered_since: float | None = None
        self._unsent = False
        self._failure: StreamError | None = None

    @classmethod
    def open(
        cls,
        dsn: str,
        slot: str,
        decoder: Decoder,
        *,
        publication: str,
        start_lsn: int = 0,
        wal_sender_timeout: float = 30.0,
    ) -> Self:
        """Start streaming `slot` from `start_lsn` (0: where the slot stands).

        `wal_sender_timeout`, seconds, at least 1: each side takes the other for dead after so long a
        silence. A start beyond the end of the server's WAL belongs to another life of the database
        (a restore): the slot's own position is taken instead.

        Raises:
            ServerAway, SlotMissing, SlotForeign, SlotBusy, SlotInvalidated, SlotWrongPlugin,
            PluginMissing, PluginForbidden, ReplicationRefused: see relay.errors.

        """
        if wal_sender_timeout < 1:
            raise ValueError("wal_sender_timeout: at least 1 second")
        conn = replication.connect(dsn, wal_sender_timeout)
        try:
            identity = replication.start(conn.pgconn, slot, decoder, publication, start_lsn)
        except BaseException:
            conn.close()
            raise
        return cls(conn, identity, wal_sender_timeout)

    def fileno(self) -> int:
        """Return the socket, readable when `read` may find something; -1 once closed."""
        return -1 if self._conn.closed else self._pg.socket

    def read(
        self, timeout: float, *, max_frames: int = MAX_FRAMES, max_bytes: int = MAX_BYTES
    ) -> list[Frame]:
        """Return all frames that are there, waiting up to `timeout` seconds for the first.

        At most `max_frames`, and few more than `max_bytes` (the last frame is whole); the rest stays
        with libpq and the server. Empty: nothing came, or the server asks for a confirmation.

        Raises:
            PublicationMissing: PostgreSQL before 18 found no publication at the first change.
            ServerAway: the link is gone or silent, or the server wants to stop.
            StreamError: it ended the stream for another reason.

        """
        if self._failure is not None:
            raise self._failure
        frames: list[Frame] = []
        try:
            self._beat()
            self._collect(frames, time.monotonic() + timeout, max_frames, max_bytes)
        except psycopg.OperationalError as error:
            self._failure = ServerAway(f"the replication connection broke: {error}".strip())
            self._failure.__cause__ = error
        except StreamError as error:
            self._failure = error
        if self._failure is not None:
            self._conn.close()
            if not frames:
                raise self._failure
        return frames

    def confirm(self, lsn: int) -> None:
        """Tell the server that everything before `lsn`, a commit's end, is safe here; never goes back.

        Raises:
            ValueError: `lsn` was never received: the server would believe it and skip rows.
            ServerAway: the link is gone.

        """
        if lsn > self.received:
            raise ValueError(f"cannot confirm {lsn_text(lsn)}: received only up to {lsn_text(self.received)}")
        if lsn > self.confirmed or self._reply_due:
            self.confirmed = max(self.confirmed, lsn)
            self._send_status(ask=False)

    def confirm_idle(self) -> None:
        """Confirm the last keepalive's position: every frame that `read` returned has been dealt with.

        Lets go of the WAL that other tables and databases write. At most once a second, and at once
        when the server asks.

        Raises:
            ServerAway: the link is gone.

        """
        position = self._idle_position
        if position > self.confirmed and (
            self._reply_due or time.monotonic() - self._sent_at >= _IDLE_CONFIRM_S or not self.confirmed
        ):
            self.confirm(position)

    def close(self) -> None:
        """End the COPY politely, within a second, and close the connection. May be called again."""
        if self._conn.closed:
            return
        try:
            replication.end_copy(self._pg, time.monotonic() + _CLOSE_S)
        except (psycopg.Error, OSError) as error:
            log.debug("relay: closing the stream: %s", error)
        finally:
            self._conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _collect(self, frames: list[Frame], deadline: float, max_frames: int, max_bytes: int) -> None:
        """Fill `frames` until they are enough, or nothing follows; wait for the first until `deadline`."""
        size = self._drain(frames, max_frames, max_bytes)
        linger_until = 0.0
        lingered = False
        while len(frames) < max_frames and size < max_bytes:
            before = len(frames)
            self._fill()
            size += self._drain(frames, max_frames, max_bytes - size)
            now = time.monotonic()
            if not frames:
                if self._reply_due or now >= deadline:
                    return
                self._wait(deadline - now)
                self._beat()
                continue
            linger_until = linger_until or now + _LINGER_MAX_S
            if now >= linger_until:
                return
            if len(frames) > before:
                lingered = False
            elif lingered:
                return
            else:
                lingered = True
                time.sleep(_LINGER_S)

    def _drain(self, frames: list[Frame], max_frames: int, max_bytes: int) -> int:
        """Move what libpq holds into `frames`; return the bytes moved."""
        size = 0
        while len(frames) < max_frames and size < max_bytes:
            count, data = self._pg.get_copy_data(1)
            if count == 0:
                break
            if count < 0:
                raise replication.ended(self._pg)
            self._unanswered_since = None
            kind = data[0]
            if kind == ord("w"):
                lsn, wal_end, _ = _DATA.unpack_from(data, 1)
                self.received = max(self.received, lsn, wal_end)
                frames.append(Frame(lsn, data[1 + _DATA.size :]))
                size += count
            elif kind == ord("k"):
                self._keepalive(*_KEEPALIVE.unpack_from(data, 1))
        return size

    def _keepalive(self, wal_end: int, _: int, reply: int) -> None:
        self.received = max(self.received, wal_end)
        self._idle_position = max(self._idle_position, wal_end)
        if not reply:
            return
        now = time.monotonic()
        quick = now - self._asked_at < _QUICK_S
        self._quick_questions = self._quick_questions + 1 if quick else 0
        self._asked_at = now
        self._reply_due = True
        if self._quick_questions > _STOP_QUESTIONS:
            raise ServerAway("PostgreSQL is stopping, and waits for what is not confirmed yet")

    def _beat(self) -> None:
        """Send a status when one is due: an answer, or the proof of life at a third of the timeout."""
        since = time.monotonic() - self._sent_at
        if self._reply_due and since >= _REPLY_SPACING_S:
            self._send_status(ask=False)
        elif since >= self._timeout / 3:
            # Asking back makes a healthy server speak, so that its silence means something.
            self._send_status(ask=True)

    def _send_status(self, *, ask: bool) -> None:
        now = time.monotonic()
        clock_us = int((time.time() - _PG_EPOCH_S) * 1_000_000)
        lsn = self.confirmed
        try:
            self._pg.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, clock_us, ask))
            self._unsent = self._pg.flush() == 1
        except psycopg.OperationalError as error:
            raise ServerAway(f"the replication connection broke: {error}".strip()) from error
        self._sent_at = now
        self._reply_due = False
        if ask and self._unanswered_since is None:
            self._unanswered_since = now

    def _fill(self) -> None:
        self._pg.consume_input()
        if self._unsent:
            self._unsent = self._pg.flush() == 1

    def _wait(self, remaining: float) -> None:
        """Wait for the socket, no longer than until the next status is due."""
        now = time.monotonic()
        if self._unanswered_since is not None and now - self._unanswered_since > self._timeout:
            raise ServerAway(f"PostgreSQL said nothing for {self._timeout:g} s")
        due = self._sent_at + self._timeout / 3 - now
        replication.wait(self._pg, max(0.0, min(remaining, due)), write=self._unsent)
