"""Housekeeping statements: pruning what ended long ago, and the pages by which artifacts are checked."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg.rows import class_row

from db.errors import DatabaseError, translated

#: Jobs deleted in one transaction, with some five events each: well below a second.
PRUNE_SLICE = 500
#: Succeeded jobs read in one statement.
PAGE = 2_000
BEFORE_ALL = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows are gone. `rest`: superseded settings, old workers, finished replay runs."""

    jobs: int = 0
    events: int = 0
    requests: int = 0
    batches: int = 0
    rest: int = 0

    def __add__(self, other: "Pruned") -> "Pruned":
        return Pruned(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


#: Where the first slice begins: before every single job, and before every batch.
START: tuple[str, UUID, UUID] = ("-infinity", BEFORE_ALL, BEFORE_ALL)
PRUNE = """
SELECT jobs, events, requests, batches, rest, at_end::text, at_job, at_batch, more
  FROM prune_jobs(%s, %s, %s, %s, %s, %s, %s, %s)
"""


def prune(
    conn: Connection[Any], before: datetime, *, dead_too: bool, who: str, reason: str
) -> Iterator[Pruned]:
    """Delete what ended before `before`, slice by slice; yield what each transaction took.

    Dead jobs are kept unless `dead_too`. A batch goes whole or not at all. May be interrupted and
    called again at any point.
    """
    place, more = START, True
    while more:
        with translated(), conn.transaction():
            row = conn.execute(PRUNE, [before, dead_too, PRUNE_SLICE, *place, who, reason]).fetchone()
        if row is None:
            raise DatabaseError("prune_jobs returned nothing")
        *counts, at_end, at_job, at_batch, more = row
        place = (at_end, at_job, at_batch)
        yield Pruned(*counts)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A succeeded job's preview; `document` is known only when it may have to be made again."""

    job: UUID
    kind: str
    artifact: str
    artifact_size: int
    document: str | None


ARTIFACTS = "SELECT job, kind, artifact, artifact_size, document FROM artifacts_page(%s, %s, %s, %s, %s)"


def artifacts(conn: Connection[Any], *, repair: bool, who: str, reason: str) -> Iterator[Artifact]:
    """Yield the artifact of every succeeded job, in order of the jobs' ids; each page is audited."""
    after = BEFORE_ALL
    while True:
        with translated(), conn.cursor(row_factory=class_row(Artifact)) as cursor, conn.transaction():
            page = cursor.execute(ARTIFACTS, [after, PAGE, repair, who, reason]).fetchall()
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].job
