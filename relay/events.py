"""What a stream of committed changes says: frozen events, and log sequence numbers as integers.

Events are named tuples: some are made for every row, and a frozen dataclass takes four times as long.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

Table = Literal["outbox", "control"]
PluginName = Literal["wal2json", "pgoutput"]

# A log sequence number is a 64-bit byte position in the WAL, written as two hexadecimal halves.
_HALF_BITS = 32
_HALF_MASK = (1 << _HALF_BITS) - 1
_LSN = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Begin(NamedTuple):
    """A committed transaction starts. `xid` is the 32-bit id, `final_lsn` where its commit record lies."""

    xid: int
    final_lsn: int | None


class OutboxRow(NamedTuple):
    """An intent was inserted. `not_before` is aware; `body` is the whole encoded message.

    `created_at`, by the same clock, is told where `not_before` is: from one to the other is the pause meant.
    """

    intent: int
    message_id: str
    queue: str
    lane: str
    priority: int
    not_before: datetime | None
    body: str
    created_at: datetime | None = None


class ControlRow(NamedTuple):
    """A lane's settings were written, complete; the highest `version` wins. None: no limit."""

    version: int
    lane: str
    max_running: int | None
    weight: int
    rate_per_second: float | None
    burst: int
    paused: bool


class Poison(NamedTuple):
    """A row whose columns cannot be understood; `reason` names the column and holds no value of it.

    `intent` and `message_id` are what could still be read.
    """

    table: Table
    intent: int | None
    message_id: str | None
    reason: str


class Commit(NamedTuple):
    """The transaction is complete. Only `end_lsn` may be confirmed: `commit_lsn` would send it again."""

    end_lsn: int
    commit_lsn: int | None


Event = Begin | OutboxRow | ControlRow | Poison | Commit


class Decoder(Protocol):
    """Turns one plugin's frames into events; does no I/O. A new one for each connection."""

    @property
    def plugin(self) -> PluginName:
        """Name of the output plugin whose frames it reads."""
        ...

    def options(self, publication: str) -> dict[str, str]:
        """Return the options of START_REPLICATION that make the plugin say what is understood here."""
        ...

    def feed(self, payload: bytes | memoryview, header_lsn: int) -> Sequence[Event]:
        """Return the events of one frame, in order; `header_lsn` is the frame's own position (may be 0).

        Raises:
            DecodeError: the frame is not of this plugin.

        """
        ...


def lsn_text(lsn: int) -> str:
    """Return PostgreSQL's notation of a log sequence number, such as `16/B374D848`."""
    return f"{lsn >> _HALF_BITS:X}/{lsn & _HALF_MASK:X}"


def lsn_int(text: str) -> int:
    """Return the byte position that `16/B374D848` writes.

    Raises:
        ValueError: it is no log sequence number.

    """
    found = _LSN.fullmatch(text)
    if found is None:
        raise ValueError("not a log sequence number")
    high, low = found.groups()
    return int(high, 16) << _HALF_BITS | int(low, 16)
