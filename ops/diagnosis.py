"""What the doctor says: one finding a check, each with what to do about it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import psycopg
from psycopg import errors as pg

from db.errors import DatabaseError
from runtime.logs import redact


class Level(StrEnum):
    """How it is. `skip`: it could not be checked from here."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `advice` says what to do, empty when nothing is."""

    check: str
    level: Level
    detail: str
    advice: str = ""


def ok(check: str, detail: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check, Level.OK, detail)


def warn(check: str, detail: str, advice: str) -> Finding:
    """Return a finding that works today and may not tomorrow."""
    return Finding(check, Level.WARN, detail, advice)


def fail(check: str, detail: str, advice: str) -> Finding:
    """Return a finding that keeps jobs from being dispatched."""
    return Finding(check, Level.FAIL, detail, advice)


def skip(check: str, detail: str, advice: str = "") -> Finding:
    """Return a finding that could not be made."""
    return Finding(check, Level.SKIP, detail, advice)


Check = Callable[[], Iterable[Finding]]

MIGRATE = "run `oncommit migrate` as the database's owner"


def examine(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Run every check; one that the server refuses to answer is a finding too."""
    for name, check in checks:
        try:
            yield from check()
        except DatabaseError as error:
            yield _refused(name, error)
        except psycopg.Error as error:
            first = (str(error).strip().splitlines() or ["no answer"])[0]
            yield fail(name, redact(first), "check ONCOMMIT_DATABASE_URL, and that the server runs")


def _refused(name: str, error: DatabaseError) -> Finding:
    cause = error.__cause__
    if isinstance(cause, pg.InsufficientPrivilege):
        return skip(name, "this role may not look", "run the doctor as oncommit_operator or a superuser too")
    if isinstance(cause, (pg.UndefinedTable, pg.UndefinedFunction, pg.UndefinedColumn)):
        return fail(name, "the schema is missing or old", MIGRATE)
    return fail(name, str(error), "check ONCOMMIT_DATABASE_URL, and that the server runs")
