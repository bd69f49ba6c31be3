"""What can go wrong between a process and PostgreSQL, told apart once.

DatabaseError
|-- Unavailable      the server is away, restarting, full, read-only, out of connections, or too slow
|                    (says nothing about the statement: try again later; a commit may have happened)
|-- Conflict         deadlock or serialization failure: the transaction is gone, try it again now
`-- Refused          the statement itself was refused; trying again gives the same answer
"""

from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests


class DatabaseError(Exception):
    """Root of everything this package raises about the database."""


class Unavailable(DatabaseError):
    """The database cannot serve now; whether the last commit took is not known."""


class Conflict(DatabaseError):
    """Deadlock or serialization failure; the transaction was rolled back."""


class Refused(DatabaseError):
    """The statement was refused: a constraint, a privilege, a malformed value."""


# SQLSTATE classes and codes, from the PostgreSQL manual's appendix "Error Codes".
_AWAY_CLASSES = ("08", "53", "57", "58")  # connection, resources, operator intervention, system
_AWAY_CODES = frozenset({"25006", "55P03", "28000", "28P01", "3D000", "55000"})
_CONFLICT_CODES = frozenset({"40001", "40P01"})


def translate(error: Exception) -> DatabaseError:
    """Return the DatabaseError that a driver's exception means. Texts are not carried: they may hold data."""
    if isinstance(error, (PoolTimeout, PoolClosed, TooManyRequests)):
        return Unavailable("no free connection")
    code = error.sqlstate if isinstance(error, psycopg.Error) else None
    if code is None:
        if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError)):
            return Unavailable("connection lost")
        return Refused(type(error).__name__)
    name = f"{code} {pg.lookup(code).__name__}" if _known(code) else code
    if code in _CONFLICT_CODES:
        return Conflict(name)
    if code.startswith(_AWAY_CLASSES) or code in _AWAY_CODES:
        return Unavailable(name)
    return Refused(name)


def _known(code: str) -> bool:
    try:
        pg.lookup(code)
    except KeyError:
        return False
    return True


@contextmanager
def translated() -> Generator[None]:
    """Raise driver errors of the body as DatabaseError, `from` the original.

    Raises:
        Unavailable, Conflict, Refused: see the module.

    """
    try:
        yield
    except (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests, OSError) as error:
        raise translate(error) from error
