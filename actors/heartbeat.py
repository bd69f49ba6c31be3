"""The heartbeat: tells PostgreSQL that this process lives, and compares what it holds with what it runs.

Each beat, in this order:
1. writes the heartbeat; the database is away or back, and the gate follows;
2. a claim that was asked to cancel: its render is stopped;
3. a claim that names this process and that it does not run, two beats running: released, since its
   claim's reply, or its end, was lost. Spends nothing: nothing was rendered for it, or all of it was;
4. a run whose claim names somebody else by now, two beats running: stopped. This process was frozen or
   cut off, and rescued; whatever it renders cannot take.
"""

import os
import socket
import time
from threading import Event
from uuid import UUID

from actors.about import about
from actors.decide import FREE_RELEASES, backoff
from actors.errors import Stop
from actors.gate import Gate
from actors.kept_connection import KeptConnection
from actors.running import Running
from db import claims, workers
from db.errors import DatabaseError
from runtime import metrics
from runtime.failpoints import failpoint
from runtime.logs import get_logger

log = get_logger(__name__)

#: A cancelled render is to stop within two seconds, and a worker may be taken for lost after two at least.
BEAT_SECONDS = 1.0
#: What this process forgot once may start again at once; what it forgets again and again waits.
BACKOFF_BASE_MS, BACKOFF_CAP_MS = 50, 60_000

Key = tuple[UUID, int, int]  # job, dispatch number, attempt


class Heartbeat:
    """The beats of one worker process; `run` is the thread's loop, `beat` one turn of it."""

    def __init__(
        self, worker: UUID, database: KeptConnection, gate: Gate, running: Running, *, threads: int
    ) -> None:
        self._worker = worker
        self._database = database
        self._gate = gate
        self._running = running
        self._threads = threads
        self._not_run: set[Key] = set()
        self._not_held: set[Key] = set()
        self.last_success = float("-inf")  # of time.monotonic()

    def run(self, stopped: Event) -> None:
        """Beat until `stopped`; trouble with the database is waited out."""
        while not stopped.wait(BEAT_SECONDS):
            self.try_beat()

    def try_beat(self) -> bool:
        """Beat once; False when the database is away."""
        try:
            self.beat()
        except DatabaseError as error:
            log.warning("no heartbeat: %s", error)
            self._gate.away()
            return False
        return True

    def beat(self) -> None:
        """Write one heartbeat and act on what the database says this process holds.

        Raises:
            DatabaseError: it was not written, or not all of it was done.

        """
        failpoint("heartbeat.before")
        runs = {_key(run.claim): run for run in self._running.all() if run.claim is not None}
        with self._database.connection() as conn:
            workers.beat(conn, self._worker, socket.gethostname(), os.getpid(), self._threads)
            held = {_key(h.claim): h for h in workers.claims_of(conn, self._worker)}
        self.last_success = time.monotonic()
        self._gate.back()
        metrics.gauge("renders_running", len(runs))
        for key, one in held.items():
            if one.cancel_requested and key in runs and runs[key].stop(Stop.CANCELLED):
                log.info("cancelled: render stopped", **about(one.claim))
        self._release(held)
        not_held = runs.keys() - held.keys()
        for key in not_held & self._not_held:
            if (claim := runs[key].claim) is not None and runs[key].stop(Stop.LOST):
                log.warning("the claim is no longer this worker's: render stopped", **about(claim))
        self._not_held = not_held

    def _release(self, held: dict[Key, workers.Held]) -> None:
        """Release what is held and not run since the beat before."""
        in_hand = {(run.job, run.dispatch_no) for run in self._running.all()}
        not_run = {key for key in held if key[:2] not in in_hand}
        for key in not_run & self._not_run:
            # Entered like a run, so that its message, coming again right now, cannot adopt it meanwhile.
            if (run := self._running.enter(key[0], key[1])) is None:
                continue
            one = held[key].claim
            try:
                with self._database.connection() as conn:
                    ended = claims.end(
                        conn,
                        self._worker,
                        one,
                        claims.How.RELEASED,
                        error_class="ClaimForgotten",
                        error="the worker does not run what it claimed",
                        # An end that the database refuses comes here each time: bounded, and slower.
                        delay_ms=backoff(one.releases + 1, str(one.job), BACKOFF_BASE_MS, BACKOFF_CAP_MS),
                        spend=one.releases >= FREE_RELEASES,
                    )
            finally:
                self._running.leave(run)
            metrics.count("claims_ended_total", how="reconciled", outcome=ended.value)
            log.warning(
                "released a claim that this worker does not run",
                **about(held[key].claim),
                outcome=ended.value,
            )
        self._not_run = not_run


def _key(claim: claims.Claim) -> Key:
    return claim.job, claim.dispatch_no, claim.attempt
