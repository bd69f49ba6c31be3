"""The portal that this project replaces, in miniature: it commits, answers 202, and then calls `send()`.

Stock Dramatiq, one table. `python -m ops.demo.old_portal` serves it, `dramatiq ops.demo.old_portal:setup`
works for it. Never import this from anything but the demonstration.
"""

import json
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import dramatiq
import psycopg
from dramatiq.brokers.redis import RedisBroker

from runtime.failpoints import failpoint
from runtime.settings import settings

NAMESPACE, QUEUE = "old", "old"
#: Between the commit and `send()`: where the demonstration kills Redis.
BEFORE_SEND = "old.before_send"

TABLE = """
CREATE TABLE jobs (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  status text NOT NULL DEFAULT 'QUEUED' CHECK (status IN ('QUEUED', 'DONE'))
)
"""
INSERT = "INSERT INTO jobs DEFAULT VALUES RETURNING id"
STATUS = "SELECT status FROM jobs WHERE id = %s"
DONE = "UPDATE jobs SET status = 'DONE' WHERE id = %s"


def _connect() -> psycopg.Connection:
    return psycopg.connect(settings().database_url.get_secret_value())


def render(job_id: int) -> None:
    """Do the job."""
    with _connect() as conn:
        conn.execute(DONE, [job_id])


def setup() -> dramatiq.Actor[[int], None]:
    """Build the stock broker and its one actor, as the documentation shows it."""
    url = settings().redis_url.get_secret_value()
    broker = RedisBroker(url=url, namespace=NAMESPACE)  # type: ignore[no-untyped-call]
    dramatiq.set_broker(broker)
    return dramatiq.actor(broker=broker, queue_name=QUEUE)(render)


class Handler(BaseHTTPRequestHandler):
    """POST /jobs accepts a job, GET /jobs/<id> shows it."""

    def __init__(self, actor: dramatiq.Actor[[int], None], *args: Any) -> None:
        self._actor = actor
        super().__init__(*args)

    def do_POST(self) -> None:
        """Commit, answer, send: in that order, as the old portal's background task did."""
        with _connect() as conn:
            row = conn.execute(INSERT).fetchone()
        if row is None:
            raise AssertionError("INSERT ... RETURNING gives a row")
        job_id = int(row[0])
        self._answer(202, {"id": job_id})
        failpoint(BEFORE_SEND)
        try:
            self._actor.send(job_id)
        except Exception as error:  # noqa: BLE001 -- the old portal logged whatever went wrong, and went on
            print(json.dumps({"lost": job_id, "error": type(error).__name__}), flush=True)  # noqa: T201 -- its log
        else:
            print(json.dumps({"sent": job_id}), flush=True)  # noqa: T201 -- its log

    def do_GET(self) -> None:
        """Show a job; `/` says that the portal serves."""
        if self.path == "/":
            self._answer(200, {})
            return
        with _connect() as conn:
            row = conn.execute(STATUS, [int(self.path.rpartition("/")[2])]).fetchone()
        self._answer(404 if row is None else 200, {"status": None if row is None else row[0]})

    def _answer(self, status: int, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class names it
        """Leave requests out of the log."""


def main() -> None:
    """Serve on ONCOMMIT_PORT until killed."""
    with _connect() as conn:
        conn.execute(TABLE)
    ThreadingHTTPServer((settings().host, settings().port), partial(Handler, setup())).serve_forever()


if __name__ == "__main__":
    main()
