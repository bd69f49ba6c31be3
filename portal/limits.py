"""Limits of a team: how fast it may ask, how much at a time, and how many unfinished jobs it may have.

Rate and backlog are approximate on purpose, and bounded in how far: the rate is counted in each portal
process, and the backlog is looked up at most once a second for single jobs, so that a team may overshoot
its quota by what it submits within that second.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from db.accept import over_quota
from portal.database import Database
from portal.problems import Problem
from portal.shared_looks import SharedLooks

#: Seconds' worth of requests that may come at once after a pause.
BURST_SECONDS = 2.0
#: Batches of a team that are at the database at a time: thousands of rows keep a connection for seconds,
#: and the others of the pool are for everybody else.
BATCHES_AT_A_TIME = 2
#: Seconds for which the answer "under" or "over" is used again for single jobs.
BACKLOG_SECONDS = 1.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Rates:
    """A token bucket for each team that has asked."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self.burst = max(1.0, per_second * BURST_SECONDS)
        self._buckets: dict[str, _Bucket] = {}

    def spend(self, team: str) -> dict[str, str]:
        """Count one request; return the headers of its answer (draft-ietf-httpapi-ratelimit-headers-10).

        Raises:
            Problem: rate-limited.

        """
        now = time.monotonic()
        bucket = self._buckets.setdefault(team, _Bucket(self.burst, now))
        bucket.tokens = min(self.burst, bucket.tokens + (now - bucket.at) * self.per_second)
        bucket.at = now
        if bucket.tokens < 1:
            wait = math.ceil((1 - bucket.tokens) / self.per_second)
            raise Problem("rate-limited", headers={"Retry-After": str(wait), **self._headers(0, wait)})
        bucket.tokens -= 1
        full = math.ceil((self.burst - bucket.tokens) / self.per_second)
        return self._headers(int(bucket.tokens), full)

    def _headers(self, left: int, seconds: int) -> dict[str, str]:
        window = math.ceil(BURST_SECONDS)
        return {
            "RateLimit-Policy": f'"team";q={int(self.burst)};w={window}',
            "RateLimit": f'"team";r={left};t={seconds}',
        }


class Backlogs:
    """Whether a team is over its quota of unfinished jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, tuple[float, bool]] = {}
        self._looks = SharedLooks[str, bool](BACKLOG_SECONDS)

    async def over(self, team: str, more: int) -> bool:
        """Tell whether `more` jobs would put the team over its quota.

        Raises:
            db.errors.DatabaseError: it cannot be known now.

        """
        until, known = self._known.get(team, (0.0, False))
        if more == 1 and time.monotonic() < until:
            return known
        if more == 1:
            return await self._looks.at(team, lambda: self._look(team))
        return await self._database.run(lambda conn: over_quota(conn, team, more))

    async def _look(self, team: str) -> bool:
        asked = time.monotonic()
        found = await self._database.run(lambda conn: over_quota(conn, team, 1))
        self._known[team] = (asked + BACKLOG_SECONDS, found)
        return found


class Turns:
    """A team's batches take turns at the database."""

    def __init__(self, at_a_time: int = BATCHES_AT_A_TIME) -> None:
        self._at_a_time = at_a_time
        self._lines: dict[str, asyncio.Semaphore] = {}
        self._in_hand: list[tuple[str, str]] = []  # team and key of those who have their turn: a few

    @asynccontextmanager
    async def turn(self, team: str, key: str, seconds: float) -> AsyncGenerator[None, None]:
        """Wait so long for the team's turn with the batch `key`, and have it until the block ends.

        Raises:
            Problem: the turn did not come; key-busy if another request with this key has one here, else
                overloaded.

        """
        line = self._lines.setdefault(team, asyncio.Semaphore(self._at_a_time))
        try:
            async with asyncio.timeout(seconds):
                await line.acquire()
        except TimeoutError:
            if (team, key) in self._in_hand:
                raise Problem("key-busy") from None
            raise Problem("overloaded", "Other batches of the team are in hand; send it again.") from None
        self._in_hand.append((team, key))
        try:
            yield
        finally:
            self._in_hand.remove((team, key))
            line.release()
