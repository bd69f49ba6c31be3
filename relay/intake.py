"""Intake: frames of one stream become bursts of rows, and the position up to which all is dealt with.

Knows where in a transaction reading stands; touches neither tables nor Redis. A new one for each stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from relay.errors import DecodeError
from relay.events import Commit, ControlRow, Decoder, OutboxRow, Poison
from relay.stream import Frame
from runtime import metrics
from runtime.failpoints import failpoint
from runtime.logs import get_logger

log = get_logger(__name__)


@dataclass(slots=True)
class Burst:
    """What one read brought, in order of the WAL; `unreadable` counts frames whose rows are not known."""

    rows: list[OutboxRow] = field(default_factory=list[OutboxRow])
    settings: list[ControlRow] = field(default_factory=list[ControlRow])
    poison: list[Poison] = field(default_factory=list[Poison])
    unreadable: int = 0


class Intake:
    """Reading's place within the WAL.

    Attributes:
        done_lsn: the end of the last whole transaction, 0 before the first: what may be confirmed once
            the burst is dealt with.
        in_transaction: rows were read whose commit was not.

    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.done_lsn = 0
        self.in_transaction = False

    def take(self, frames: Sequence[Frame]) -> Burst:
        """Decode what one read returned."""
        burst = Burst()
        failpoint("relay.after_read")
        feed, rows = self._decoder.feed, burst.rows
        for lsn, payload in frames:
            try:
                events = feed(payload, lsn)
            except DecodeError as error:
                # It would come again for ever, and its rows are in the tables: go on, and look there.
                log.error("relay.decode_error", reason=str(error))  # noqa: TRY400 -- the reason says it all
                metrics.count("relay_decode_errors_total")
                burst.unreadable += 1
                continue
            for event in events:
                # Also where the frame that began it could not be read.
                self.in_transaction = True
                if isinstance(event, OutboxRow):
                    rows.append(event)
                elif isinstance(event, Commit):
                    self.in_transaction = False
                    self.done_lsn = event.end_lsn
                elif isinstance(event, ControlRow):
                    burst.settings.append(event)
                elif isinstance(event, Poison):
                    burst.poison.append(event)
        failpoint("relay.after_decode")
        return burst
