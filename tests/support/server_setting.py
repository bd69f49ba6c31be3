"""Change a setting of a running server for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from support.postgres import Server
from support.waiting import eventually

RELOADED = "SELECT setting = %s FROM pg_settings WHERE name = %s"


@contextmanager
def setting(server: Server, name: str, value: str) -> Iterator[None]:
    """Change a server's setting that a reload is enough for, and change it back."""
    with server.connect() as admin:

        def reload() -> None:
            # SIGHUP reaches the session that asks after its statement: the next statement tells.
            admin.execute("SELECT pg_reload_conf()")

        (before,) = admin.execute("SELECT setting FROM pg_settings WHERE name = %s", [name]).fetchone() or (
            "",
        )
        admin.execute(
            psycopg.sql.SQL("ALTER SYSTEM SET {} = {}").format(
                psycopg.sql.Identifier(name), psycopg.sql.SQL(value)
            )
        )
        try:
            reload()
            eventually(lambda: admin.execute(RELOADED, [before, name]).fetchone() == (False,))
            yield
        finally:
            admin.execute(psycopg.sql.SQL("ALTER SYSTEM RESET {}").format(psycopg.sql.Identifier(name)))
            reload()
            eventually(lambda: admin.execute(RELOADED, [before, name]).fetchone() == (True,))
