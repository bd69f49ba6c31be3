"""Read a slot as the relay does: a stream with its decoder, and events until there are enough."""

import time
from collections.abc import Callable

from psycopg.conninfo import make_conninfo

from relay import slot
from relay.events import Commit, ControlRow, Decoder, Event, OutboxRow, PluginName, Poison
from relay.stream import ReplicationStream
from support.postgres import Database

PUBLICATION = "oncommit_outbox"
DEADLINE_SECONDS = 20.0


class Reader:
    """A stream with its decoder, and what the tests do with the two."""

    def __init__(self, database: Database, plugin: PluginName) -> None:
        self.database = database
        self.plugin = plugin
        self.decoder: Decoder
        self.stream: ReplicationStream

    def open(
        self,
        *,
        start_lsn: int = 0,
        # Reads follow one another at the pace of a test, which may think for long between two.
        wal_sender_timeout: float = 60.0,
        publication: str = PUBLICATION,
        port: int = 0,
    ) -> ReplicationStream:
        """Open a stream as oncommit_relay; `port` leads it through a proxy."""
        self.decoder = slot.new_decoder(self.plugin)
        dsn = self.database.dsn("relay")
        if port:
            dsn = make_conninfo(dsn, port=port)
        self.stream = ReplicationStream.open(
            dsn,
            self.database.slot,
            self.decoder,
            publication=publication,
            start_lsn=start_lsn,
            wal_sender_timeout=wal_sender_timeout,
        )
        return self.stream

    def events(self, timeout: float = 0.1) -> list[Event]:
        """Read once and decode."""
        return [e for frame in self.stream.read(timeout) for e in self.decoder.feed(frame.payload, frame.lsn)]

    def until(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        """Read until `enough` is true of all events so far."""
        events: list[Event] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not enough(events):
            assert time.monotonic() < deadline, f"not enough within {DEADLINE_SECONDS:g} s: {events[-5:]}"
            events += self.events()
        return events

    def rows(self, count: int) -> list[Event]:
        """Read until so many rows and then their commit came; return the rows, poison among them."""

        def enough(events: list[Event]) -> bool:
            return bool(events) and isinstance(events[-1], Commit) and len(_rows(events)) >= count

        return _rows(self.until(enough))

    def mark(self) -> list[Event]:
        """Insert a marker, and return the rows that came before it."""
        self.database.admin.execute("INSERT INTO control (lane, who) VALUES ('marker', 'test')")

        def enough(events: list[Event]) -> bool:
            return any(getattr(event, "lane", None) == "marker" for event in events)

        return [e for e in _rows(self.until(enough)) if getattr(e, "lane", None) != "marker"]


def _rows(events: list[Event]) -> list[Event]:
    return [e for e in events if isinstance(e, (OutboxRow, ControlRow, Poison))]
