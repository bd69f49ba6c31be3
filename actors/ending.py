"""Ends: an attempt without a preview is written by the thread that rendered, until the database has it."""

from collections.abc import Callable
from threading import Event
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg_pool import ConnectionPool

from actors.decide import Decision, decide
from actors.errors import RenderError, metric_label
from actors.gate import Gate
from actors.pauses import Pauses
from db import claims
from db.claims import Claim, Ended
from db.errors import Conflict, DatabaseError, Refused, translated
from runtime import logs, metrics
from runtime.settings import Settings
from runtime.tracing import span

log = logs.get_logger(__name__)


class Ends:
    """Writes the ends of one worker's claims. One for the process; called by each of its worker threads."""

    def __init__(
        self,
        worker: UUID,
        database: ConnectionPool[Connection[Any]],
        gate: Gate,
        settings: Settings,
        give_up: Event,
    ) -> None:
        self._worker = worker
        self._database = database
        self._gate = gate
        self._settings = settings
        self._give_up = give_up

    def end(self, claim: Claim, error: Exception) -> None:
        """Decide by the error's class what becomes of the job, and write it; fenced by the claim."""
        decision = self._decide(claim, error)
        with span("end", how=decision.how, error_class=metric_label(decision.error_class)):
            ended = self._insist(
                lambda conn: claims.end(
                    conn,
                    self._worker,
                    claim,
                    decision.how,
                    error_class=decision.error_class,
                    error=decision.error_text,
                    delay_ms=decision.delay_ms,
                    spend=decision.spend,
                )
            )
        outcome = ended.value if ended else "unwritten"
        metrics.count("claims_ended_total", how=decision.how.value, outcome=outcome)
        log.info("claim ended", how=decision.how.value, outcome=outcome)

    def _decide(self, claim: Claim, error: Exception) -> Decision:
        decision = decide(
            error,
            attempt=claim.attempt,
            max_attempts=claim.max_attempts,
            releases=claim.releases,
            message_id=f"{claim.team}|{claim.job}.{claim.dispatch_no}",
            base_ms=self._settings.backoff_base_ms,
            cap_ms=self._settings.backoff_cap_ms,
        )
        metrics.count("render_errors_total", error=metric_label(decision.error_class))
        if not isinstance(error, RenderError):  # a fault of this program: say where
            log.error("unexpected error", exc_info=error)
        # Not the error's text: it may quote the document. It is in the events, for who may read those.
        log.warning(
            "render ended without a preview",
            error_class=decision.error_class,
            how=decision.how.value,
        )
        return decision

    def _insist(self, write: Callable[[Connection[Any]], Ended]) -> Ended | None:
        """Write an end until the database has taken it; None when the process must go.

        Repeating is safe: the end is fenced, and one that took answers `already`. A claim that is lost
        meanwhile answers `lost`. A refusal is repeated too, until somebody has made the table or the
        grant that is missing, or until the steward finds the claim too old. Were the
        message consumed instead, the next one would find a claim of this process and render once more.
        """
        pauses = Pauses()
        while True:
            refused = False
            try:
                with translated(), self._database.connection() as conn:
                    return write(conn)
            except Conflict:
                log.info("conflict while ending a claim: again")
            except Refused:
                log.exception("the end of a claim was refused: it is kept and tried again")
                refused = True
            except DatabaseError:
                self._gate.away()
            if self._give_up.wait(pauses.take(refused=refused)):
                return None
