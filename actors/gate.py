"""The gate before fetching: closed while the database is away, and for good when the process stops."""

import threading
from typing import Protocol

from runtime.logs import get_logger

log = get_logger(__name__)


class Fetching(Protocol):
    """What the gate needs of the broker."""

    def pause_fetching(self) -> None:
        """Take nothing more out of Redis; what is being worked on goes on."""

    def resume_fetching(self) -> None:
        """Take messages again."""

    def drain(self) -> None:
        """Put back what was fetched and not begun."""


class Gate:
    """Closed at first: it opens with the first heartbeat that PostgreSQL took."""

    def __init__(self, broker: Fetching) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self.database_away = True
        self.stopping = False
        broker.pause_fetching()

    def away(self) -> None:
        """Stop fetching: what is fetched could only be put back."""
        with self._lock:
            if not self.database_away:
                self.database_away = True
                self._broker.pause_fetching()
                log.warning("the database is away: fetching nothing until it answers")

    def back(self) -> None:
        """Fetch again: the database answered."""
        with self._lock:
            if self.database_away:
                self.database_away = False
                if not self.stopping:
                    self._broker.resume_fetching()
                    log.info("the database answers: fetching")

    def stop(self) -> None:
        """Stop fetching for good, and put back what was fetched and not begun."""
        with self._lock:
            self.stopping = True
            self._broker.pause_fetching()
        self._broker.drain()
