"""The actor of probes: what a job does to PostgreSQL, without a render, and each step's time is kept."""

from uuid import UUID

from psycopg import Connection
from psycopg_pool import ConnectionPool

from actors.gate import Gate
from broker.settle import Defer
from db import probes
from db.errors import DatabaseError, Refused, translated
from db.probes import Found
from runtime.logs import get_logger

log = get_logger(__name__)

#: The row is a moment behind its message; the same first pause as for a job.
NOT_YET_MS = 50
AWAY_MS = 1_000


class Probing:
    """Answers probes. One for the process; called by each of its worker threads."""

    def __init__(self, worker: UUID, database: "ConnectionPool[Connection[object]]", gate: Gate) -> None:
        self._worker = worker
        self._database = database
        self._gate = gate

    def handle(self, message_id: str, sent_ms: int) -> None:
        """Claim and finish the probe; one whose run is over is consumed without a trace.

        Raises:
            Defer: put the message back.

        """
        if self._gate.stopping:
            raise Defer(0, why="stopping")
        if self._gate.database_away:
            raise Defer(AWAY_MS, why="database")
        try:
            with translated(), self._database.connection() as conn:
                found = probes.claim(conn, message_id, sent_ms, self._worker)
                if found is Found.TAKEN:
                    probes.finish(conn, message_id)
        except Refused as error:
            log.exception("the probe was refused")
            raise Defer(AWAY_MS, why="refused") from error
        except DatabaseError as error:
            self._gate.away()
            raise Defer(AWAY_MS, why="database") from error
        if found is Found.NOT_YET:
            raise Defer(NOT_YET_MS, why="not_yet")
