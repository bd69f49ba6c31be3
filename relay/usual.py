"""The usual row: an intent that is due at once, in a table as migration 0001 makes it. Almost all are such.

It is read by its form, in a third of the time that reading with care takes, and means the same: whatever
looks different in any way, well-formed or not, is `None` here, and the decoders read it with care.
"""

import re
import struct
from collections.abc import Sequence
from typing import Final

import orjson

from relay.events import OutboxRow
from relay.rows import BODY_BYTES, LANE, MESSAGE_ID_CHARS, QUEUE

_COLUMNS: Final = ("id", "message_id", "queue", "lane", "priority", "not_before", "body", "created_at")
# Any number of so few digits is a bigint.
_DIGITS: Final = 18

# wal2json: all before the body, and what follows it. Within a text their quotes would be escaped.
_BEFORE_BODY: Final = re.compile(
    r'\{"action":"I","xid":[1-9][0-9]*,"lsn":"[0-9A-F/]+","schema":"public","table":"outbox","columns":\['
    rf'\{{"name":"id","value":([1-9][0-9]{{0,{_DIGITS - 1}}})\}},'
    rf'\{{"name":"message_id","value":"([^"\\\x00-\x1f]{{3,{MESSAGE_ID_CHARS}}})"\}},'
    rf'\{{"name":"queue","value":"({QUEUE.pattern})"\}},'
    rf'\{{"name":"lane","value":"({LANE.pattern})"\}},'
    r'\{"name":"priority","value":([0-9])\},'
    r'\{"name":"not_before","value":null\},'
    r'\{"name":"body","value":'
)
_AFTER_BODY: Final = '},{"name":"created_at","value":"'
_END: Final = '"}]}'

# pgoutput: a text is its kind, its size in four bytes, and itself; null is one byte. `middle` is all from the
# end of the message id to the size of the body, whose upper half is 0.
_START: Final = b"I%bN%bt\0\0\0"
_ID_AT: Final = 13
_HEAD: Final = 5
_SHORT: Final = b"t\0\0\0"  # a text of at most 255 bytes; the last byte of its size follows
_MIDDLE: Final = b"t%b%bt%b%bt\0\0\0\1%dnt\0\0"
_AFTER_LANE: Final = 10  # the priority's column of 6 bytes, null, and 3 bytes of the body's
_NO_START: Final = b"\0no message begins so"
_SIZE: Final = struct.Struct("!I")
_LOWER_SIZE: Final = struct.Struct("!H")
_COUNT: Final = struct.Struct("!h")
#: Middles kept, one for each queue, lane and priority: 3 MB or so.
_MOST_MIDDLES: Final = 10_000


def record(text: str) -> OutboxRow | None:
    """Return the usual row of a frame of wal2json."""
    head = _BEFORE_BODY.match(text)
    if head is None:
        return None
    number, message_id, queue, lane, priority = head.groups()
    body_ends = text.rfind(_AFTER_BODY)
    created = text[body_ends + len(_AFTER_BODY) : -len(_END)]
    if (
        body_ends < 0
        or not (created.isprintable() and '"' not in created and "\\" not in created and text.endswith(_END))
        or not message_id.startswith(lane + "|")
    ):
        return None
    try:
        body = orjson.loads(text[head.end() : body_ends])
    except orjson.JSONDecodeError:
        return None
    if not isinstance(body, str) or len(body.encode()) not in BODY_BYTES:
        return None
    return OutboxRow(int(number), message_id, queue, lane, int(priority), None, body, None)


class Inserts:
    """The usual rows of pgoutput, on one connection. `start` is how such a message begins."""

    def __init__(self) -> None:
        self.start = _NO_START
        self._middles: dict[bytes, tuple[bytes, str, str, int]] = {}

    def announced(self, oid: int, columns: Sequence[str], *, outbox: bool) -> None:
        """Take in what a relation is now."""
        start = _START % (_SIZE.pack(oid), _COUNT.pack(len(_COLUMNS)))
        if outbox and tuple(columns) == _COLUMNS:
            self.start = start
        elif self.start == start:
            self.start = _NO_START

    def learn(self, row: OutboxRow) -> None:
        """Keep the middle of a row that was read with care, as it is written in a usual one."""
        if self.start == _NO_START:
            return
        if len(self._middles) >= _MOST_MIDDLES:
            self._middles.clear()
        queue, lane = row.queue.encode(), row.lane.encode()
        middle = _MIDDLE % (_SIZE.pack(len(queue)), queue, _SIZE.pack(len(lane)), lane, row.priority)
        self._middles[middle] = lane + b"|", row.queue, row.lane, row.priority

    def row(self, message: bytes) -> OutboxRow | None:
        """Return the usual row of a message that begins with `start`, its middle learned before.

        Where a column lies follows from the sizes of those before it.

        Raises:
            ValueError: it holds text that is no UTF-8.

        """
        try:
            id_ends = _ID_AT + message[_ID_AT - 1]
            name_at = id_ends + _HEAD
            name_ends = name_at + message[name_at - 1]
            queue_ends = name_ends + _HEAD + message[name_ends + _HEAD - 1]
            middle_ends = queue_ends + _HEAD + message[queue_ends + _HEAD - 1] + _AFTER_LANE
            lane_bar, queue, lane, priority = self._middles[message[name_ends:middle_ends]]
            size: int = _LOWER_SIZE.unpack_from(message, middle_ends)[0]
            body_at = middle_ends + _LOWER_SIZE.size
            body_ends = body_at + size
            ends = body_ends + _HEAD + message[body_ends + _HEAD - 1]
        except (IndexError, KeyError, struct.error):
            return None
        number, name = message[_ID_AT:id_ends], message[name_at:name_ends]
        if (
            ends != len(message)
            or message[id_ends : name_at - 1] != _SHORT
            or message[body_ends : body_ends + _HEAD - 1] != _SHORT
            or not message[body_ends:].isascii()
            or not (number.isdigit() and len(number) <= _DIGITS and number[:1] != b"0")
            or not (name.startswith(lane_bar) and len(name) <= MESSAGE_ID_CHARS)
            or size not in BODY_BYTES
        ):
            return None
        body = message[body_at:body_ends].decode()
        return OutboxRow(int(number), name.decode(), queue, lane, priority, None, body, None)
