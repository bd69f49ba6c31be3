"""Opening and ending a replication connection, and what the server's refusals mean.

A walsender with a database runs SQL too, by the simple protocol only; so where one SQLSTATE has two
meanings, the catalog is asked over the same connection instead of reading the message.
"""

import re
import select
import time
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from relay.errors import (
    PublicationMissing,
    ReplicationRefused,
    ServerAway,
    SlotBusy,
    SlotForeign,
    SlotInvalidated,
    SlotMissing,
    SlotWrongPlugin,
    StreamError,
    forbidden,
    missing,
)
from relay.events import Decoder, lsn_int, lsn_text

# What a slot and a publication of this project may be called (runtime/settings.py): safe inside a
# replication command, which takes no parameters.
_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")

# Column values arrive in their text form, which follows these settings; a role or a database may have
# its own. Options of the connection win over both.
_PINNED: Final = {"DateStyle": "ISO", "TimeZone": "UTC", "extra_float_digits": "1", "statement_timeout": "0"}
# A try ends after this; nobody waits for it: see dial.py.
_CONNECT_S: Final = 5
# Commands before the stream answer at once, or the server is not well.
_COMMAND_S: Final = 10.0

# Appendix "Error Codes" of the manual. Classes: connection, resources, operator intervention, system.
_AWAY_CLASSES: Final = ("08", "53", "57", "58")

SLOT_SQL: Final = """
SELECT database = current_database(), plugin, active_pid, wal_status
  FROM pg_replication_slots WHERE slot_name = '{slot}'
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which life of which database this is: a position is worth something in this one only."""

    system_id: str
    timeline: int
    database: str


def connect(dsn: str, wal_sender_timeout: float) -> psycopg.Connection:
    """Connect as a walsender of the DSN's database; `wal_sender_timeout` in seconds, 0: none.

    Raises:
        ServerAway: nobody answered, or the role may not log in or replicate: libpq tells no code.

    """
    pinned = {**_PINNED, "wal_sender_timeout": f"{round(wal_sender_timeout * 1000)}ms"}
    try:
        given = conninfo_to_dict(dsn)
        options = " ".join([str(given.get("options") or ""), *(f"-c {k}={v}" for k, v in pinned.items())])
        # The driver sends nothing by itself: autocommit, and libpq is spoken to directly.
        return psycopg.connect(
            dsn,
            autocommit=True,
            replication="database",
            client_encoding="UTF8",
            connect_timeout=given.get("connect_timeout") or _CONNECT_S,
            application_name=given.get("application_name") or "oncommit relay stream",
            options=options.strip(),
        )
    except (psycopg.Error, OSError) as error:
        raise ServerAway(f"no replication connection: {error}".strip()) from error


def start(pg: PGconn, slot: str, decoder: Decoder, publication: str, start_lsn: int) -> Identity:
    """Start streaming; return whose WAL it is. The connection is non-blocking from here on.

    Raises:
        StreamError: a kind of it, see `ReplicationStream.open`.

    """
    if not _NAME.fullmatch(slot) or not _NAME.fullmatch(publication):
        raise ValueError("a slot's or publication's name: only a-z, 0-9 and _, at most 63")
    options = decoder.options(publication)
    pg.nonblocking = 1
    system_id, timeline, end, database = _rows(_query(pg, b"IDENTIFY_SYSTEM"))[0]
    if start_lsn > lsn_int(end):
        start_lsn = 0  # of another life of this database: PostgreSQL would skip all up to there, silently
    listed = ", ".join(f"\"{name}\" '{value}'" for name, value in options.items())
    command = f"START_REPLICATION SLOT {slot} LOGICAL {lsn_text(start_lsn)} ({listed})"
    result = _query(pg, command.encode())
    if result.status != ExecStatus.COPY_BOTH:
        raise _refusal(pg, result, slot, decoder)
    return Identity(system_id, int(timeline), database)


def ended(pg: PGconn) -> StreamError:
    """Return why the server ended the COPY."""
    result = pg.get_result()
    if result is None or result.status != ExecStatus.FATAL_ERROR:
        return ServerAway("the server ended the stream: it is stopping")
    state = _sqlstate(result)
    if state == "42704":  # mid-stream nothing else is looked up by name
        return PublicationMissing("the publication is missing: run `oncommit migrate`, or create it")
    return _general(state, result)


def end_copy(pg: PGconn, deadline: float) -> None:
    """Leave the COPY and read what the server still sends, until `deadline` (monotonic seconds)."""
    if pg.put_copy_end() != 1:
        return
    copying = True
    while time.monotonic() < deadline:
        unsent = pg.flush() == 1
        count = pg.get_copy_data(1)[0] if copying else -1
        if count > 0:
            continue
        if count < 0:
            copying = False
            if not pg.is_busy() and pg.get_result() is None:
                return
        if pg.is_busy() or copying:
            wait(pg, deadline - time.monotonic(), write=unsent)
            pg.consume_input()


def wait(pg: PGconn, seconds: float, *, write: bool) -> None:
    """Wait until the socket can be read (or written, with `write`), at most `seconds`."""
    poll = select.poll()
    poll.register(pg.socket, select.POLLIN | (select.POLLOUT if write else 0))
    poll.poll(max(0.0, seconds) * 1000)


def _query(pg: PGconn, command: bytes) -> PGresult:
    """Run one command by the simple protocol; return its last result, or that of a COPY that began."""
    deadline = time.monotonic() + _COMMAND_S
    try:
        pg.send_query(command)
        last: PGresult | None = None
        while True:
            unsent = pg.flush() == 1
            while pg.is_busy():
                if (remaining := deadline - time.monotonic()) <= 0:
                    raise ServerAway(f"the server did not answer within {_COMMAND_S:g} s")
                wait(pg, remaining, write=unsent)
                pg.consume_input()
                unsent = pg.flush() == 1
            result = pg.get_result()
            if result is None:
                break
            last = result
            if result.status == ExecStatus.COPY_BOTH:
                return result
    except psycopg.OperationalError as error:
        raise ServerAway(f"the replication connection broke: {error}".strip()) from error
    if last is None:
        raise ServerAway("the server closed the connection")
    return last


def _rows(result: PGresult) -> list[list[str]]:
    """Return a query's rows as text, null as ''.

    Raises:
        StreamError: it failed.

    """
    if result.status != ExecStatus.TUPLES_OK:
        raise _general(_sqlstate(result), result)
    fields = range(result.nfields)
    return [[(result.get_value(row, n) or b"").decode() for n in fields] for row in range(result.ntuples)]


def _sqlstate(result: PGresult) -> str:
    return (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()


def _refusal(pg: PGconn, result: PGresult, slot: str, decoder: Decoder) -> StreamError:
    """Return what a refused START_REPLICATION means: its code, and what the catalog says of the slot."""
    state = _sqlstate(result)
    if pg.status != pq.ConnStatus.OK:
        return _general(state, result)
    found = _rows(_query(pg, SLOT_SQL.format(slot=slot).encode()))
    if not found:
        return SlotMissing(f"there is no slot {slot}")
    here, plugin, holder, wal_status = found[0]
    if here != "t":
        return SlotForeign(f"the slot {slot} belongs to another database of this cluster: set ONCOMMIT_SLOT")
    if wal_status == "lost":
        return SlotInvalidated(f"the slot {slot} was invalidated: its WAL is gone")
    meanings: dict[str, StreamError] = {
        "55006": SlotBusy(f"the slot {slot} is held by PID {holder or 'unknown'}"),
        "42501": forbidden(decoder.plugin),  # a role that may not replicate does not come so far
        "58P01": missing(decoder.plugin),
        "55000": ReplicationRefused(f"the server cannot decode its WAL: {_message(result)}"),
    }
    if plugin != decoder.plugin and state != "55006":
        return SlotWrongPlugin(f"the slot {slot} was made for {plugin}, the decoder is {decoder.plugin}")
    return meanings.get(state) or _general(state, result)


def _general(state: str, result: PGresult) -> StreamError:
    """Return the error of a code that means the same wherever it appears."""
    if not state or state.startswith(_AWAY_CLASSES):
        return ServerAway(f"the server ended the stream: {state or 'connection lost'} {_message(result)}")
    return StreamError(f"{state} {_message(result)}")


def _message(result: PGresult) -> str:
    return (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
