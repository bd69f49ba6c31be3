"""Joint commit: single acceptances that arrive together share one statement and one commit.

A commit waits for the disk, and costs the same for one job as for sixty. So one group is on its way to the
database at a time; whoever comes meanwhile is in the next, which leaves as soon as this one is back. Nobody
waits for others to come: a request alone is a group of one. But a group may be held up, by a lock that
somebody has on one of its rows: then the next ones leave beside it.

Each request keeps an outcome of its own. A statement that is refused says nothing of whose fault that was,
and wrote nothing: then each of the group is tried alone. When the database is away, each is told so. A
request that is given up, by its client or by its time, leaves the group as it is: what is on its way is not
called back, and its key finds out.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from db.accept import Acceptance, Decision, accept_each
from db.errors import Conflict, DatabaseError, Refused, Unavailable
from portal.database import WORK_SECONDS, Database
from runtime.failpoints import failpoint

#: Requests in one statement. Beyond some dozens a commit's share of one of them is small, and who comes
#: meanwhile waits longer; two cores make 64 jobs in some 10 to 50 ms.
MAX_GROUP = 64
#: A group that is not back after this is held up, seconds: ten times what one takes on two busy cores.
HELD_UP_SECONDS = 0.1
#: Groups on their way at most: the pool has 16 connections, and others need some.
MAX_JOURNEYS = 4


@dataclass(slots=True, eq=False)
class _Seat:
    """One request's place: `until` is when it will not wait any longer to leave, by the monotonic clock."""

    wanted: Acceptance
    until: float
    decision: "asyncio.Future[Decision]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def tell(self, decision: Decision) -> None:
        if not self.decision.done():  # else given up meanwhile
            self.decision.set_result(decision)

    def fail(self, error: Exception) -> None:
        if not self.decision.done():
            self.decision.set_exception(error)


class JointCommit:
    """The way of single acceptances to the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Seat] = deque()
        self._journeys = set[asyncio.Task[None]]()
        self._left_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    async def accept(self, wanted: Acceptance, wait: float) -> Decision:
        """Accept one job; it leaves for the database within `wait` seconds, or not at all.

        Raises:
            db.errors.DatabaseError: it was not decided, or that is not known.

        """
        seat = _Seat(wanted, time.monotonic() + wait)
        self._waiting.append(seat)
        self._depart(1)
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(HELD_UP_SECONDS, self._look)
        limit = asyncio.get_running_loop().call_later(
            WORK_SECONDS, seat.fail, Unavailable("no answer in time")
        )
        try:
            return await seat.decision
        finally:
            limit.cancel()
            seat.decision.cancel()  # given up, unless it is decided

    def _look(self) -> None:
        """See whether those on their way are held up; then the next ones leave beside them."""
        self._alarm = None
        if not self._waiting:  # whoever comes next sets it again
            return
        left = self._left_at + HELD_UP_SECONDS - time.monotonic()
        if left <= 0:
            self._depart(MAX_JOURNEYS)
            left = HELD_UP_SECONDS
        self._alarm = asyncio.get_running_loop().call_later(left, self._look)

    def _depart(self, most: int) -> None:
        """Let a group leave if anybody waits and fewer than `most` are on their way."""
        if self._waiting and sum(not journey.done() for journey in self._journeys) < most:
            journey = asyncio.create_task(self._go_on())
            self._journeys.add(journey)
            journey.add_done_callback(self._journeys.discard)

    async def close(self) -> None:
        """Call back what is on its way; whoever still waits for it is cancelled."""
        if self._alarm is not None:  # kept: nobody sets another, and nobody leaves any more
            self._alarm.cancel()
        while journeys := list(self._journeys):
            for journey in journeys:
                journey.cancel()
            await asyncio.wait(journeys)

    async def _go_on(self) -> None:
        """Take group after group until nobody waits."""
        group: Sequence[_Seat] = ()
        try:
            while group := self._next():
                self._left_at = time.monotonic()
                await self._take(group)
        finally:
            for seat in (*group, *self._waiting):
                seat.decision.cancel()  # of those who have their answer nothing is taken
            self._waiting.clear()

    def _next(self) -> Sequence[_Seat]:
        """Return the next group, at most MAX_GROUP; those whose time to leave has passed are told."""
        group: list[_Seat] = []
        now = time.monotonic()
        while self._waiting and len(group) < MAX_GROUP:
            seat = self._waiting.popleft()
            if now > seat.until:
                seat.fail(Unavailable("no free connection"))
            elif not seat.decision.done():
                group.append(seat)
        return group

    async def _take(self, group: Sequence[_Seat]) -> None:
        """Accept a group, and tell each."""
        try:
            together = [seat.wanted for seat in group]
            decisions = await self._database.run(partial(accept_each, together=together))
            failpoint("accept.after_commit")
        except DatabaseError as error:
            if len(group) > 1 and isinstance(error, Refused | Conflict):
                for seat in group:
                    if not seat.decision.done():  # nobody waits for it any more
                        await self._take([seat])
            else:
                for seat in group:  # an exception keeps the traces of all who raise it: one for each
                    seat.fail(_again(error))
        except Exception as error:  # noqa: BLE001 -- a mistake of ours: each request's own 500, and the next group goes
            for seat in group:
                seat.fail(RuntimeError(f"{type(error).__name__} in a joint commit"))
        else:
            for seat, decision in zip(group, decisions, strict=True):
                seat.tell(decision)


def _again(error: DatabaseError) -> DatabaseError:
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
