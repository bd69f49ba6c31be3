"""What a fresh cluster needs beside the schema: a database, and passwords or membership of the roles."""

from collections.abc import Iterable

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from db.errors import translated
from db.migrate import LOCK_KEY

ROLES = ("oncommit_portal", "oncommit_relay", "oncommit_worker", "oncommit_operator", "oncommit_viewer")

HAS_DATABASE = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = %s)"
CREATE_DATABASE = sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0")


def create_database(dsn: str, name: str) -> bool:
    """Make a database unless it is there; tell whether it was made. Connect as one who may.

    Raises:
        DatabaseError: see `db.errors`.

    """
    with translated(), psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(HAS_DATABASE, [name]).fetchone()
        if row is not None and row[0]:
            return False
        conn.execute(CREATE_DATABASE.format(sql.Identifier(name)))
        return True


SET_PASSWORD = sql.SQL("ALTER ROLE {} PASSWORD {}")


def set_role_password(dsn: str, role: str, password: str) -> None:
    """Give a role its password. Only the SCRAM verifier travels, so no server log can hold the password.

    Raises:
        DatabaseError: see `db.errors`.

    """
    with translated(), psycopg.connect(dsn, autocommit=True) as conn:
        verifier = conn.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
        conn.execute(SET_PASSWORD.format(sql.Identifier(role), sql.Literal(verifier)))


class BadLogin(ValueError):
    """This is no connection string of one of the project's roles with its password; never says what it is."""


TAKE_TURNS = "SELECT pg_advisory_lock(%s)"


def give_logins(dsn: str, logins: Iterable[str]) -> list[str]:
    """Give each role the password in its own connection string; return the roles' names.

    So a process and the server cannot disagree: the string that the process connects with decides.

    Raises:
        BadLogin: no role of this project, or no password; nothing was changed.
        DatabaseError: see `db.errors`.

    """
    passwords = dict(_role_and_password(login) for login in logins)
    # Two that alter one role at a time would fail: "tuple concurrently updated".
    with translated(), psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(TAKE_TURNS, [LOCK_KEY])
        for role, password in passwords.items():
            set_role_password(dsn, role, password)
    return list(passwords)


def _role_and_password(login: str) -> tuple[str, str]:
    try:
        given = conninfo_to_dict(login)
    except psycopg.ProgrammingError:
        raise BadLogin("no connection string of PostgreSQL") from None  # its message quotes the string
    role, password = given.get("user"), given.get("password")
    if role not in ROLES:
        raise BadLogin(f"the user must be one of {', '.join(ROLES)}")
    if not password:
        raise BadLogin(f"no password for {role}")
    return str(role), str(password)


IS_SUPERUSER = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
GRANT_ROLE = sql.SQL("GRANT {} TO CURRENT_USER")


def join_roles(dsn: str) -> None:
    """Let the connecting user act as each role of this project (`SET ROLE`); a superuser may already.

    Raises:
        DatabaseError: see `db.errors`; Refused when the user may not grant them to itself.

    """
    with translated(), psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(IS_SUPERUSER).fetchone()
        if row is not None and row[0]:
            return
        for role in ROLES:
            conn.execute(GRANT_ROLE.format(sql.Identifier(role)))
