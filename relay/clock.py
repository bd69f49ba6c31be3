"""PostgreSQL's clock, as seen from here: delays travel as remaining milliseconds of that clock.

The machine of the relay, or of Redis, may be an hour off; only how long to wait is ever sent.
"""

import time
from datetime import datetime
from typing import Any

from psycopg import Connection

from db.errors import translated

NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
#: Clocks of two machines drift by parts per million: a minute is plenty.
RESAMPLE_SECONDS = 60.0


class PostgresClock:
    """Maps the local monotonic clock to PostgreSQL's time of day."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._sampled: float | None = None

    def sample(self, conn: Connection[Any]) -> None:
        """Ask the server, at most once a minute.

        Raises:
            db.errors.DatabaseError: the server is away; the old offset stays.

        """
        now = time.monotonic()
        if self._sampled is not None and now - self._sampled < RESAMPLE_SECONDS:
            return
        with translated():
            row = conn.execute(NOW).fetchone()
        after = time.monotonic()
        if row is not None:
            self._offset = float(row[0]) - (now + after) / 2
            self._sampled = after

    def remaining_ms(self, due: datetime | None, created: datetime | None = None) -> int:
        """Return how long until `due`, at least 0; 0 for None.

        Never longer than from `created` to `due`: when the server's clock was set forward since it was last
        asked, a retry waits for its pause and not for the step.
        """
        if due is None:
            return 0
        seconds = due.timestamp() - self._offset - time.monotonic()
        if created is not None:
            seconds = min(seconds, (due - created).total_seconds())
        return max(0, round(seconds * 1000))
