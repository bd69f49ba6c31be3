"""Source: the slot and its stream, gotten, kept and watched. Without a stream it says why."""

from collections.abc import Mapping
from typing import Any, Final

from psycopg import Connection

from relay import publication, slot
from relay.dial import Dial
from relay.errors import (
    PluginForbidden,
    PluginMissing,
    PublicationMissing,
    ReplicationRefused,
    ServerAway,
    SlotCreationBlocked,
    SlotForeign,
    SlotInvalidated,
    SlotMissing,
    SlotWrongPlugin,
    StreamError,
)
from relay.events import Decoder, PluginName, lsn_int, lsn_text
from relay.remade import SlotMemory
from relay.stream import ReplicationStream
from runtime import metrics
from runtime.logs import get_logger, redact
from runtime.settings import Settings

log = get_logger(__name__)

#: A relay that froze or whose machine vanished gives the slot up after this, seconds. Our own calls end
#: before that: Redis' after 2 s, PostgreSQL's after 8 s.
WAL_SENDER_TIMEOUT: Final = 10.0
PLUGINS: Final[tuple[PluginName, ...]] = ("wal2json", "pgoutput")
#: Making a slot waits for open write transactions, and polling waits meanwhile: dispatch within 2 s.
CREATE_SECONDS: Final = 0.5
#: How long a reign waits for the stream's connection at first, and at each try while it polls.
PATIENCE_SECONDS: Final = 1.0
POLLING_PATIENCE_SECONDS: Final = 0.25
#: What leaves dispatch to polling instead of ending the reign.
_NO_STREAM = (
    SlotCreationBlocked, ReplicationRefused, PublicationMissing, SlotForeign, PluginForbidden, PluginMissing,
)  # fmt: skip
#: The slot went away between looking and attaching: once more makes a new one.
_VANISHED = (SlotMissing, SlotInvalidated, SlotWrongPlugin)

_SLOT_GAUGES: Final = (
    "relay_slot_lag_bytes",
    "relay_slot_retained_bytes",
    "relay_slot_safe_bytes",
    "relay_slot_wal_status",
)


class Source:
    """The relay's place in the WAL. `stream` is None while none can be had; `reason` says why."""

    def __init__(self, settings: Settings, conn: Connection[Any], memory: SlotMemory) -> None:
        self._dsn = (settings.replication_url or settings.database_url).get_secret_value()
        self._dial = Dial(self._dsn, WAL_SENDER_TIMEOUT)
        self._wish: slot.Wish = settings.decoder
        self._publication = settings.publication
        self._conn = conn
        self.memory = memory
        self.slot = settings.slot
        self.plugin: PluginName = "pgoutput"
        self.stream: ReplicationStream | None = None
        self.decoder: Decoder = slot.new_decoder(self.plugin)
        self.reason = "not tried yet"
        self._polling = False
        self._chosen = False
        self._passed: list[str] = []

    def attach(self, start: int) -> ReplicationStream | None:
        """Make sure of the slot and start its stream at `start`; None when dispatch must poll meanwhile.

        Raises:
            SlotBusy: another relay has it, or polls already.
            StreamError, DatabaseError: begin anew; so does ServerAway, where nothing else is served either.

        """
        try:
            if not self._chosen:
                self.plugin = self._choose()
                self._chosen = True
            if self.plugin == "pgoutput" and not publication.passes_all(self._conn, self._publication):
                raise PublicationMissing(
                    f"the publication {self._publication} does not pass inserts into outbox and control: "
                    "run `oncommit migrate`"
                )
            self._passed = publication.state(self._conn, self._publication)
            self.stream = self._start(start)
        except _NO_STREAM as error:
            # Without a stream the slot is no lock between relays: this one is, while the reign lasts.
            slot.lock_polling(self._conn, self.slot, again=self._polling)
            self._polling = True
            # It is shown by the health page, and libpq quotes what it could not read of a connection string.
            reason = redact(str(error))
            if self.reason != reason:
                log.error("relay.no_stream", reason=reason, kind=type(error).__name__)  # noqa: TRY400
            self.reason = reason
            metrics.gauge("relay_streaming", 0)
            return None
        self.memory.begin(self._conn, slot.slot_state(self._conn, self.slot))
        self.reason = "ok"
        metrics.gauge("relay_streaming", 1)
        return self.stream

    def _choose(self) -> PluginName:
        """Return the plugin to read with; raises as `slot.choose_decoder` does."""
        try:
            return slot.choose_decoder(self._conn, self._wish)
        except ReplicationRefused:
            # Trying a plugin takes a slot more, and all may be taken: one of them is this relay's, and tells.
            mine = slot.slot_state(self._conn, self.slot)
            for plugin in PLUGINS:
                if mine.here and mine.plugin == plugin and self._wish in {"auto", plugin}:
                    return plugin
            raise

    def _start(self, start: int) -> ReplicationStream:
        for last_try in (False, True):
            ensured = slot.ensure_slot(
                self._conn,
                self.slot,
                self.plugin,
                timeout=CREATE_SECONDS,
                publication=self._publication if self.plugin == "pgoutput" else "",
            )
            if ensured is not slot.Ensured.EXISTING:
                log.warning("relay.new_slot", slot=self.slot, why=ensured, plugin=self.plugin)
                metrics.count("relay_slots_made_total", why=ensured)
            else:
                self.memory.look(self._conn, self.slot, slot.slot_state(self._conn, self.slot))
            self.decoder = slot.new_decoder(self.plugin)
            patience = POLLING_PATIENCE_SECONDS if self._polling else PATIENCE_SECONDS
            try:
                return ReplicationStream.open(
                    self._dsn,
                    self.slot,
                    self.decoder,
                    publication=self._publication,
                    start_lsn=start,
                    wal_sender_timeout=WAL_SENDER_TIMEOUT,
                    conn=self._dial.connection(patience),
                )
            except _VANISHED:
                if last_try:
                    raise
            except ServerAway as error:
                # Where this connection is served, it is the stream's that is refused: its password, the last
                # WAL sender, pg_hba.conf. Then dispatch polls.
                slot.slot_state(self._conn, self.slot)
                raise ReplicationRefused(str(error)) from error
        raise AssertionError("unreachable")

    def is_ours(self) -> bool:
        """Prove that the slot is held by this very stream; while polling, that nobody holds it."""
        if self.stream is None:
            return slot.slot_state(self._conn, self.slot).active_pid is None
        return slot.owns_slot(self._conn, self.slot, self.stream.pid)

    def position(self, stored: Mapping[str, str]) -> int:
        """Return where to start from what the last reign stored, 0 (the slot's own) when it is no use.

        A position counts in the same life of the same database only, and never beyond its WAL.
        """
        if not stored or not self.same_life(stored) or stored.get("slot") != self.slot:
            return 0
        try:
            return lsn_int(stored.get("lsn", ""))
        except ValueError:
            return 0

    def same_life(self, stored: Mapping[str, str]) -> bool:
        """Tell whether what is stored was written in this life of this database, or never."""
        life = slot.identity(self._conn)
        mine = {"system": life.system_id, "timeline": str(life.timeline), "database": life.database}
        return not stored or all(stored.get(key) == value for key, value in mine.items())

    def position_data(self, lsn: int) -> Mapping[str, str]:
        """Return what to store in Redis beside the messages: where reading has come to."""
        if self.stream is None:
            return {}
        life = self.stream.identity
        return {
            "system": life.system_id,
            "timeline": str(life.timeline),
            "database": life.database,
            "slot": self.slot,
            "lsn": lsn_text(lsn),
        }

    def inspect(self) -> bool:
        """Look at the slot and the publication between reads; return whether rows may have passed unseen.

        Raises:
            StreamError: the publication was taken away: PostgreSQL 18 would skip rows in silence.
            DatabaseError: the server is away.

        """
        _measure(slot.slot_state(self._conn, self.slot))
        if self.stream is None:
            return False
        if self.plugin == "pgoutput" and not publication.passes_all(self._conn, self._publication):
            raise StreamError("the publication was taken away while streaming: run `oncommit migrate`")
        before, self._passed = self._passed, publication.state(self._conn, self._publication)
        return self._passed != before

    def close(self) -> None:
        """Give the slot back, within a second."""
        self._dial.close()
        if self.stream is not None:
            self.stream.close()
            self.memory.end(self.stream.confirmed)
            self.stream = None
        metrics.gauge("relay_streaming", 0)
        metrics.forget(*_SLOT_GAUGES)  # the next reign may be another relay's


def _measure(state: slot.SlotState) -> None:
    metrics.gauge("relay_slot_lag_bytes", state.lag_bytes or 0)
    metrics.gauge("relay_slot_retained_bytes", state.retained_bytes or 0)
    metrics.gauge("relay_slot_safe_bytes", -1 if state.safe_wal_size is None else state.safe_wal_size)
    metrics.gauges("relay_slot_wal_status", {(state.wal_status or "none",): 1})
