"""The replication stream: the streaming protocol of PostgreSQL spoken over libpq (psycopg.pq).

Manual, "Streaming Replication Protocol". The server sends `w` (data) and `k` (keepalive) messages
inside COPY; the client answers with `r` (status). Nothing here knows tables or Redis.
"""

import logging
import struct
import time
from typing import Final, NamedTuple, Self

import psycopg

from relay import replication
from relay.errors import ServerAway, StreamError
from relay.events import Decoder, lsn_text
from relay.pulse import Pulse
from relay.replication import Identity

log = logging.getLogger(__name__)

_DATA: Final = struct.Struct("!QQq")  # start, end of WAL on the server, time
_KEEPALIVE: Final = struct.Struct("!QqB")  # end of WAL that was looked at, time, reply asked
_W, _K = ord("w"), ord("k")
_DATA_START: Final = 1 + _DATA.size

# A burst is one or two Lua calls downstream, and all that is ever held in memory here.
MAX_FRAMES: Final = 1_000
MAX_BYTES: Final = 4 << 20
# A transaction's frames follow each other within microseconds: a look after 0.3 ms brings a small one
# whole, and 5 ms after the first frame the burst goes out in any case.
_LINGER_S: Final = 0.000_3
_LINGER_MAX_S: Final = 0.005
# Idle positions may be confirmed in leisure: each one may make the server save its slot.
_IDLE_CONFIRM_S: Final = 1.0
# Others may write a gigabyte in seconds: so much of it is let go of at once, in the middle of a wait.
_IDLE_CONFIRM_BYTES: Final = 4 << 20
# A polite end of COPY takes a round trip; the socket is closed anyway after this.
_CLOSE_S: Final = 1.0


class Frame(NamedTuple):
    """One message of the output plugin. `lsn` is its header's position, 0 for pgoutput's relations."""

    lsn: int
    payload: bytes


class ReplicationStream:
    """An open stream of one slot. Single-threaded: read, publish, confirm, in turn.

    Attributes:
        identity: which life of which database is read.
        pid: of the walsender, for `slot.owns_slot`.
        received: the furthest position the server has sent; nothing beyond it can be confirmed.

    """

    def __init__(self, conn: psycopg.Connection, identity: Identity, wal_sender_timeout: float) -> None:
        self._conn = conn
        self._pg = conn.pgconn
        self._pulse = Pulse(self._pg, wal_sender_timeout)
        self.identity: Final = identity
        self.pid: Final = self._pg.backend_pid
        self.received = 0
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
        conn: psycopg.Connection | None = None,
    ) -> Self:
        """Start streaming `slot` from `start_lsn` (0: where the slot stands).

        `conn`: made by `replication.connect` with the same time-out; the stream's own from now on.
        `wal_sender_timeout`, seconds, at least 1: each side takes the other for dead after so long a
        silence. A start beyond the end of the server's WAL belongs to another life of the database
        (a restore): the slot's own position is taken instead.

        Raises:
            ServerAway, SlotMissing, SlotForeign, SlotBusy, SlotInvalidated, SlotWrongPlugin,
            PluginMissing, PluginForbidden, ReplicationRefused: see relay.errors.

        """
        if wal_sender_timeout < 1:
            raise ValueError("wal_sender_timeout: at least 1 second")
        conn = conn or replication.connect(dsn, wal_sender_timeout)
        try:
            identity = replication.start(conn.pgconn, slot, decoder, publication, start_lsn)
        except BaseException:
            conn.close()
            raise
        return cls(conn, identity, wal_sender_timeout)

    @property
    def confirmed(self) -> int:
        """Return what the server may forget; 0 until the first confirmation of this stream."""
        return self._pulse.confirmed

    def fileno(self) -> int:
        """Return the socket, readable when `read` may find something; -1 once closed."""
        return -1 if self._conn.closed else self._pg.socket

    def read(
        self, timeout: float, *, max_frames: int = MAX_FRAMES, max_bytes: int = MAX_BYTES
    ) -> list[Frame]:
        """Return all frames that are there, waiting up to `timeout` seconds for the first.

        At most `max_frames`, and few more than `max_bytes` (the last frame is whole); the rest stays
        with libpq and the server. Empty: nothing came, or much WAL that is not for us, or the server asks
        for a confirmation.

        Raises:
            PublicationMissing: PostgreSQL before 18 found no publication at the first change.
            ServerAway: the link is gone or silent, or the server wants to stop.
            StreamError: it ended the stream for another reason.

        """
        if self._failure is not None:
            raise self._failure
        frames: list[Frame] = []
        try:
            self._pulse.beat()
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
        pulse = self._pulse
        if lsn > pulse.confirmed or pulse.reply_due:
            pulse.confirmed = max(pulse.confirmed, lsn)
            pulse.send(ask=False)

    def confirm_idle(self) -> None:
        """Confirm the last keepalive's position: every frame that `read` returned has been dealt with.

        Lets go of the WAL that other tables and databases write. At most once a second; at once when the
        server asks, or when it is much.

        Raises:
            ServerAway: the link is gone.

        """
        pulse = self._pulse
        if pulse.idle_position > pulse.confirmed and (
            pulse.reply_due
            or time.monotonic() - pulse.sent_at >= _IDLE_CONFIRM_S
            or pulse.idle_position - pulse.confirmed >= _IDLE_CONFIRM_BYTES  # also the first one
        ):
            self.confirm(pulse.idle_position)

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
        idle_from = max(self._pulse.idle_position, self._pulse.confirmed)
        while len(frames) < max_frames and size < max_bytes:
            before = len(frames)
            self._pg.consume_input()
            self._pulse.flush()
            size += self._drain(frames, max_frames, max_bytes - size)
            now = time.monotonic()
            if not frames:
                much = self._pulse.idle_position - idle_from >= _IDLE_CONFIRM_BYTES
                if self._pulse.reply_due or much or now >= deadline:
                    return
                patience = self._pulse.patience()
                replication.wait(self._pg, min(deadline - now, patience), write=self._pulse.unsent)
                self._pulse.beat()
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
        """Move what libpq holds into `frames`; return the bytes moved. One loop: it runs for each row."""
        next_message, size, heard = self._pg.get_copy_data, 0, False
        while len(frames) < max_frames and size < max_bytes:
            count, data = next_message(1)
            if count == 0:
                break
            if count < 0:
                raise replication.ended(self._pg)
            heard = True
            kind = data[0]
            if kind == _W:
                lsn, wal_end, _ = _DATA.unpack_from(data, 1)
                if wal_end > self.received or lsn > self.received:
                    self.received = max(lsn, wal_end)
                frames.append(Frame(lsn, bytes(data[_DATA_START:])))
                size += count
            elif kind == _K:
                wal_end, _, reply = _KEEPALIVE.unpack_from(data, 1)
                self.received = max(self.received, wal_end)
                self._pulse.keepalive(wal_end, reply=bool(reply))
        if heard:
            self._pulse.heard()
        return size
