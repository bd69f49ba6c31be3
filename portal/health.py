"""Health: whether the loop turns, whether jobs can be accepted, how long the oldest intent waits.

Ready without Redis and not without PostgreSQL. The age of the oldest due intent is measured here, by
PostgreSQL, and not by the relay that it accuses. Every page answers within a second: the question runs
beside the request, and a question without an answer is an answer.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter
from psycopg import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response

from db import reads
from db.errors import DatabaseError
from portal.answers import as_json
from portal.database import Database
from portal.problems import MEDIA_TYPE, TABLE, Kind
from runtime import metrics

router = APIRouter(tags=["health"])

#: A probe answers within 1 s whatever hangs; the rest is for the network.
ANSWER_SECONDS = 0.8

READ_ONLY = "SELECT current_setting('transaction_read_only') = 'on'"


class Readiness:
    """The last answer of the database, and the question that is on its way: one at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._asking: asyncio.Task[dict[str, Any]] | None = None

    async def ask(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the database works, and the facts."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._database.run(self._facts, wait=ANSWER_SECONDS))
            # Who asked may have gone by the time it fails: that is no error of ours.
            self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        done, _ = await asyncio.wait({self._asking}, timeout=ANSWER_SECONDS)
        if not done:
            return self._silent(f"no answer within {ANSWER_SECONDS} s")
        try:
            facts = self._asking.result()
        except DatabaseError as error:
            return self._silent(str(error))
        metrics.gauge("database_answers", 1)
        return True, facts

    @staticmethod
    def _silent(why: str) -> tuple[bool, dict[str, Any]]:
        metrics.gauge("database_answers", 0)
        # Old news would look like health.
        metrics.forget("oldest_due_intent_seconds", "due_intents", "dead_jobs")
        return False, {"error": why}

    @staticmethod
    async def _facts(conn: AsyncConnection[Any]) -> dict[str, Any]:
        row = await (await conn.execute(READ_ONLY)).fetchone()
        seconds, intents, dead = await reads.vitals(conn)
        metrics.gauge("oldest_due_intent_seconds", seconds)
        metrics.gauge("due_intents", intents)
        metrics.gauge("dead_jobs", dead)
        return {
            "read_only": bool(row and row[0]),
            "oldest_due_seconds": round(seconds, 3),
            "due_intents": intents,
        }


def _like(example: Any, description: str = "") -> dict[str, Any]:
    """Return the declaration of JSON such as `example`."""
    said = {"description": description} if description else {}
    return {**said, "content": {"application/json": {"schema": {"type": "object"}, "example": example}}}


@router.get("/livez", summary="Is the loop turning?", responses={200: _like({"ok": True})})
async def livez() -> Response:
    """Answer, which is all that is asked."""
    return as_json({"ok": True})


@router.get(
    "/readyz",
    summary="Can jobs be accepted?",
    responses={
        200: _like({"ok": True, "read_only": False, "oldest_due_seconds": 0.012, "due_intents": 3}),
        503: _like({"ok": False, "error": f"no answer within {ANSWER_SECONDS} s"}, "no"),
    },
)
async def readyz(request: Request) -> Response:
    """Answer whether the database works, and the age of the oldest due intent, by its clock."""
    ok, facts = await request.app.state.readiness.ask()
    return as_json({"ok": ok, **facts}, 200 if ok else 503)


@router.get(
    "/metrics",
    summary="Counters and gauges in Prometheus' text format",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": "due_intents 3.0\n"}}}
    },
)
async def read_metrics(request: Request) -> Response:
    """Answer this process's metrics, with the oldest due intent looked up for each scrape."""
    await request.app.state.readiness.ask()
    return Response(metrics.exposition(), media_type=metrics.CONTENT_TYPE)


def _table(kinds: Iterable[Kind]) -> dict[str, Any]:
    rows = [
        {"type": f"/problems/{k.slug}", "status": k.status, "title": k.title, "advice": k.advice}
        for k in kinds
    ]
    return {"media_type": MEDIA_TYPE, "problems": rows}


@router.get(
    "/problems",
    summary="What the portal says no with, and what to do",
    responses={200: _like(_table(TABLE[:1]))},
)
async def problems() -> Response:
    """Answer the table of problems."""
    return as_json(_table(TABLE))
