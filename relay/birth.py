"""How a slot is born, and why not: the plugin's probe, the creation, and what refusals mean.

Creation waits for every write transaction that is open anywhere in the cluster, so it has a timeout.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors as pg

from db.errors import translated
from relay.errors import (
    PluginForbidden,
    PluginMissing,
    ReplicationRefused,
    SlotCreationBlocked,
    StreamError,
    forbidden,
    missing,
)
from relay.events import PluginName

Connection = psycopg.Connection[Any]

# A temporary slot takes some milliseconds; waiting longer proves as much as success does, see `probe`.
PROBE_S: Final = 0.3
# Long enough for the short write transactions that are always open somewhere; polling starts after it.
CREATE_S: Final = 1.0

PROBE = """
SELECT pg_drop_replication_slot(slot_name)
  FROM pg_create_logical_replication_slot('oncommit_probe_' || pg_backend_pid(), %s, true)
"""


def probe(conn: Connection, plugin: PluginName, timeout: float) -> StreamError | None:
    """Return why the plugin cannot be used, None when it can: by making a temporary slot with it.

    oncommit_relay may read neither the setting `output_plugin_libraries` nor the library's file. The
    server loads the plugin before it waits for open write transactions, so running into the timeout
    proves that it is there and allowed.

    Raises:
        ReplicationRefused, DatabaseError: no slot can be made with any plugin.

    """
    try:
        with translated(), _refusals(conn, plugin), conn.transaction():
            _limit(conn, timeout)
            conn.execute(PROBE, [plugin])
    except SlotCreationBlocked:
        return None
    except (PluginForbidden, PluginMissing) as error:
        return error
    return None


CREATE = "SELECT pg_create_logical_replication_slot(%s, %s)"


def make_slot(conn: Connection, slot: str, plugin: PluginName, timeout: float) -> bool:
    """Make the slot; return False when somebody else made one of that name just now.

    Raises:
        SlotCreationBlocked, PluginForbidden, PluginMissing, ReplicationRefused, DatabaseError.

    """
    with translated():
        try:
            with _refusals(conn, plugin), conn.transaction():
                _limit(conn, timeout)
                conn.execute(CREATE, [slot, plugin])
        except pg.DuplicateObject:
            return False
        return True


# What the slot has not passed yet is decoded with the catalog of its time: pgoutput fails at the first row
# from before the publication, and at each new start, though the publication is there by now. A catalog row
# that is no older than the slot's catalog_xmin may be such a one; frozen rows (age 2^31 - 1) are not.
STANDS_BEFORE = """
SELECT EXISTS (SELECT FROM pg_publication p, pg_replication_slots s
                WHERE p.pubname = %s AND s.slot_name = %s AND age(p.xmin) <= age(s.catalog_xmin))
"""


def stands_before(conn: Connection, slot: str, publication: str) -> bool:
    """Return whether the slot may stand before the birth of the publication.

    Raises:
        DatabaseError: the server is away.

    """
    with translated():
        return conn.execute(STANDS_BEFORE, [publication, slot]).fetchone() == (True,)


LIMIT = "SELECT set_config('statement_timeout', %s, true)"


def _limit(conn: Connection, seconds: float) -> None:
    conn.execute(LIMIT, [f"{max(1, round(seconds * 1000))}ms"])


# As in db/catalog.py: Amazon's RDS gives no role the attribute.
MAY_REPLICATE = """
SELECT r.rolreplication OR r.rolsuper
         OR EXISTS (SELECT FROM pg_roles g
                     WHERE g.rolname = 'rds_replication' AND pg_has_role(g.oid, 'MEMBER'))
  FROM pg_roles r WHERE r.rolname = current_user
"""


@contextmanager
def _refusals(conn: Connection, plugin: PluginName) -> Generator[None]:
    """Raise what refuses a slot's creation as StreamErrors, `from` the driver's."""
    try:
        yield
    except pg.QueryCanceled as error:
        raise SlotCreationBlocked(
            "no replication slot yet: a write transaction is open somewhere in the cluster (see "
            "pg_stat_activity.xact_start and pg_prepared_xacts); intents are polled meanwhile"
        ) from error
    except pg.UndefinedFile as error:
        raise missing(plugin) from error
    except pg.InsufficientPrivilege as error:
        # One code for a plugin that is not allowed and for a role that may not replicate.
        if conn.execute(MAY_REPLICATE).fetchone() == (True,):
            raise forbidden(plugin) from error
        raise ReplicationRefused("this role may not replicate: ALTER ROLE ... REPLICATION") from error
    except pg.ConfigurationLimitExceeded as error:
        raise ReplicationRefused("all replication slots are taken: raise max_replication_slots") from error
    except pg.ObjectNotInPrerequisiteState as error:
        raise ReplicationRefused(
            "the server writes no logical WAL: set wal_level = logical, restart"
        ) from error
