"""The publication: whether pgoutput passes every insert, and whether anything about that was changed.

PostgreSQL 18 skips rows in silence while it is missing. wal2json goes by the tables' names alone.
"""

from typing import Any

from psycopg import Connection

from db.errors import translated
from relay.rows import COLUMNS

PUBLISHED = """
SELECT t.tablename, t.attnames::text[], t.rowfilter IS NULL
  FROM pg_publication p JOIN pg_publication_tables t USING (pubname)
 WHERE p.pubname = %s AND p.pubinsert AND t.schemaname = 'public' AND t.tablename IN ('outbox', 'control')
"""


def passes_all(conn: Connection[Any], publication: str) -> bool:
    """Return whether the publication passes every insert into both tables, whole.

    Ask at each connect: PostgreSQL 18 skips rows in silence when it is missing. wal2json needs none.

    Raises:
        DatabaseError: the server is away.

    """
    with translated():
        found = {
            table
            for table, columns, whole in conn.execute(PUBLISHED, [publication])
            if whole and COLUMNS[table] <= set(columns)
        }
    return found == set(COLUMNS)


# xmin changes with every ALTER, also with one that was undone; a table that is made again has another oid.
STATE = """
SELECT array(SELECT format('%%s %%s', p.oid, p.xmin) FROM pg_publication p WHERE p.pubname = %(publication)s)
    || array(SELECT format('%%s %%s', r.oid, r.xmin)
               FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
              WHERE p.pubname = %(publication)s ORDER BY 1)
    || array(SELECT c.oid::text FROM pg_class c
              WHERE c.relnamespace = 'public'::regnamespace AND c.relname IN ('outbox', 'control') ORDER BY 1)
"""


def state(conn: Connection[Any], publication: str) -> list[str]:
    """Return what identifies the publication and the two tables: other than before means rows passed unseen.

    Raises:
        DatabaseError: the server is away.

    """
    with translated():
        row = conn.execute(STATE, {"publication": publication}).fetchone()
    return list(row[0]) if row else []
