"""How tests finish a claim: as the worker does, and as workers of older versions do."""

from typing import Any
from uuid import UUID

from psycopg import Connection

from db import claims
from db.claims import Claim, Ended, Finish
from db.errors import translated

OLD_FINISH = """
SELECT outcome FROM finish_jobs(%s::uuid, %s::uuid[], %s::int[], %s::int[], %s::text[], %s::bigint[])
"""


def finish(conn: Connection[Any], worker: UUID, claim: Claim, artifact: str, size: int) -> Ended:
    """Finish one claim, again for as long as somebody has its job's row."""
    while True:
        (ended,) = claims.finish_each(conn, worker, [Finish(claim, artifact, size)])
        if ended is not Ended.BUSY:
            return ended


def old_finish(conn: Connection[Any], worker: UUID, claim: Claim, artifact: str, size: int) -> Ended:
    """Finish one claim by the function that waits for the row; workers of older versions still call it."""
    values = [worker, [claim.job], [claim.dispatch_no], [claim.attempt], [artifact], [size]]
    with translated(), conn.transaction():
        row = conn.execute(OLD_FINISH, values).fetchone()
    assert row is not None
    return Ended(row[0])
