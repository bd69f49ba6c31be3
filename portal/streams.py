"""Streams: one hub that asks PostgreSQL for all who watch.

However many streams are open, a tick is at most three queries: events of the watched jobs, progress
of the watched batches, tokens still in force. A watcher that has not taken what it got is not asked
for, so a slow client costs one page of events and no more.
"""

import asyncio
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from db import reads, tokens
from db.errors import DatabaseError
from db.jobs import STATUS_AFTER, TERMINAL, Event
from db.reads import BatchRow
from portal.database import Database
from portal.problems import Problem
from runtime import metrics
from runtime.logs import get_logger

log = get_logger(__name__)

#: Between looks for news, seconds: four queries a second at most for the events of all jobs.
TICK_SECONDS = 0.25
#: Revocation is in force within 2 s, also for streams that are open.
TOKEN_SECONDS = 1.0
#: Counting a batch of 10,000 takes milliseconds; counting takes at most a tenth of the time.
BATCH_SECONDS, BATCH_SHARE = 0.5, 10.0
#: After the database failed, seconds; streams stay open meanwhile.
PAUSE_SECONDS = 1.0
#: Events that one watcher gets at a time.
PAGE = 100
#: Each costs a few tens of kilobytes of tasks and buffers.
MAX_STREAMS = 2_000


@dataclass(eq=False, slots=True)
class Watch:
    """One open stream: what it looks at, how far it is, and what waits to be sent."""

    of: Literal["job", "batch"]
    subject: UUID
    after: int
    token: UUID
    news: list[Event | BatchRow] = field(default_factory=list[Event | BatchRow])
    over: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, news: Sequence[Event | BatchRow], *, last: bool) -> None:
        """Hand news over; `last` says that nothing follows."""
        self.news.extend(news)
        self.over = self.over or last
        self.wake.set()

    async def take(self, seconds: float) -> list[Event | BatchRow]:
        """Return what is new, or nothing after `seconds`, or at once when the stream is over."""
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            return []
        news, self.news = self.news, []
        if not self.over:
            self.wake.clear()
        return news


class Hub:
    """All watches of the process. `run` serves them; `close` ends them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watches: set[Watch] = set()
        self._anyone = asyncio.Event()
        self._closed = False
        self._tokens_at = 0.0
        self._batches_at = 0.0

    @contextmanager
    def watch(
        self, of: Literal["job", "batch"], subject: UUID, after: int, token: UUID
    ) -> Generator[Watch, None, None]:
        """Take part until the block ends; news are those after `after`.

        Raises:
            Problem: overloaded, too many streams.

        """
        if len(self._watches) >= MAX_STREAMS:
            raise Problem("overloaded", "Too many streams are open.")
        found = Watch(of, subject, after, token, over=self._closed)
        self._watches.add(found)
        self._anyone.set()
        metrics.gauge("open_streams", len(self._watches))
        try:
            yield found
        finally:
            self._watches.discard(found)
            metrics.gauge("open_streams", len(self._watches))

    def close(self) -> None:
        """End every stream, so that the process can end; clients come back with Last-Event-ID."""
        self._closed = True
        for found in self._watches:
            found.give([], last=True)

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            if not self._watches:
                self._anyone.clear()
                await self._anyone.wait()
            try:
                await self._tick()
            except DatabaseError as error:
                log.warning("streams wait for the database", error=str(error))
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(TICK_SECONDS)

    async def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._tokens_at:
            self._tokens_at = now + TOKEN_SECONDS
            await self._check_tokens()
        waiting = [w for w in self._watches if not w.news and not w.over]
        if jobs := [w for w in waiting if w.of == "job"]:
            await self._jobs(jobs)
        if (batches := [w for w in waiting if w.of == "batch"]) and now >= self._batches_at:
            started = time.monotonic()
            await self._batches(batches)
            ended = time.monotonic()
            self._batches_at = ended + max(BATCH_SECONDS, BATCH_SHARE * (ended - started))

    async def _check_tokens(self) -> None:
        shown = list({w.token for w in self._watches})
        in_force = await self._database.run(lambda conn: tokens.tokens_in_force(conn, shown))
        for found in self._watches:
            if found.token not in in_force:
                found.give([], last=True)

    async def _jobs(self, watches: list[Watch]) -> None:
        cursors = [(w.subject, w.after) for w in watches]
        fresh = await self._database.run(lambda conn: reads.fresh_events(conn, cursors, PAGE))
        for n, events in fresh.items():
            watches[n].after = events[-1].seq
            ends = STATUS_AFTER[events[-1].type] in TERMINAL
            watches[n].give(events, last=ends)

    async def _batches(self, watches: list[Watch]) -> None:
        subjects = list({w.subject for w in watches})
        rows = await self._database.run(lambda conn: reads.batches(conn, subjects, None))
        by_id = {row.id: row for row in rows}
        for found in watches:
            row = by_id.get(found.subject)
            if row is None:
                found.give([], last=True)
            elif row.events > found.after:
                found.after = row.events
                found.give([row], last=row.finished)
