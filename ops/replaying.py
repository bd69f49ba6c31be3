"""Replaying at a pace: slices of a run, or of a list of ids, each one transaction."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from psycopg import Connection

from db import replay
from db.errors import Conflict
from db.replay import SLICE, Slice

T = TypeVar("T")

#: A slice that lost against a deadlock did nothing: it is tried again so often, each after a pause.
TRIES = 5
PAUSE_SECONDS = 0.2
#: Rows that somebody else holds for longer than that are somebody's forgotten transaction.
LOCKED_SECONDS = 10.0


class StillLocked(Exception):
    """Some of the jobs are held by another transaction; everything else of the run is replayed."""


class Pace:
    """At most so many jobs a second, None for no limit: in any time, what the rate gives and one slice.

    A slice that took long earns no credit, or the next ones would go all at once. `wait` before each slice,
    `spent` after it.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock, self._sleep = clock, sleep
        self._due = self._begun = clock()

    @property
    def size(self) -> int:
        """Jobs in one slice: those of a second, so that a slow replay is even and a fast one cheap."""
        return SLICE if self._rate is None else max(1, min(SLICE, math.floor(self._rate)))

    def wait(self) -> None:
        """Return when the next slice is due."""
        while self._rate is not None and (left := self._due - self._clock()) > 0:
            self._sleep(left)
        self._begun = self._clock()

    def spent(self, jobs: int) -> None:
        """Note that so many were replayed."""
        if self._rate is not None:
            self._due = max(self._due, self._begun) + jobs / self._rate


def replay_run(
    conn: Connection[Any],
    run: UUID,
    pace: Pace,
    *,
    who: str,
    reason: str,
    locked_seconds: float = LOCKED_SECONDS,
) -> Iterator[Slice]:
    """Replay a run to its end; yield after each transaction.

    Raises:
        StillLocked: another transaction holds some of its jobs; call again later.
        UnknownRun, DatabaseError: the run is as far as the last slice; call again later.

    """
    stuck_since: float | None = None
    while True:
        pace.wait()
        done = _again(partial(replay.replay_slice, conn, run, pace.size, who=who, reason=reason))
        pace.spent(done.replayed)
        yield done
        if not done.more:
            return
        if done.replayed:
            stuck_since = None
            continue
        stuck_since = stuck_since or time.monotonic()
        if time.monotonic() - stuck_since > locked_seconds:
            raise StillLocked(f"run {run}: the rest is held by another transaction; go on later")
        time.sleep(PAUSE_SECONDS)


def replay_ids(
    conn: Connection[Any], jobs: Sequence[UUID], pace: Pace, *, who: str, reason: str
) -> Iterator[dict[UUID, str]]:
    """Replay these, each once however often it is named; yield the outcomes of each transaction.

    Raises:
        DatabaseError: those yielded are done; the others may be asked for again.

    """
    wanted = list(dict.fromkeys(jobs))
    while wanted:
        part, wanted = wanted[: pace.size], wanted[pace.size :]
        pace.wait()
        outcomes = _again(partial(replay.replay, conn, part, who=who, reason=reason))
        pace.spent(sum(outcome == "replayed" for outcome in outcomes.values()))
        yield outcomes


def _again(once: Callable[[], T]) -> T:
    for left in reversed(range(TRIES)):
        try:
            return once()
        except Conflict:
            if left == 0:
                raise
            time.sleep(PAUSE_SECONDS)
    raise AssertionError("unreachable")
