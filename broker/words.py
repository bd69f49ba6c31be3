"""What is said to the lanes and what they answer: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

#: A message's score is priority * 2^48 + intent id: exact in a double up to priority 31.
PRIORITY_STEP = 2**48


class Outgoing(NamedTuple):
    """A message to publish. `message_id` begins with `{lane}|`; a lower `priority` (0-9) goes first."""

    queue: str
    message_id: str
    lane: str
    priority: int
    intent: int
    delay_ms: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Limit:
    """One version of a lane's settings; lane `*` holds the global pause. None means no limit.

    `max_running`: messages in flight at one time. `weight`: turns in a row. `rate_per_second`: starts;
    `burst`: starts at once after idling.
    """

    lane: str
    version: int
    max_running: int | None
    weight: int
    rate_per_second: float | None
    burst: int
    paused: bool

    def packed(self) -> str:
        """Return the settings as the script keeps them."""
        cap = "-" if self.max_running is None else self.max_running
        rate = "-" if self.rate_per_second is None else repr(float(self.rate_per_second))
        return f"{self.version} {cap} {self.weight} {rate} {self.burst} {int(self.paused)}"


@dataclass(frozen=True, slots=True)
class Token:
    """Who wrote last (a relay's epoch), and its how-many-eth write that was."""

    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish did; all 0 when it had been applied before (a lost reply).

    `new`: was not there, or takes the place of an older intent of its id. `duplicate`: alive already.
    `revived`: known to Redis in part, and alive again.
    """

    new: int
    duplicate: int
    revived: int


@dataclass(frozen=True, slots=True)
class Seized:
    """`lost`: Redis may have forgotten messages. `position`: how far the last relay had read."""

    lost: bool
    position: dict[str, str]


class Verb(StrEnum):
    """How a delivery ends. A refund returns the lane's token and turn: nothing was started."""

    ACK = "ack"
    DEFER = "defer"
    REFUND = "refund"  # defer with a refund
    HOLD = "hold"  # refund, and leave the lane alone for 250 ms: the database says it is paused or full
    REQUEUE = "requeue"  # back to its place in the lane, with a refund


@dataclass(frozen=True, slots=True)
class Settled:
    """The end of one delivery; `delay_ms` counts for the deferring verbs only."""

    message_id: str
    verb: Verb = Verb.ACK
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Fetched:
    """Messages (id, body) that are now in flight, and after how many ms time itself brings more.

    `intents`: id -> the number of the intent that came under it.
    """

    messages: list[tuple[str, bytes]]
    wait_ms: int
    intents: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LaneStats:
    """One lane: `state` is ring, full, throttled, paused, closed, or idle (nothing waits)."""

    lane: str
    waiting: int
    running: int
    state: str


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts of one queue. `next_due_ms`: until the next delayed message, None without any.

    `lanes`: the longest of a sample of the lanes, longest first.
    """

    messages: int
    waiting: int
    delayed: int
    running: int
    lanes_waiting: int
    consumers: int
    next_due_ms: int | None
    lanes: list[LaneStats]


class TokenMismatch(Exception):
    """Redis holds another token than expected; nothing was changed. `stored`: None when it has none."""

    def __init__(self, stored: Token | None) -> None:
        super().__init__(f"stored token: {stored}")
        self.stored = stored
