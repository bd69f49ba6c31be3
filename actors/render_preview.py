"""The actor: claim -> render -> store the preview -> finish, each fenced; every way out is accounted for.

A finish is handed over (actors/finishing.py); every other end is written at once (actors/ending.py).
"""

import time
from functools import partial
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg_pool import ConnectionPool

from actors import simulate
from actors.about import about
from actors.child import Renderers
from actors.claiming import Prepared
from actors.ending import Ends
from actors.errors import (
    ArtifactNotStored,
    DocumentMissing,
    RenderError,
    RenderStopped,
    Stop,
)
from actors.finishing import Finishes, Kept
from actors.gate import Gate
from actors.not_yet import Patience
from actors.pauses import REFUSED_SECONDS
from actors.progress import Progress
from actors.render_log import RenderLog
from actors.running import Run, Running
from broker.settle import Defer
from db import claims
from db.claims import Answer, Claim, Claimed, Ended, Finish
from db.errors import Conflict, DatabaseError, Refused, translated
from runtime import logs, metrics, tracing
from runtime.blobs import BlobStore
from runtime.failpoints import failpoint
from runtime.settings import Settings
from runtime.tracing import span

log = logs.get_logger(__name__)

#: The lane is closed meanwhile; this is how soon a change of the operator's mind is looked at again.
HELD_MS = 500
#: The gate is closed while the database is away: no message comes back for longer than it takes to open.
AWAY_MS = 1_000


class Previews:
    """Renders what messages name. One for the process; called by each of its worker threads."""

    def __init__(
        self,
        *,
        worker: UUID,
        database: ConnectionPool[Connection[Any]],
        gate: Gate,
        running: Running,
        renderers: Renderers,
        blobs: BlobStore,
        render_log: RenderLog,
        settings: Settings,
        finishes: Finishes,
        progress: Progress,
        ends: Ends,
    ) -> None:
        self._worker = worker
        self._database = database
        self._gate = gate
        self._running = running
        self._renderers = renderers
        self._blobs = blobs
        self._render_log = render_log
        self._settings = settings
        self._finishes = finishes
        self._progress = progress
        self._ends = ends
        self._patience = Patience()

    def handle(self, job: UUID, dispatch_no: int, message: Kept, prepared: Prepared | None = None) -> None:
        """Do what the message (job, dispatch_no) asks for; a normal return consumes it, unless it is kept.

        `prepared`: what was claimed ahead for this message, if anything was.

        Raises:
            Defer: put the message back.

        """
        with logs.about(job=str(job), dispatch=dispatch_no, attempt=None):
            try:
                self._handle(job, dispatch_no, message, prepared)
            except Defer as deferred:
                metrics.count("deferrals_total", why=deferred.why)
                raise

    def _handle(self, job: UUID, dispatch_no: int, message: Kept, prepared: Prepared | None) -> None:
        run = self._begin(job, dispatch_no) if prepared is None else prepared.run
        if run is None:
            metrics.count("claims_total", answer="duplicate")
            return
        finish = None
        try:
            if prepared is None:
                claimed = self._claim(job, dispatch_no)
            else:
                claimed = prepared.claimed
                tracing.past("claim", tracing.here(), prepared.begun_ns, answer=claimed.answer)
            claim = self._answered(claimed)
            if claim is not None:
                run.claim = claim
                metrics.count("attempts_total", kind=claim.kind, after=_before(claim))
                with logs.about(**about(claim)):
                    failpoint("claim.after")
                    finish = self._work(run, claim)
        finally:
            if finish is None:
                self._running.leave(run)
        if finish is not None:
            self._finishes.put(run, message, finish)

    def _begin(self, job: UUID, dispatch_no: int) -> Run | None:
        """Enter the run where nothing was prepared; None when this process has it already."""
        failpoint("claim.before")
        if self._gate.stopping:
            raise Defer(0, why="stopping")
        if self._gate.database_away:
            raise Defer(AWAY_MS, why="database")
        return self._running.enter(job, dispatch_no)

    def _claim(self, job: UUID, dispatch_no: int) -> Claimed:
        """Claim, waiting for whoever has the job's row."""
        try:
            with span("claim") as here, translated(), self._database.connection() as conn:
                claimed = claims.claim(conn, self._worker, [(job, dispatch_no)])[0]
                here.tell(answer=claimed.answer)
                return claimed
        except Conflict as error:
            raise Defer(HELD_MS, why="conflict") from error
        except Refused as error:
            log.exception("the claim was refused")
            raise Defer(int(REFUSED_SECONDS * 1000), why="refused") from error
        except DatabaseError as error:
            self._gate.away()
            raise Defer(AWAY_MS, why="database") from error

    def _answered(self, claimed: Claimed) -> Claim | None:
        """Return the claim, or None when the message has nothing more to say."""
        job, dispatch_no, answer = claimed.job, claimed.dispatch_no, claimed.answer
        if answer is Answer.NOT_YET:
            if (wait := self._patience.next_ms(job, dispatch_no)) is not None:
                raise Defer(wait, why="not_yet")
            metrics.count("claims_total", answer="gave_up")
            log.warning("the row did not come")
            return None
        metrics.count("claims_total", answer=answer.value)
        self._patience.over(job, dispatch_no)
        if answer in {Answer.PAUSED, Answer.FULL}:
            raise Defer(HELD_MS, why=answer.value)
        return claimed.claim

    def _work(self, run: Run, claim: Claim) -> Finish | None:
        """Render, and end the claim unless that went well: then return the finish."""
        try:
            with span("render", kind=claim.kind, attempt=claim.attempt):
                artifact, size = self._produce(run, claim)
        except RenderStopped as stopped:
            if stopped.why is Stop.LOST:  # another worker has it by now: nothing to write
                metrics.count("claims_ended_total", how="dropped", outcome=Ended.LOST.value)
                return None
            self._ends.end(claim, stopped)
        except Exception as error:  # noqa: BLE001 -- every error of a render ends its claim, by its class
            self._progress.failed(claim.job, error, partial(self._try_out, claim.document))
            self._ends.end(claim, error)
        else:
            self._progress.made()
            return Finish(claim, artifact, size)
        return None

    def _produce(self, run: Run, claim: Claim) -> tuple[str, int]:
        """Render and store; return the preview's digest and size."""
        try:
            preview = self._render(run, claim)
        except Exception:
            run.begin_ending(rendered=False)  # a stop killed the child: then the stop is the reason
            raise
        run.begin_ending(rendered=True)
        failpoint("artifact.before")
        try:
            return self._blobs.put_bytes(preview), len(preview)
        except OSError as error:
            raise ArtifactNotStored(f"the preview was not stored: {error.strerror or error}") from error

    def _find(self, document: str) -> None:
        if not self._blobs.exists(document):
            raise DocumentMissing("the document is not in the store")

    def _try_out(self, document: str) -> None:
        """Do what any job needs of this machine: find a document, have a child, write to the store."""
        self._find(document)
        self._renderers.give(self._renderers.take())
        self._blobs.try_out()

    def _render(self, run: Run, claim: Claim) -> bytes:
        self._find(claim.document)
        child = self._renderers.take()
        try:
            run.lend(child)
            failpoint("render.before")
            outcome, begun = "rendered", time.monotonic()
            self._render_log.started(claim)
            try:
                simulate.kill_worker_if_asked(claim.simulate)
                return child.render(
                    {
                        "document": str(self._blobs.path(claim.document)),
                        "digest": claim.document,
                        "kind": claim.kind,
                        "attempt": claim.attempt,
                        "simulate": dict(claim.simulate or {}),
                    },
                    self._settings.render_timeout_seconds,
                )
            except RenderError as error:
                outcome = error.error_class
                raise
            finally:
                self._render_log.ended(claim, outcome)
                metrics.observe("render_seconds", time.monotonic() - begun, kind=claim.kind)
        finally:
            run.take_back()
            self._renderers.give(child)


def _before(claim: Claim) -> str:
    """Tell what this attempt comes after: only a replay starts the counts anew in a later dispatch."""
    if claim.releases:
        return "release"
    if claim.attempt > 1:
        return "failure"
    return "acceptance" if claim.dispatch_no == 1 else "replay"
