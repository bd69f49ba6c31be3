"""Migrations: numbered SQL for tables, applied once; functions, views and grants, applied when they change.

Safe when several start at once, also against several databases of one cluster (roles are shared).
"""

import hashlib
import logging
import time
from collections.abc import Iterator
from importlib.resources import files

import psycopg
from psycopg import sql

log = logging.getLogger(__name__)

# Any constant will do; it only has to be this project's own. (b"oncommit" as a big-endian integer.)
LOCK_KEY = int.from_bytes(b"oncommit", "big")
# A table lock that waits blocks everybody behind it: give up, let them pass, try again. Nobody shall lose
# more than 2 s. A request may stand behind several tries, and a try may wait for several tables: so a wait
# is a quarter of that, and the pause as long, so that whoever stood behind one try has ended before the next.
LOCK_TIMEOUT = "500ms"
PAUSE_SECONDS = 0.5
TRIES = 60  # a minute in all

CREATE_LEDGER = """
CREATE TABLE IF NOT EXISTS schema_migrations (
  name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
)
"""
READ_LEDGER = "SELECT name, checksum FROM schema_migrations"
WRITE_LEDGER = """
INSERT INTO schema_migrations (name, checksum) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, applied_at = now()
"""
FUNCTIONS = "functions"
PUBLICATION = "publication"
# The relay's pgoutput streams this. A table that was dropped and made again fell out of it.
# One that passes no inserts, or not every row and column, is as good as none.
PUBLICATION_TABLES = """
SELECT count(*) FROM pg_publication p JOIN pg_publication_tables t USING (pubname)
 WHERE p.pubname = %s AND p.pubinsert AND t.schemaname = 'public' AND t.tablename IN ('outbox', 'control')
   AND t.rowfilter IS NULL
   AND cardinality(t.attnames) = (SELECT count(*) FROM information_schema.columns c
                                   WHERE c.table_schema = t.schemaname AND c.table_name = t.tablename)
"""
MAKE_PUBLICATION = sql.SQL("""
DROP PUBLICATION IF EXISTS {name};
CREATE PUBLICATION {name} FOR TABLE outbox, control WITH (publish = 'insert');
""")
DEFAULT_PUBLICATION = "oncommit_outbox"
OLDEST, NEWEST = 15, 18  # major versions of PostgreSQL that the tests run against, and those between


class MigrationError(RuntimeError):
    """The database and this version do not fit; the message says what to do."""


def _sql(folder: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(files("db").joinpath(folder).iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".sql"):
            yield entry.name, entry.read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _steps(ledger: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, checksum, SQL) of what is still to do."""
    for name, text in _sql("migrations"):
        checksum = _checksum(text)
        if name not in ledger:
            yield name, checksum, text
        elif ledger[name] != checksum:
            raise MigrationError(
                f"{name} was changed after it was applied to this database: restore the file, and write "
                "the change as the next numbered migration"
            )
    every_function = "\n".join(text for _, text in _sql("functions"))
    checksum = _checksum(every_function)
    if ledger.get(FUNCTIONS) != checksum:
        yield FUNCTIONS, checksum, every_function


def pending(ledger: dict[str, str]) -> list[str]:
    """Return the names of what `migrate` would apply to a database with this ledger, name to checksum.

    Raises:
        MigrationError: an applied file was changed.

    """
    return [name for name, _, _ in _steps(ledger)]


def _check_server(conn: psycopg.Connection) -> None:
    if not OLDEST <= (major := conn.info.server_version // 10_000) <= NEWEST:
        raise MigrationError(f"PostgreSQL {major}: {OLDEST} to {NEWEST} are supported")
    row = conn.execute("SELECT getdatabaseencoding()").fetchone()
    if row is None or row[0] != "UTF8":
        raise MigrationError(
            "the database's encoding must be UTF8: createdb --encoding=UTF8 --template=template0"
        )


def migrate(dsn: str, publication: str = DEFAULT_PUBLICATION) -> list[str]:
    """Bring the database at `dsn` to this version; return the names of what was applied.

    Connect as the database's owner, with CREATEROLE the first time. `publication` is the name of what
    pgoutput streams, as the relay has it in ONCOMMIT_PUBLICATION.

    Raises:
        MigrationError: an applied file was changed, or the server does not fit.
        psycopg.Error: the server refused; nothing of that step is left behind.

    """
    applied: list[str] = []
    with psycopg.connect(
        dsn, autocommit=True, application_name="oncommit migrate", client_encoding="UTF8"
    ) as conn:
        _check_server(conn)
        # Everything lies in `public`, whatever the database's or the owner's own search_path says.
        conn.execute("SET search_path = public")
        conn.execute("SET standard_conforming_strings = on")
        conn.execute("SELECT pg_advisory_lock(%s)", [LOCK_KEY])
        conn.execute("SET client_min_messages = warning")
        conn.add_notice_handler(lambda d: log.warning("migrate: %s", d.message_primary))
        conn.execute(CREATE_LEDGER)
        ledger: dict[str, str] = dict(conn.execute(READ_LEDGER).fetchall())
        for name, checksum, text in _steps(ledger):
            _apply(conn, name, checksum, text)
            applied.append(name)
        if conn.execute(PUBLICATION_TABLES, [publication]).fetchone() != (2,):
            text = MAKE_PUBLICATION.format(name=sql.Identifier(publication)).as_string(conn)
            _apply(conn, PUBLICATION, _checksum(text), text)
            applied.append(PUBLICATION)
    return applied


def _apply(conn: psycopg.Connection, name: str, checksum: str, text: str) -> None:
    for left in reversed(range(TRIES)):
        try:
            with conn.transaction():
                conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                # libpq's simple protocol runs a whole script: psycopg takes that road without parameters.
                conn.execute(text.encode())
                conn.execute(WRITE_LEDGER, [name, checksum])
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InternalError_) as error:
            # "tuple concurrently updated" (XX000): another database of the cluster changed the same role.
            if left == 0:
                raise
            log.info("migrate: %s waits for a lock (%s), %d tries left", name, error.sqlstate, left)
            time.sleep(PAUSE_SECONDS)
        else:
            log.info("migrate: applied %s", name)
            return
