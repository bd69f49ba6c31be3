"""The portal's way to PostgreSQL: a bounded pool, bounded waits, and one kind of failure.

Whatever happens to the server, `run` ends: with the work's value, or with a DatabaseError. Only a
conflict is tried again, since there PostgreSQL says that nothing was done.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from db.errors import Conflict, Unavailable, translated
from db.pool import async_pool

T = TypeVar("T")
Work = Callable[[AsyncConnection[Any]], Awaitable[T]]

#: Two cores of PostgreSQL are busy with fewer; more would only queue there instead of here.
POOL_SIZE = 16
#: A request waits so long for a free connection before it is answered 503, seconds.
POOL_WAIT = 2.0
#: And so long for the work itself: above the session's lock timeout (5 s), so that PostgreSQL's own
#: answer comes first. A server that is frozen gives none, and psycopg tries to cancel for 10 s more.
WORK_SECONDS = 8.0
#: Tries of a transaction that PostgreSQL rolled back for a deadlock or a serialization failure.
CONFLICT_TRIES = 3


class Database:
    """An open pool; see `opened`."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[Any]]) -> None:
        self._pool = pool

    async def run(self, work: Work[T], *, wait: float = POOL_WAIT, within: float = WORK_SECONDS) -> T:
        """Do `work` with a connection of the pool and return what it returns.

        `wait` and `within` are seconds: for a free connection, and for wait and work together.

        Raises:
            Unavailable: no connection, no answer in time, or the server refuses service.
            Conflict: rolled back again and again.
            Refused: the statement was refused.

        """
        for left in reversed(range(CONFLICT_TRIES)):
            try:
                return await self._once(work, wait, within)
            except Conflict:
                if left == 0:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    async def _once(self, work: Work[T], wait: float, within: float) -> T:
        try:
            async with asyncio.timeout(within):
                with translated():
                    async with self._pool.connection(timeout=wait) as conn:
                        return await work(conn)
        except TimeoutError as error:
            raise Unavailable("no answer in time") from error


@asynccontextmanager
async def opened(dsn: str) -> AsyncGenerator[Database, None]:
    """Open the pool for the block. The server need not be there yet, nor stay."""
    pool = async_pool(dsn, "oncommit portal", size=POOL_SIZE, timeout=POOL_WAIT)
    await pool.open(wait=False)
    try:
        yield Database(pool)
    finally:
        await pool.close(timeout=1.0)
