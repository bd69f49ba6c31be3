"""Faults of the database while its server is well: read-only, locked, a lagging standby, a table remade."""

from typing import LiteralString

import psycopg

from db.migrate import migrate
from support.standby import Standby

from ..fault import Fault

#: Nobody else may write as the superuser meanwhile: it would be refused, or wait as everybody does.
DATABASE = frozenset({"postgres", "relay", "pause"})
READ_ONLY: tuple[LiteralString, LiteralString] = (
    "ALTER SYSTEM SET default_transaction_read_only = on",
    "ALTER SYSTEM RESET default_transaction_read_only",
)
SERIALIZABLE: tuple[LiteralString, LiteralString] = (
    "ALTER SYSTEM SET default_transaction_isolation = serializable",
    "ALTER SYSTEM RESET default_transaction_isolation",
)
SYNCHRONOUS: tuple[LiteralString, LiteralString] = (
    "ALTER SYSTEM SET synchronous_standby_names = 'oncommit_standby'",
    "ALTER SYSTEM RESET synchronous_standby_names",
)
RELOAD = "SELECT pg_reload_conf()"
LOCK = "LOCK jobs, outbox IN ACCESS EXCLUSIVE MODE"
DROP_OUTBOX = """
DROP TABLE IF EXISTS outbox_model;
CREATE TABLE outbox_model (LIKE outbox INCLUDING ALL);
DROP TABLE outbox CASCADE;
"""
#: As docs/failures.md says: the table, everything that depended on it, an intent for every unfinished job.
MAKE_OUTBOX = """
BEGIN;
LOCK jobs IN EXCLUSIVE MODE;
ALTER TABLE outbox_model RENAME TO outbox;
ALTER TABLE outbox ADD CONSTRAINT outbox_queue_fkey FOREIGN KEY (queue) REFERENCES queues;
SELECT put_intents(array_agg(id ORDER BY created_at, id), not_before)
  FROM jobs WHERE finished_at IS NULL GROUP BY not_before;
DELETE FROM schema_migrations WHERE name = 'functions';
COMMIT;
"""


class PostgresReadOnly(Fault):
    """The server takes no writes any more, as a managed one whose disk is nearly full."""

    name = "postgres-read-only"
    touches = DATABASE

    def inject(self) -> None:
        self.world.admin.execute(READ_ONLY[0])
        self.world.admin.execute(RELOAD)

    def heal(self) -> None:
        self.world.admin.execute(READ_ONLY[1])
        self.world.admin.execute(RELOAD)


class PostgresSerializable(Fault):
    """Somebody makes `serializable` the default of every transaction."""

    name = "postgres-serializable"
    touches = DATABASE

    def inject(self) -> None:
        self.world.admin.execute(SERIALIZABLE[0])
        self.world.admin.execute(RELOAD)

    def heal(self) -> None:
        self.world.admin.execute(SERIALIZABLE[1])
        self.world.admin.execute(RELOAD)


class TablesLocked(Fault):
    """A migration of somebody's holds the tables."""

    name = "tables-locked"
    touches = DATABASE

    def inject(self) -> None:
        self._other = psycopg.connect(self.world.database.dsn())
        self._other.execute(LOCK)

    def heal(self) -> None:
        self._other.close()


class StandbyLags(Fault):
    """A synchronous standby answers late: the WAL shows commits long before any snapshot does."""

    name = "standby-lags"
    touches = DATABASE
    hold_seconds = (2.0, 6.0)

    def inject(self) -> None:
        lag = self.rng.uniform(0.3, 1.5)
        self._standby = Standby(self.world.server.dsn(), "oncommit_standby", lag).start()
        self.world.admin.execute(SYNCHRONOUS[0])
        self.world.admin.execute(RELOAD)

    def heal(self) -> None:
        self.world.admin.execute(SYNCHRONOUS[1])
        self.world.admin.execute(RELOAD)
        self._standby.close()


class OutboxRemade(Fault):
    """Somebody drops the outbox with everything in it, and makes it again from what the jobs say."""

    name = "outbox-remade"
    touches = DATABASE

    def inject(self) -> None:
        self.world.admin.execute(DROP_OUTBOX)

    def heal(self) -> None:
        self.world.admin.execute(MAKE_OUTBOX)
        migrate(self.world.database.dsn())


FAULTS: tuple[type[Fault], ...] = (
    PostgresReadOnly,
    PostgresSerializable,
    TablesLocked,
    StandbyLags,
    OutboxRemade,
)
