"""Unseen: transactions that the WAL may have shown and that no snapshot sees yet.

The WAL shows a commit before snapshots do: by milliseconds, by as long as it takes while a synchronous
standby lags. Its rows may have been read and dropped while Redis was away, or published and then
lost with Redis, by this relay or by the one before; and a resync's pages do not show them. So a resync
notes what is unfinished when it begins, and is taken again for those that become visible. Whatever
commits later comes along the stream.
"""

import time
from typing import Any, Final

from psycopg import Connection

from db import outbox

#: Between looks, seconds.
LOOK_SECONDS: Final = 0.25


class Unseen:
    """What one resync could not see, by 32-bit transaction id. A long write of anybody's may be among it."""

    def __init__(self) -> None:
        self._xids: set[int] = set()
        self._look_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._xids)

    def note(self, conn: Connection[Any]) -> None:
        """Note what is unfinished now, before the first page is read.

        Raises:
            db.errors.DatabaseError: the server is away.

        """
        self._xids = set(outbox.unfinished(conn))
        self._look_at = time.monotonic() + LOOK_SECONDS

    def some_appeared(self, conn: Connection[Any]) -> bool:
        """Forget those that a snapshot of now sees; tell whether there were any. Looks four times a second.

        Raises:
            db.errors.DatabaseError: the server is away.

        """
        now = time.monotonic()
        if not self._xids or now < self._look_at:
            return False
        self._look_at = now + LOOK_SECONDS
        before, self._xids = self._xids, set(outbox.invisible(conn, sorted(self._xids)))
        return len(self._xids) < len(before)
