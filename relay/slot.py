"""The replication slot as the catalog shows it: choose its plugin, make it, mend it, know its owner.

Ordinary connections in autocommit, as the role oncommit_relay. A slot's name is one for the whole
cluster, though a logical slot belongs to one database: another database's slot is never touched.
Driver errors that say nothing about slots are raised as db.errors.DatabaseError.
"""

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import psycopg
from psycopg import errors as pg
from psycopg.rows import class_row

from db.catalog import POLLING_KEY
from db.errors import translated
from relay.birth import CREATE_S, PROBE_S, make_slot, probe, stands_before
from relay.errors import SlotBusy, SlotForeign
from relay.events import Decoder, PluginName
from relay.pgoutput import PgOutput
from relay.replication import Identity
from relay.wal2json import Wal2Json

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]
Wish = Literal["auto", "wal2json", "pgoutput"]


class Ensured(StrEnum):
    """What `ensure_slot` found. All but `existing` mean that rows may have passed unseen: resync."""

    CREATED = "created"
    EXISTING = "existing"
    WRONG_PLUGIN = "wrong_plugin"
    LOST = "lost"
    BEFORE_PUBLICATION = "before_publication"


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot's row in pg_replication_slots; positions are text such as `16/B374D848`, sizes bytes.

    `lag_bytes` is WAL not confirmed yet, `retained_bytes` WAL that the slot keeps on disk (follows at
    checkpoints), `safe_wal_size` what may still be written before it is lost (None: no limit is set).
    """

    exists: bool
    here: bool = False
    plugin: str | None = None
    active_pid: int | None = None
    restart_lsn: str | None = None
    confirmed_flush_lsn: str | None = None
    wal_status: str | None = None
    safe_wal_size: int | None = None
    lag_bytes: int | None = None
    retained_bytes: int | None = None

    @property
    def lost(self) -> bool:
        """Whether its WAL is gone for good, for whatever reason."""
        return self.wal_status == "lost"


def new_decoder(plugin: PluginName) -> Decoder:
    """Return a fresh decoder for one connection."""
    return Wal2Json() if plugin == "wal2json" else PgOutput()


def choose_decoder(conn: Connection, wish: Wish, *, timeout: float = PROBE_S) -> PluginName:
    """Return the plugin to use: for `auto`, wal2json where the server has it and allows it.

    Raises:
        PluginForbidden, PluginMissing: wal2json was wished for and cannot be had; says what to set.
        ReplicationRefused: no logical slot can be made here at all.
        DatabaseError: the server is away.

    """
    if wish == "pgoutput":
        return "pgoutput"
    error = probe(conn, "wal2json", timeout)
    if error is None:
        return "wal2json"
    if wish == "wal2json":
        raise error
    log.info("relay: using pgoutput: %s", error)
    return "pgoutput"


STATE = """
SELECT true AS exists, coalesce(database = current_database(), false) AS here, plugin, active_pid,
       restart_lsn::text, confirmed_flush_lsn::text, wal_status, safe_wal_size,
       (pg_current_wal_lsn() - confirmed_flush_lsn)::bigint AS lag_bytes,
       (pg_current_wal_lsn() - restart_lsn)::bigint AS retained_bytes
  FROM pg_replication_slots WHERE slot_name = %s
"""


def slot_state(conn: Connection, slot: str) -> SlotState:
    """Return what the catalog says of the slot.

    Raises:
        DatabaseError: the server is away, or is a standby.

    """
    with translated(), conn.cursor(row_factory=class_row(SlotState)) as cursor:
        return cursor.execute(STATE, [slot]).fetchone() or SlotState(exists=False)


DROP = "SELECT pg_drop_replication_slot(%s)"


def ensure_slot(
    conn: Connection, slot: str, plugin: PluginName, *, timeout: float = CREATE_S, publication: str = ""
) -> Ensured:
    """Make sure that a readable slot with this plugin exists; return what had to be done.

    A lost slot, one of the other plugin, or one that may stand before the birth of `publication` is dropped
    and made again, unless somebody reads from it.

    Raises:
        SlotForeign: another database of the cluster has the name.
        SlotBusy: it would have to be made again, and somebody reads from it.
        SlotCreationBlocked: no slot within `timeout` seconds; the WAL cannot be read for now.
        PluginForbidden, PluginMissing, ReplicationRefused: the server will not make one.
        DatabaseError: the server is away.

    """
    state = slot_state(conn, slot)
    outcome = Ensured.CREATED
    if state.exists:
        if not state.here:
            raise SlotForeign(
                f"the slot {slot} belongs to another database of this cluster: set ONCOMMIT_SLOT"
            )
        if state.lost:
            outcome = Ensured.LOST
        elif state.plugin != plugin:
            outcome = Ensured.WRONG_PLUGIN
        elif publication and stands_before(conn, slot, publication):
            outcome = Ensured.BEFORE_PUBLICATION
        else:
            return Ensured.EXISTING
        log.warning(
            "relay: dropping the slot %s (%s, plugin %s) to make it again", slot, outcome, state.plugin
        )
        drop_slot(conn, slot)
    if not make_slot(conn, slot, plugin, timeout):
        # Another relay was faster. Its slot was born as late as ours would have been: resync just the same.
        log.info("relay: the slot %s was made by somebody else just now", slot)
    return outcome


def drop_slot(conn: Connection, slot: str) -> None:
    """Drop the slot; nothing when it is gone already.

    Raises:
        SlotBusy: somebody reads from it.
        DatabaseError: the server is away.

    """
    with translated():
        try:
            conn.execute(DROP, [slot])
        except pg.UndefinedObject:
            return
        except pg.ObjectInUse as error:
            raise SlotBusy(f"the slot {slot} is in use, and cannot be dropped") from error


OWNS = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s AND active_pid = %s)"


def owns_slot(conn: Connection, slot: str, pid: int) -> bool:
    """Return whether the walsender `pid` (`ReplicationStream.pid`) holds the slot now.

    Raises:
        DatabaseError: the server is away.

    """
    with translated():
        return conn.execute(OWNS, [slot, pid]).fetchone() == (True,)


LOCK_POLLING = f"SELECT pg_try_advisory_lock({POLLING_KEY})"


def lock_polling(conn: Connection, slot: str, *, again: bool) -> None:
    """Make sure that no other relay streams or polls; the session holds the lock until it ends.

    `again`: this session has the lock already.

    Raises:
        SlotBusy: another relay streams, or polls.
        DatabaseError: the server is away.

    """
    if (holder := slot_state(conn, slot).active_pid) is not None:
        raise SlotBusy(f"the slot {slot} is held by PID {holder}")
    with translated():
        if not again and conn.execute(LOCK_POLLING, [slot]).fetchone() != (True,):
            raise SlotBusy("another relay polls")


IDENTITY = """
SELECT system_identifier::text, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int,
       current_database()
  FROM pg_control_system()
"""


def identity(conn: Connection) -> Identity:
    """Return which life of which database this connection sees; equal to `ReplicationStream.identity`.

    The timeline is the one that is being written: pg_control_checkpoint() lags behind a promotion.

    Raises:
        DatabaseError: the server is away, or is a standby.

    """
    with translated():
        row = conn.execute(IDENTITY).fetchone()
        assert row is not None  # noqa: S101 -- pg_control_system() always has its one row
        return Identity(*row)
