"""A slot that another hand made again, or moved on: what lay between was read by nobody.

Seen by the relay that had it last, as long as no other relay reigned since: it alone knows how far it
has confirmed, and nobody else may have confirmed more.
"""

from typing import Any, Final

from psycopg import Connection

from db import control
from relay.events import lsn_int
from relay.replication import Identity
from relay.slot import SlotState, identity
from runtime import metrics
from runtime.logs import get_logger

log = get_logger(__name__)

WHY: Final = "remade"


class SlotMemory:
    """How far one process has confirmed its slot; it outlives its reigns."""

    def __init__(self) -> None:
        self._life: Identity | None = None
        self._epoch = 0
        self._confirmed = 0

    def begin(self, conn: Connection[Any], state: SlotState) -> None:
        """Take note of where the slot stands that a stream was just started on."""
        self._life = identity(conn)
        self._confirmed = _position(state)

    def drew(self, epoch: int) -> None:
        """Take note of an epoch: while it is the last one, no other relay has reigned."""
        self._epoch = epoch

    def end(self, confirmed: int) -> None:
        """Take note of how far the stream that ends has confirmed; 0 for nowhere."""
        self._confirmed = max(self._confirmed, confirmed)

    def look(self, conn: Connection[Any], slot: str, state: SlotState) -> None:
        """Tell, loudly, when the slot stands beyond what was confirmed; the resync that follows mends it.

        Raises:
            DatabaseError: the server is away.

        """
        found = _position(state)
        if not 0 < self._confirmed < found or self._life != identity(conn):
            return
        if control.last_epoch(conn) != self._epoch:
            return
        log.error("relay.slot_remade", slot=slot, skipped_bytes=found - self._confirmed)
        metrics.count("relay_slots_made_total", why=WHY)
        self._confirmed = found  # told once, however often no stream can be had on it


def _position(state: SlotState) -> int:
    return lsn_int(state.confirmed_flush_lsn) if state.confirmed_flush_lsn else 0
