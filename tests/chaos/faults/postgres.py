"""Faults of PostgreSQL: crashed, stopped, sessions cut; the slot or the publication lost in every way."""

import contextlib

import psycopg
from psycopg import sql

from db.migrate import migrate
from support.waiting import eventually

from ..fault import Fault

SERVER = frozenset({"postgres", "relay", "pause"})
SLOT = frozenset({"relay", "postgres"})
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
PLUGIN = "SELECT plugin FROM pg_replication_slots WHERE slot_name = %s"
TERMINATE = "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s"
DROP = "SELECT pg_drop_replication_slot(%s)"
MAKE = "SELECT pg_create_logical_replication_slot(%s, %s)"
LOST = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = %s"
NOISE = "SELECT pg_logical_emit_message(false, 'chaos', repeat('x', 1000000))"
KEEP = sql.SQL("ALTER SYSTEM SET max_slot_wal_keep_size = {}")


class PostgresKilled(Fault):
    """SIGKILL of the whole server; it recovers from its WAL."""

    name = "postgres-killed"
    touches = SERVER

    def inject(self) -> None:
        self.world.server.kill()

    def heal(self) -> None:
        self.world.server.start()


class PostgresStopped(PostgresKilled):
    """A fast stop, in order."""

    name = "postgres-stopped"

    def inject(self) -> None:
        self.world.server.stop()


class SessionsCut(Fault):
    """Every session of the database is terminated, the relay's stream too."""

    name = "sessions-cut"
    touches = SERVER
    hold_seconds = (0.0, 1.0)

    def inject(self) -> None:
        self.world.admin.execute(CUT)


class SlotDropped(Fault):
    """Somebody drops the slot."""

    name = "slot-dropped"
    touches = SLOT
    hold_seconds = (0.0, 1.0)
    again = False

    def inject(self) -> None:
        admin, slot = self.world.admin, self.world.database.slot
        row = admin.execute(PLUGIN, [slot]).fetchone()

        def dropped() -> bool:
            admin.execute(TERMINATE, [slot])
            try:
                admin.execute(DROP, [slot])
            except psycopg.errors.ObjectInUse:  # a relay was faster
                return False
            except psycopg.errors.UndefinedObject:
                return True
            if self.again and row is not None:
                with contextlib.suppress(psycopg.errors.DuplicateObject):
                    admin.execute(MAKE, [slot, row[0]])
            return True

        eventually(dropped, timeout=10, every=0.0)


class SlotRemade(SlotDropped):
    """Somebody drops the slot and makes it again: rows in between were never seen by anybody."""

    name = "slot-remade"
    again = True


class SlotInvalidated(Fault):
    """The relays fall so far behind that the server throws their WAL away."""

    name = "slot-invalidated"
    touches = SLOT
    hold_seconds = (0.0, 0.5)

    def inject(self) -> None:
        admin = self.world.admin
        for relay in self.world.of("relay"):
            relay.running.freeze()
        admin.execute(KEEP.format(sql.Literal("1MB")))
        admin.execute("SELECT pg_reload_conf()")
        for _ in range(4):
            admin.execute(NOISE)
            admin.execute("SELECT pg_switch_wal()")
        admin.execute("CHECKPOINT")
        slot = self.world.database.slot
        eventually(lambda: admin.execute(LOST, [slot]).fetchone() == (True,), timeout=20, describe="lost")

    def heal(self) -> None:
        self.world.admin.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        self.world.admin.execute("SELECT pg_reload_conf()")
        for relay in self.world.of("relay"):
            relay.running.thaw()


class PublicationDropped(Fault):
    """Somebody drops the publication, and `oncommit migrate` makes it again."""

    name = "publication-dropped"
    touches = SLOT

    def inject(self) -> None:
        self.world.admin.execute("DROP PUBLICATION IF EXISTS oncommit_outbox")

    def heal(self) -> None:
        migrate(self.world.database.dsn())


FAULTS: tuple[type[Fault], ...] = (
    PostgresKilled,
    PostgresStopped,
    SessionsCut,
    SlotDropped,
    SlotRemade,
    SlotInvalidated,
    PublicationDropped,
)
