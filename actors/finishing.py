"""Joint finishes: renders that succeeded share a statement and a commit, and no thread waits for it.

A commit waits for the disk, and costs the same for one job as for sixty. So one group is on its way to the
database at a time, written by a thread of its own; what ends meanwhile is in the next, which leaves as soon
as this one is back. Nothing waits for others to come: a finish alone is a group of one.

A thread that hands its finish over is free. The message is acknowledged when the finish is committed, and not
before: until then it stays in flight, its team's slot is taken, and the process knows the run as its own.

Each keeps an outcome of its own, and is repeated until the database has taken it, which is safe: a finish is
fenced, and one that took answers `already`. A statement that is refused says nothing of whose fault that was:
then each of the group is tried alone. What is refused is kept, with what is rendered, until somebody has made
the table or the grant that is missing, or until the steward finds the claim too old.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Condition, Event
from typing import Protocol
from uuid import UUID

from actors.about import about
from actors.gate import Gate
from actors.kept_connection import KeptConnection
from actors.pauses import Pauses
from actors.running import Run, Running
from db import claims
from db.claims import Ended, Finish
from db.errors import Conflict, DatabaseError, Refused
from runtime import logs, metrics, tracing
from runtime.failpoints import failpoint

log = logs.get_logger(__name__)

#: Finishes in one statement; beyond some dozens a commit's share of one of them is small.
MAX_GROUP = 64
#: Between looks at whether the process must go, seconds.
LOOK_SECONDS = 0.5


class Kept(Protocol):
    """The message of a finish that waits: it stays in flight until it is acknowledged."""

    def keep(self) -> None:
        """Let the message outlast its thread's work on it."""

    def acknowledge(self) -> None:
        """Consume the message."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A finish on its way. `due` is when it is tried again, by the monotonic clock; `alone`: in no group."""

    run: Run
    message: Kept
    finish: Finish
    traceparent: str | None
    begun_ns: int
    due: float = 0.0
    alone: bool = False
    pauses: Pauses = field(default_factory=Pauses)

    def again(self, *, refused: bool) -> None:
        self.due = time.monotonic() + self.pauses.take(refused=refused)


class Finishes:
    """The way of finishes to the database; `run` is the thread's loop. At most `most` wait at a time."""

    def __init__(
        self,
        worker: UUID,
        database: KeptConnection,
        gate: Gate,
        running: Running,
        *,
        most: int,
        give_up: Event,
    ) -> None:
        self._worker = worker
        self._database = database
        self._gate = gate
        self._running = running
        self._most = most
        self._give_up = give_up
        self._changed = Condition()  # guards what follows
        self._fresh: deque[_Waiting] = deque()
        self._kept: list[_Waiting] = []
        self._unwritten = 0
        self._hopeless = False  # of the thread that writes: it gives up, and the database is away

    # What the worker threads do -------------------------------------------------------------------

    def put(self, run: Run, message: Kept, finish: Finish) -> None:
        """Hand a finish over; wait while there are too many, since the renderers outrun the database."""
        message.keep()
        waiting = _Waiting(run, message, finish, tracing.here(), tracing.now_ns())
        with self._changed:
            while self._unwritten >= self._most and not self._give_up.is_set():
                self._changed.wait(LOOK_SECONDS)
            self._unwritten += 1
            self._fresh.append(waiting)
            self._changed.notify_all()

    def settle(self) -> None:
        """Return when nothing waits any more: written, or given up."""
        with self._changed:
            while self._unwritten:
                self._changed.wait(LOOK_SECONDS)

    # The thread that writes ------------------------------------------------------------------------

    def run(self, stopped: Event) -> None:
        """Write group after group until `stopped`."""
        while not stopped.is_set():
            for group in self._next():
                self._write(group)

    def _next(self) -> Sequence[list[_Waiting]]:
        """Wait a moment for something to do, and return it in groups of at most MAX_GROUP."""
        with self._changed:
            if not self._fresh:
                soonest = min((one.due for one in self._kept), default=float("inf"))
                pause = min(max(soonest - time.monotonic(), 0.0), LOOK_SECONDS)
                if pause:
                    self._changed.wait(pause)
            now = time.monotonic()
            giving_up = self._give_up.is_set()
            due = [one for one in self._kept if giving_up or one.due <= now]
            self._kept = [one for one in self._kept if one not in due]
            together = [one for one in due if not one.alone]
            while self._fresh and len(together) < MAX_GROUP:
                together.append(self._fresh.popleft())
        groups = [together[at : at + MAX_GROUP] for at in range(0, len(together), MAX_GROUP)]
        return [*groups, *([one] for one in due if one.alone)]

    def _write(self, group: Sequence[_Waiting]) -> None:
        """Write a group, and tell each its outcome."""
        if self._hopeless:  # another try takes seconds, and a process that must go has few
            for one in group:
                self._over(one, None)
            return
        failpoint("finish.before")
        try:
            with self._database.connection() as conn:
                outcomes = claims.finish_each(conn, self._worker, [one.finish for one in group])
        except (Refused, Conflict) as error:
            self._refused(group, error)
        except DatabaseError as error:
            self._gate.away()
            self._hopeless = self._give_up.is_set()
            log.warning("finishes wait for the database: %s", error, waiting=len(group))
            self._again(group)
        else:
            failpoint("finish.after")
            self._again([one for one, ended in zip(group, outcomes, strict=True) if ended is Ended.BUSY])
            for one, ended in zip(group, outcomes, strict=True):
                if ended is not Ended.BUSY:
                    self._over(one, ended)

    def _refused(self, group: Sequence[_Waiting], error: Refused | Conflict) -> None:
        """Try each alone; whom that leaves is the one to blame."""
        if len(group) > 1:
            for one in group:
                self._write([one])
        elif isinstance(error, Conflict):
            log.info("conflict while finishing: again", **about(group[0].finish.claim))
            self._again(group)
        else:
            log.error(
                "a finish was refused: it is kept and tried again",
                exc_info=error,
                **about(group[0].finish.claim),
            )
            group[0].alone = True
            self._again(group, refused=True)

    def _again(self, group: Sequence[_Waiting], *, refused: bool = False) -> None:
        """Keep these, unless the process must go."""
        if self._give_up.is_set():
            for one in group:
                self._over(one, None)
            return
        for one in group:
            one.again(refused=refused)
        with self._changed:
            self._kept.extend(group)

    def _over(self, one: _Waiting, ended: Ended | None) -> None:
        """End what is decided; what is given up ends too, but its message is not consumed."""
        self._running.leave(one.run)
        if ended is not None:
            one.message.acknowledge()
        outcome = ended.value if ended else "unwritten"
        tracing.past("finish", one.traceparent, one.begun_ns, outcome=outcome)
        metrics.count("claims_ended_total", how="succeeded", outcome=outcome)
        log.info("claim ended", how="succeeded", outcome=outcome, **about(one.finish.claim))
        with self._changed:
            self._unwritten -= 1
            self._changed.notify_all()
