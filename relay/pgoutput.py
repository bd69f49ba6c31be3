"""pgoutput, protocol version 1: binary messages (PostgreSQL manual, "Logical Replication Message Formats").

Tuples arrive as text: with `DateStyle`, `TimeZone` and encoding pinned by the stream's connection,
text is the one form that does not depend on column types.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from relay.errors import DecodeError
from relay.events import Begin, Commit, Event, OutboxRow, PluginName, Table
from relay.rows import COLUMNS, UNREADABLE, row
from relay.usual import Inserts

_SCHEMA: Final = "public"
_TABLES: Final[dict[str, Table]] = {"outbox": "outbox", "control": "control"}

_BEGIN: Final = struct.Struct("!QqI")  # final LSN, commit time, xid
_COMMIT: Final = struct.Struct("!BQQq")  # flags, commit LSN, end LSN, commit time
_UINT32: Final = struct.Struct("!I")
_INT16: Final = struct.Struct("!h")
_COLUMN_TAIL: Final = 8  # type oid and type modifier, 4 bytes each
_TUPLE_START: Final = 8  # of an insert's first column: kind, relation, 'N', number of columns before it

_NULL: Final = ord("n")
_UNCHANGED: Final = ord("u")
_TEXT: Final = ord("t")
_SIZED: Final = frozenset(b"tb")


@dataclass(frozen=True, slots=True)
class _Relation:
    """A table as its newest relation message describes it; None for a column that nobody reads."""

    table: Table
    columns: tuple[str | None, ...]


class PgOutput:
    """Decoder of pgoutput messages; keeps the relations that this connection has announced."""

    plugin: PluginName = "pgoutput"

    def __init__(self) -> None:
        self._relations: dict[int, _Relation | None] = {}
        self._usual = Inserts()

    def options(self, publication: str) -> dict[str, str]:
        """Return the plugin's options; `publication` names what is streamed."""
        return {"proto_version": "1", "publication_names": publication}

    def feed(self, payload: bytes | memoryview, header_lsn: int) -> Sequence[Event]:
        """Return the event of one message; none for relations and for what is not an insert.

        Raises:
            DecodeError: the message is cut short, or an insert names a relation that was never announced.

        """
        message = bytes(payload)
        try:
            if message.startswith(self._usual.start) and (intent := self._usual.row(message)):
                return (intent,)
            return self._events(message, header_lsn)
        except (struct.error, IndexError, ValueError, KeyError) as error:
            kind = ascii(message[:1])
            raise DecodeError(
                f"pgoutput: a message of kind {kind} is malformed ({type(error).__name__})"
            ) from error

    def _events(self, message: bytes, header_lsn: int) -> Sequence[Event]:
        kind = message[:1]
        if kind == b"I":
            return self._insert(message)
        if kind == b"B":
            final_lsn, _, xid = _BEGIN.unpack_from(message, 1)
            return (Begin(xid, final_lsn),)
        if kind == b"C":
            _, commit_lsn, end_lsn, _ = _COMMIT.unpack_from(message, 1)
            if end_lsn > header_lsn:
                raise ValueError("a commit ends beyond what was sent")
            return (Commit(end_lsn, commit_lsn),)
        if kind == b"R":
            self._announce(message)
        # Updates, deletes, truncates, types, origins and logical messages dispatch nothing.
        return ()

    def _announce(self, message: bytes) -> None:
        (oid,) = _UINT32.unpack_from(message, 1)
        schema, at = _string(message, 5)
        name, at = _string(message, at)
        at += 1  # replica identity
        (count,) = _INT16.unpack_from(message, at)
        at += _INT16.size
        names: list[str] = []
        for _ in range(count):
            column, at = _string(message, at + 1)  # after the column's flags
            at += _COLUMN_TAIL
            names.append(column)
        if at > len(message):
            raise ValueError("a relation message is cut short")
        table = _TABLES.get(name) if schema == _SCHEMA else None
        self._usual.announced(oid, names, outbox=table == "outbox")
        if table is None:
            self._relations[oid] = None
        else:
            wanted = COLUMNS[table]
            self._relations[oid] = _Relation(table, tuple(c if c in wanted else None for c in names))

    def _insert(self, message: bytes) -> Sequence[Event]:
        (oid,) = _UINT32.unpack_from(message, 1)
        relation = self._relations[oid]
        if relation is None:
            return ()
        if message[5:6] != b"N":
            raise ValueError("an insert without a new tuple")
        (count,) = _INT16.unpack_from(message, 6)
        if count != len(relation.columns):
            raise ValueError("an insert does not fit its relation")
        event = row(relation.table, _columns(message, relation.columns))
        if isinstance(event, OutboxRow):
            self._usual.learn(event)
        return (event,)


def _columns(message: bytes, names: tuple[str | None, ...]) -> dict[str, object]:
    """Return the wanted columns of an insert: text, None or UNREADABLE. One loop: it runs for each row."""
    columns: dict[str, object] = {}
    at = _TUPLE_START
    for name in names:
        kind = message[at]
        at += 1
        value: object = None
        if kind in _SIZED:
            (size,) = _UINT32.unpack_from(message, at)
            at += _UINT32.size + size
            if name is not None:
                # Binary was not asked for; whoever sends it gets the row quarantined, not the stream stopped.
                value = message[at - size : at].decode() if kind == _TEXT else UNREADABLE
        elif kind == _UNCHANGED:
            value = UNREADABLE  # TOAST that an update left alone; no insert has it
        elif kind != _NULL:
            raise ValueError("unknown kind of column value")
        if name is not None:
            columns[name] = value
    if at != len(message):
        raise ValueError("an insert of another length than it says")
    return columns


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1
