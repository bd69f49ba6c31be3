"""`oncommit migrate` as managed services allow it: the owner is no superuser, others use the schema too."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql

from db.migrate import FUNCTIONS, PUBLICATION, migrate
from support.postgres import DROP, Server

#: What a superuser, or the provider, or somebody else has left in `public`.
OTHERS = """
CREATE EXTENSION pg_stat_statements;
CREATE TABLE theirs (x serial);
CREATE VIEW their_view AS SELECT 1 AS one;
CREATE FUNCTION their_function() RETURNS int LANGUAGE sql AS 'SELECT 1';
REVOKE ALL ON FUNCTION their_function FROM PUBLIC;
GRANT SELECT ON theirs TO oncommit_worker;
GRANT EXECUTE ON FUNCTION their_function TO oncommit_worker;
"""
RIGHTS = """
SELECT has_table_privilege('oncommit_worker', 'theirs', 'SELECT'),
       has_function_privilege('oncommit_worker', 'their_function()', 'EXECUTE'),
       has_table_privilege('oncommit_worker', 'jobs', 'SELECT'),
       has_table_privilege('oncommit_worker', 'jobs', 'DELETE')
"""


@dataclass(frozen=True, slots=True)
class Managed:
    """A database whose owner may make roles and is no superuser."""

    owner: str
    admin: psycopg.Connection
    dsn: str


@pytest.fixture
def managed(server: Server) -> Iterator[Managed]:
    name = f"managed_{secrets.token_hex(6)}"
    with server.connect() as conn:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x' CREATEROLE").format(sql.Identifier(name)))
        conn.execute(sql.SQL("CREATE DATABASE {0} OWNER {0} TEMPLATE template0").format(sql.Identifier(name)))
        admin = server.connect(name)
        yield Managed(name, admin, f"postgresql://{name}:x@127.0.0.1:{server.port}/{name}")
        admin.close()
        conn.execute(DROP.format(sql.Identifier(name)))
        conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_what_others_have_in_the_schema_is_left_alone(
    managed: Managed, caplog: pytest.LogCaptureFixture
) -> None:
    managed.admin.execute(OTHERS)
    assert {FUNCTIONS, PUBLICATION} <= set(migrate(managed.dsn))
    assert "theirs" not in caplog.text
    assert "pg_stat_statements" not in caplog.text, "a line for each column of the extension"
    assert managed.admin.execute(RIGHTS).fetchone() == (True, True, True, False)


def test_what_an_earlier_version_granted_is_taken_away(managed: Managed) -> None:
    migrate(managed.dsn)
    with psycopg.connect(managed.dsn, autocommit=True) as conn:
        conn.execute("GRANT DELETE ON jobs TO oncommit_worker")
        conn.execute("GRANT UPDATE (title) ON jobs TO oncommit_worker")
        conn.execute("GRANT USAGE ON SEQUENCE relay_epoch TO oncommit_worker")
        conn.execute("GRANT EXECUTE ON FUNCTION put_intents TO oncommit_worker")
        conn.execute("UPDATE schema_migrations SET checksum = 'older' WHERE name = 'functions'")
    assert migrate(managed.dsn) == [FUNCTIONS]
    row = managed.admin.execute(
        "SELECT has_table_privilege('oncommit_worker', 'jobs', 'DELETE'),"
        " has_column_privilege('oncommit_worker', 'jobs', 'title', 'UPDATE'),"
        " has_sequence_privilege('oncommit_worker', 'relay_epoch', 'USAGE'),"
        " has_function_privilege('oncommit_worker', 'put_intents(uuid[], timestamptz)', 'EXECUTE')"
    ).fetchone()
    assert row == (False, False, False, False)
