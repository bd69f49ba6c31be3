"""The pulse of a replication stream: status messages, answers to keepalives, and signs of life.

A fast shutdown of PostgreSQL waits, without limit, until each walsender's client has confirmed all that
was sent or has gone, and asks for a status again and again meanwhile. A client that answers
while it holds an unconfirmed transaction would hang the server; so after two seconds of such
questions the stream is given up. What is not confirmed is sent again after the restart.
"""

import struct
import time
from typing import Final

import psycopg
from psycopg.pq.abc import PGconn

from relay.errors import ServerAway

_STATUS: Final = struct.Struct("!cQQQqB")  # kind, written, flushed, applied, time, reply asked
_PG_EPOCH_S: Final = 946_684_800  # 2000-01-01 UTC in Unix seconds: where PostgreSQL's clock starts

# A server that wants to stop asks again as soon as it is answered; else at half its timeout, >= 0.5 s.
_QUICK_S: Final = 0.4
# Answering 10 questions a second keeps a stopping server from spinning with us; after 20 we go.
_REPLY_SPACING_S: Final = 0.1
_STOP_QUESTIONS: Final = 20


class Pulse:
    """What client and server owe each other while streaming.

    Attributes:
        confirmed: the position that each status carries.
        idle_position: the last keepalive's; all before it was sent.
        reply_due: the server asked for a status that it did not get yet.
        sent_at: monotonic seconds of the last status.
        unsent: part of a status still waits for the socket.

    """

    def __init__(self, pg: PGconn, timeout: float) -> None:
        self._pg = pg
        self._timeout = timeout
        self._asked_at = 0.0
        self._quick_questions = 0
        self._unanswered_since: float | None = None
        self.confirmed = 0
        self.idle_position = 0
        self.reply_due = False
        self.sent_at = time.monotonic()
        self.unsent = False

    def heard(self) -> None:
        """Note that the server said something."""
        self._unanswered_since = None

    def keepalive(self, wal_end: int, *, reply: bool) -> None:
        """Take in a keepalive.

        Raises:
            ServerAway: the server is stopping and waits for us.

        """
        self.idle_position = max(self.idle_position, wal_end)
        if not reply:
            return
        now = time.monotonic()
        quick = now - self._asked_at < _QUICK_S
        self._quick_questions = self._quick_questions + 1 if quick else 0
        self._asked_at = now
        self.reply_due = True
        if self._quick_questions > _STOP_QUESTIONS:
            raise ServerAway("PostgreSQL is stopping, and waits for what is not confirmed yet")

    def beat(self) -> None:
        """Send a status when one is due: an answer, or the proof of life at a third of the timeout.

        Raises:
            ServerAway: the link is gone.

        """
        since = time.monotonic() - self.sent_at
        if self.reply_due and since >= _REPLY_SPACING_S:
            self.send(ask=False)
        elif since >= self._timeout / 3:
            # Asking back makes a healthy server speak, so that its silence means something.
            self.send(ask=True)

    def send(self, *, ask: bool) -> None:
        """Send a status now; `ask` for a keepalive in return.

        Raises:
            ServerAway: the link is gone.

        """
        now = time.monotonic()
        clock_us = int((time.time() - _PG_EPOCH_S) * 1_000_000)
        lsn = self.confirmed
        try:
            self._pg.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, clock_us, ask))
            self.unsent = self._pg.flush() == 1
        except psycopg.OperationalError as error:
            raise ServerAway(f"the replication connection broke: {error}".strip()) from error
        self.sent_at = now
        self.reply_due = False
        if ask and self._unanswered_since is None:
            self._unanswered_since = now

    def flush(self) -> None:
        """Send what still waits for the socket."""
        if self.unsent:
            self.unsent = self._pg.flush() == 1

    def patience(self) -> float:
        """Return the seconds until the next proof of life is due.

        Raises:
            ServerAway: the server was asked a whole timeout ago, and says nothing.

        """
        now = time.monotonic()
        if self._unanswered_since is not None and now - self._unanswered_since > self._timeout:
            raise ServerAway(f"PostgreSQL said nothing for {self._timeout:g} s")
        return max(0.0, self.sent_at + self._timeout / 3 - now)
