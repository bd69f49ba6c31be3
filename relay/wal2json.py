"""wal2json's format 2: one JSON object a frame (https://github.com/eulerto/wal2json)."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import orjson

from relay import usual
from relay.errors import DecodeError
from relay.events import Begin, Commit, Event, PluginName, Table, lsn_int
from relay.rows import row

_SCHEMA = "public"
_TABLES: dict[str, Table] = {"outbox": "outbox", "control": "control"}

# The two records around a transaction's rows.
_EDGE: Final = re.compile(
    r'\{"action":"([BC])","xid":([1-9][0-9]*),"lsn":"([0-9A-F/]+)","nextlsn":"([0-9A-F/]+)"\}'
)


class Wal2Json:
    """Decoder of wal2json frames; keeps nothing between them."""

    plugin: PluginName = "wal2json"

    def options(self, publication: str) -> dict[str, str]:  # noqa: ARG002 -- wal2json names tables instead
        """Return the plugin's options; it knows no publications."""
        return {
            "format-version": "2",
            "include-lsn": "true",
            "include-xids": "true",
            "include-transaction": "true",  # its C record carries the end of the transaction
            "include-types": "false",
            "actions": "insert",
            "add-tables": ",".join(f"{_SCHEMA}.{table}" for table in _TABLES),
            # Without it every pg_logical_emit_message() of the database is sent here in full.
            "add-msg-prefixes": "none-of-ours",
        }

    def feed(self, payload: bytes | memoryview, header_lsn: int) -> Sequence[Event]:
        """Return the event of one frame; none for what is not an insert into the two tables.

        Raises:
            DecodeError: it is no JSON object with the fields that wal2json writes.

        """
        try:
            text = str(payload, "utf-8")
            if edge := _EDGE.fullmatch(text):
                action, xid, lsn, next_lsn = edge.groups()
                return (_begin(xid, lsn) if action == "B" else _commit(lsn, next_lsn, header_lsn),)
            if intent := usual.record(text):
                return (intent,)
            return self._events(_parse(payload), header_lsn)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DecodeError(
                f"wal2json: a record misses what its action needs ({type(error).__name__})"
            ) from error

    def _events(self, record: Any, header_lsn: int) -> Sequence[Event]:
        action = record["action"]
        if action == "I":
            table = _TABLES.get(record["table"]) if record["schema"] == _SCHEMA else None
            if table is None:
                return ()
            return (row(table, {column["name"]: column.get("value") for column in record["columns"]}),)
        if action == "B":
            return (_begin(record["xid"], record["lsn"]),)
        if action == "C":
            return (_commit(record["lsn"], record["nextlsn"], header_lsn),)
        return ()


def _begin(xid: str | int, lsn: str) -> Begin:
    return Begin(int(xid), lsn_int(lsn))


def _commit(lsn: str, next_lsn: str, header_lsn: int) -> Commit:
    end = lsn_int(next_lsn)
    if end > header_lsn:
        raise ValueError("a commit ends beyond what was sent")
    return Commit(end, lsn_int(lsn))


def _parse(payload: bytes | memoryview) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        pass
    try:
        # A numeric column that somebody added may hold a number that orjson refuses (`1e400`, written
        # out): read it again with every number as its text, which `rows` understands as well.
        return json.loads(bytes(payload), parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise DecodeError("wal2json: a frame is no JSON") from error
