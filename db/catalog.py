"""What the server's catalog says about its fitness: settings, roles, publication, slot, plugin.

Read-only but for the plugin's probe, a temporary slot. Any role may read all of it, except where noted.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import Connection
from psycopg import errors as pg
from psycopg.rows import class_row

from db.errors import translated


@dataclass(frozen=True, slots=True)
class Server:
    """The server, and who is asking. `slot_keep_mb`: max_slot_wal_keep_size, -1 for no limit."""

    version: str
    major: int
    encoding: str
    standby: bool
    wal_level: str
    slot_keep_mb: int
    slots_used: int
    slots_most: int
    senders_most: int
    fsync: bool
    role: str
    superuser: bool
    may_replicate: bool


SERVER = """
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::int / 10000 AS major,
       getdatabaseencoding() AS encoding, pg_is_in_recovery() AS standby,
       current_setting('wal_level') AS wal_level,
       (SELECT setting::int FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS slot_keep_mb,
       (SELECT count(*)::int FROM pg_replication_slots) AS slots_used,
       current_setting('max_replication_slots')::int AS slots_most,
       current_setting('max_wal_senders')::int AS senders_most,
       current_setting('fsync')::bool AS fsync,
       current_user AS role, r.rolsuper AS superuser,
       r.rolreplication OR r.rolsuper
         OR EXISTS (SELECT FROM pg_roles g
                     WHERE g.rolname = 'rds_replication' AND pg_has_role(g.oid, 'MEMBER')) AS may_replicate
  FROM pg_roles r WHERE r.rolname = current_user
"""


def server(conn: Connection[Any]) -> Server:
    """Return what the server is and who the connection is."""
    with translated(), conn.cursor(row_factory=class_row(Server)) as cursor:
        found = cursor.execute(SERVER).fetchone()
    if found is None:
        raise LookupError("pg_roles")
    return found


# Amazon's RDS gives no role the attribute: there members of rds_replication may replicate.
ROLES = """
SELECT r.rolname, r.rolcanlogin,
       r.rolreplication
         OR EXISTS (SELECT FROM pg_roles g
                     WHERE g.rolname = 'rds_replication' AND pg_has_role(r.oid, g.oid, 'MEMBER'))
  FROM pg_roles r WHERE r.rolname = ANY(%s)
"""


def roles(conn: Connection[Any], names: tuple[str, ...]) -> dict[str, tuple[bool, bool]]:
    """Return those of the roles that exist: may it log in, may it replicate."""
    with translated():
        rows = conn.execute(ROLES, [list(names)]).fetchall()
    return {name: (login, replication) for name, login, replication in rows}


PUBLISHED = """
SELECT t.tablename FROM pg_publication p JOIN pg_publication_tables t USING (pubname)
 WHERE p.pubname = %s AND p.pubinsert AND t.schemaname = 'public' AND t.rowfilter IS NULL
"""


def published(conn: Connection[Any], publication: str) -> set[str]:
    """Return the tables whose inserts the publication passes, every row of them."""
    with translated():
        return {row[0] for row in conn.execute(PUBLISHED, [publication]).fetchall()}


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot; sizes in bytes. `here`: of this database."""

    here: bool
    plugin: str | None
    active: bool
    wal_status: str | None
    lag_bytes: int | None
    retained_bytes: int | None


SLOT = """
SELECT coalesce(database = current_database(), false) AS here, plugin, active, wal_status,
       (pg_current_wal_lsn() - confirmed_flush_lsn)::bigint AS lag_bytes,
       (pg_current_wal_lsn() - restart_lsn)::bigint AS retained_bytes
  FROM pg_replication_slots WHERE slot_name = %s
"""


def slot(conn: Connection[Any], name: str) -> Slot | None:
    """Return the slot of that name of the whole cluster, None when there is none."""
    with translated(), conn.cursor(row_factory=class_row(Slot)) as cursor:
        return cursor.execute(SLOT, [name]).fetchone()


# The lock of a relay that has no stream, and polls the table meanwhile; relay/slot.py takes it. A lock of one
# 64-bit key shows as two halves.
POLLING_KEY = "hashtextextended('oncommit relay ' || %s, 0)"
POLLED = f"""
SELECT EXISTS (
  SELECT FROM pg_locks
   WHERE locktype = 'advisory' AND granted AND objsubid = 1
     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
     AND (classid::bigint << 32 | objid::bigint) = {POLLING_KEY})
"""


def polled(conn: Connection[Any], slot: str) -> bool:
    """Return whether a relay of this slot polls, or has polled since it last began anew."""
    with translated():
        return conn.execute(POLLED, [slot]).fetchone() == (True,)


NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


def now(conn: Connection[Any]) -> float:
    """Return PostgreSQL's clock, seconds since 1970."""
    with translated():
        row = conn.execute(NOW).fetchone()
    return float(row[0]) if row else 0.0


# The server loads the plugin before it waits for open write transactions: a timeout proves that it is
# there and allowed. Longer waiting would prove no more.
PROBE_MS = 300
LIMIT = "SELECT set_config('statement_timeout', %s, true)"
PROBE = """
SELECT pg_drop_replication_slot(slot_name)
  FROM pg_create_logical_replication_slot('oncommit_doctor_' || pg_backend_pid(), %s, true)
"""


def plugin_refusal(conn: Connection[Any], plugin: str) -> str | None:
    """Return why the output plugin cannot be used, None when it can; needs a role that may replicate.

    `missing`: it is not installed. `forbidden`: the setting output_plugin_libraries does not list it.
    """
    with translated():
        try:
            with suppress(pg.QueryCanceled), conn.transaction():
                conn.execute(LIMIT, [f"{PROBE_MS}ms"])
                conn.execute(PROBE, [plugin])
        except pg.UndefinedFile:
            return "missing"
        except pg.InsufficientPrivilege:
            return "forbidden"
        except psycopg.Error as error:
            return f"refused: {type(error).__name__}"
    return None
