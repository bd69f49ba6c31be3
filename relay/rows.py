"""From a row's columns to an event: the one place where both decoders judge what another hand wrote.

The schema's CHECKs are repeated here, because whoever owns the table can drop them: a row beyond
them becomes `Poison` and is quarantined, the next one goes on. Values are what JSON or PostgreSQL's
text output gives: numbers, booleans, None, or their text.
"""

import math
import re
from collections.abc import Mapping
from datetime import datetime

from relay.events import ControlRow, OutboxRow, Poison, Table

# The columns that are read, by name: others may be added, moved or dropped at will.
COLUMNS: dict[Table, frozenset[str]] = {
    "outbox": frozenset(
        {"id", "message_id", "queue", "lane", "priority", "not_before", "body", "created_at"}
    ),
    "control": frozenset({"version", "lane", "max_running", "weight", "rate_per_second", "burst", "paused"}),
}

# Of db/migrations/0001_tables.sql.
LANE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_CONTROL_LANE = re.compile(rf"\*|{LANE.pattern}")
QUEUE = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)  # a bigint has at most 19 digits
MESSAGE_ID_CHARS = 200
BODY_BYTES = range(2, 4096 + 1)
_BIGINT_MAX = 2**63 - 1

_BOOLEANS: dict[object, bool] = {"t": True, "f": False, "true": True, "false": False}

Columns = Mapping[str, object]


class Unreadable:
    """The value of a column that arrived in a form that cannot be read (pgoutput's unchanged TOAST)."""


UNREADABLE = Unreadable()


class _WrongError(ValueError):
    """A column breaks its rule; the text names both."""


def outbox_row(columns: Columns) -> OutboxRow | Poison:
    """Return the intent that the columns of an `outbox` row describe, or Poison with the reason."""
    try:
        lane = _text(columns, "lane", LANE)
        message_id = _text(columns, "message_id")
        if len(message_id) > MESSAGE_ID_CHARS or not message_id.startswith(lane + "|"):
            raise _WrongError("message_id: not `lane|rest`, or longer than 200 characters")  # noqa: TRY301 -- one exit
        not_before = _instant(columns, "not_before")
        return OutboxRow(
            intent=_integer(columns, "id", 1, _BIGINT_MAX),
            message_id=message_id,
            queue=_text(columns, "queue", QUEUE),
            lane=lane,
            priority=_integer(columns, "priority", 0, 9),
            not_before=not_before,
            body=_body(columns),
            created_at=_moment(columns.get("created_at")) if not_before else None,
        )
    except _WrongError as wrong:
        intent, name = _as_integer(columns.get("id")), columns.get("message_id")
        return Poison("outbox", intent, name if isinstance(name, str) else None, str(wrong))


def control_row(columns: Columns) -> ControlRow | Poison:
    """Return the settings that the columns of a `control` row describe, or Poison with the reason."""
    try:
        return ControlRow(
            version=_integer(columns, "version", 1, _BIGINT_MAX),
            lane=_text(columns, "lane", _CONTROL_LANE),
            max_running=_optional(columns, "max_running", 1, 100_000),
            weight=_integer(columns, "weight", 1, 100),
            rate_per_second=_rate(columns, "rate_per_second"),
            burst=_integer(columns, "burst", 1, 1_000_000),
            paused=_boolean(columns, "paused"),
        )
    except _WrongError as wrong:
        return Poison("control", None, None, str(wrong))


def row(table: Table, columns: Columns) -> OutboxRow | ControlRow | Poison:
    """Return the event for an inserted row of `table`."""
    return outbox_row(columns) if table == "outbox" else control_row(columns)


def _value(columns: Columns, name: str) -> object:
    try:
        return columns[name]
    except KeyError:
        raise _WrongError(f"{name}: the table has no such column") from None


def _text(columns: Columns, name: str, form: re.Pattern[str] | None = None) -> str:
    value = _value(columns, name)
    if not isinstance(value, str):
        raise _WrongError(f"{name}: null or no text")
    if form is not None and not form.fullmatch(value):
        raise _WrongError(f"{name}: not of the form {form.pattern}")
    return value


def _body(columns: Columns) -> str:
    body = _text(columns, "body")
    if len(body.encode()) not in BODY_BYTES:
        raise _WrongError("body: not between 2 and 4096 bytes")
    return body


def _as_integer(value: object) -> int | None:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _integer(columns: Columns, name: str, low: int, high: int) -> int:
    number = _as_integer(_value(columns, name))
    if number is None or not low <= number <= high:
        raise _WrongError(f"{name}: no integer from {low} to {high}")
    return number


def _optional(columns: Columns, name: str, low: int, high: int) -> int | None:
    return None if _value(columns, name) is None else _integer(columns, name, low, high)


def _boolean(columns: Columns, name: str) -> bool:
    value = _value(columns, name)
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value not in _BOOLEANS:
        raise _WrongError(f"{name}: no boolean")
    return _BOOLEANS[value]


def _rate(columns: Columns, name: str) -> float | None:
    value = _value(columns, name)
    if value is None:
        return None
    try:
        number = (
            float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
        )
    except (ValueError, OverflowError):
        number = math.nan
    if not 1e-6 <= number <= 1e6:  # noqa: PLR2004 -- the schema's own bounds; false for NaN too
        raise _WrongError(f"{name}: no number from 0.000001 to 1e6")
    return number


def _instant(columns: Columns, name: str) -> datetime | None:
    value = _value(columns, name)
    if value is None:
        return None
    instant = _moment(value)
    if instant is None:
        raise _WrongError(f"{name}: no instant with a time zone, from year 1 to 9999")
    return instant


def _moment(value: object) -> datetime | None:
    """Return an aware instant, or None: 'infinity', years after 9999 and years BC are PostgreSQL's alone."""
    try:
        instant = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return instant if instant is not None and instant.tzinfo is not None else None
