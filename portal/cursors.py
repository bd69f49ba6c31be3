"""Cursors of lists: where a page ended, and for which question.

Opaque to callers and no secret: a cursor that is broken, made up, or meant for another question (or
team) is refused, and one that was made up well is only a position in the caller's own list.
"""

import base64
import binascii
import hashlib
import struct
from datetime import UTC, datetime, timedelta
from uuid import UUID

from db.reads import Position
from portal.problems import Fault, Problem

_FORM = struct.Struct("!q16s8s")  # microseconds since 1970, id, check
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _check(question: str) -> bytes:
    return hashlib.sha256(question.encode()).digest()[:8]


def encode(position: Position, question: str) -> str:
    """Return the cursor of `position` in the answers to `question`."""
    microseconds = (position.created_at - _EPOCH) // timedelta(microseconds=1)
    packed = _FORM.pack(microseconds, position.id.bytes, _check(question))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def decode(cursor: str, question: str) -> Position:
    """Return the position that `encode` wrote for this question.

    Raises:
        Problem: invalid-request.

    """
    try:
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        microseconds, raw, check = _FORM.unpack(packed)
        position = Position(_EPOCH + timedelta(microseconds=microseconds), UUID(bytes=raw))
    except (ValueError, OverflowError, struct.error, binascii.Error):
        raise _wrong() from None
    if check != _check(question):
        raise _wrong()
    return position


def _wrong() -> Problem:
    return Problem("invalid-request", errors=[Fault("cursor", "not a cursor of this list")])
