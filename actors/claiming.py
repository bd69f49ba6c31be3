"""Claiming: what a fetch brought is claimed in one commit, before the threads that wait for it begin it.

A fetch brings at most as many messages as threads are free, so each claim is for a render that begins now:
no attempt is spent and no cap is held by work that lies about. Nobody is waited for: a job that somebody has
at this moment is left to its thread, and so is everything when the statement fails; the thread then claims by
itself, and knows what to make of each answer and of each error.

A stop may come between claim and thread. Then nobody begins the job, and its claim is given back unspent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any, Protocol
from uuid import UUID

from actors.about import about
from actors.errors import RenderStopped, Stop
from actors.gate import Gate
from actors.judge import Unreadable, judge
from actors.kept_connection import KeptConnection
from actors.running import Run, Running
from db import claims
from db.claims import Answer, Claim, Claimed
from db.errors import DatabaseError
from runtime import logs, tracing
from runtime.failpoints import failpoint

log = logs.get_logger(__name__)


class Fetched(Protocol):
    """A message that was fetched and that no thread has begun."""

    lane_id: str

    @property
    def actor_name(self) -> str:
        """The name of its actor."""
        ...

    @property
    def args(self) -> Any:
        """Its arguments."""
        ...

    @property
    def kwargs(self) -> Any:
        """Its named arguments."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that was entered, and what the database answered; `begun_ns` is when it was asked."""

    run: Run
    claimed: Claimed
    begun_ns: int


class Claiming:
    """Claims ahead of the threads. One for the process.

    `give_back` ends a claim that nobody begins; it may insist until the database has taken it.
    """

    def __init__(
        self,
        worker: UUID,
        database: KeptConnection,
        gate: Gate,
        running: Running,
        *,
        actor: str,
        give_back: Callable[[Claim, Exception], None],
    ) -> None:
        self._worker = worker
        self._database = database
        self._gate = gate
        self._running = running
        self._actor = actor
        self._give_back = give_back
        self._lock = Lock()  # guards what follows
        self._prepared: dict[str, Prepared] = {}
        self._stopping = False
        self._giving_back: Thread | None = None

    # What the consumer's thread does ---------------------------------------------------------------

    def prepare(self, fetched: Sequence[Fetched]) -> None:
        """Claim what these messages name; whatever goes wrong is left to their threads."""
        ours = [message for message in fetched if message.actor_name == self._actor]
        if ours:
            failpoint("claim.before")
        runs = {message.lane_id: run for message in ours if (run := self._enter(message)) is not None}
        if not runs:
            return
        begun_ns = tracing.now_ns()
        try:
            with self._database.connection() as conn:
                answers = claims.claim(
                    conn, self._worker, [(run.job, run.dispatch_no) for run in runs.values()], wait=False
                )
        except DatabaseError as error:
            log.info("claims are left to their threads: %s", error, claims=len(runs))
            for run in runs.values():
                self._running.leave(run)
            return
        with self._lock:
            over = self._stopping
            for (message_id, run), claimed in zip(runs.items(), answers, strict=True):
                if claimed.answer is Answer.BUSY:
                    self._running.leave(run)
                    continue
                run.claim = claimed.claim
                self._prepared[message_id] = Prepared(run, claimed, begun_ns)
        if over:
            self._release_all()

    def _enter(self, message: Fetched) -> Run | None:
        """Enter the run; None when its thread has to find out what is wrong with it."""
        if self._gate.stopping or self._gate.database_away:
            return None
        try:
            job, dispatch_no = judge(message.lane_id, message.args, message.kwargs)
        except Unreadable:
            return None
        return self._running.enter(job, dispatch_no)

    # What the worker threads do --------------------------------------------------------------------

    def take(self, message_id: str) -> Prepared | None:
        """Return what was prepared for this message, once; whoever has it answers for the run."""
        if message_id not in self._prepared:  # most often so where claims are refused; needs no lock
            return None
        with self._lock:
            return self._prepared.pop(message_id, None)

    # What a stop does ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Give back, beside the caller, what no thread has begun; from now on nothing stays prepared."""
        with self._lock:
            self._stopping = True
        self._giving_back = Thread(target=self._release_all, name="give back", daemon=True)
        self._giving_back.start()

    def settle(self) -> None:
        """Return when all that `stop` found is given back, or given up."""
        if self._giving_back is not None:
            self._giving_back.join()

    def _release_all(self) -> None:
        with self._lock:
            prepared, self._prepared = self._prepared, {}
        for one in prepared.values():
            if (claim := one.run.claim) is not None:
                with logs.about(**about(claim)):
                    self._release(claim)
            self._running.leave(one.run)

    def _release(self, claim: Claim) -> None:
        log.info("claimed and not begun: given back")
        try:
            self._give_back(claim, RenderStopped(Stop.SHUTDOWN))
        except Exception:  # the others are to be given back all the same
            log.exception("a claim was not given back")
