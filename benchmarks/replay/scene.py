"""The scene: a stack of its own, a team with many dead jobs, and a team that sends a job a second."""

import json
import os
import re
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psycopg

from db.claims import Answer, claim
from db.operate import TokenOrder, create_team, store_token
from ops.stack import Stack, StackPlan
from runtime.settings import PREFIX

STORM, CALM = "storm", "calm"
WHO = "benchmarks.replay"
WORKERS, THREADS = 2, 2
#: What a real page takes, roughly; the mock renderer itself takes 20 ms.
CALM_RENDER_MS = 200
EVERY_SECONDS = 1.0
SLICE = 500
ANSWER_SECONDS = 60.0
#: Statements that take longer are in PostgreSQL's log, in milliseconds.
LOGGED_MS = 100
#: By error class: those that will succeed, and those that fail again at once.
MENDED, BROKEN = "RenderTimeout", "SimulatedPermanentFailure"

DIE = """
SELECT end_claim(%s::uuid, job, 1, 1, 'died', %s, 'as before the renderer was mended', 0, false, %s)
  FROM unnest(%s::uuid[]) AS job
"""


@dataclass(slots=True)
class Scene:
    """The running stack.

    Attributes:
        jobs: how many dead ones; dead: their ids.
        operator: the environment of the operator's command.
        admin: a superuser's connection, for looking only.

    """

    stack: Stack
    folder: Path
    jobs: int
    admin: psycopg.Connection[Any]
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    document: dict[str, str] = field(default_factory=dict[str, str])
    dead: set[str] = field(default_factory=set[str])
    logged: int = 0

    @property
    def operator(self) -> dict[str, str]:
        """Return the environment of an operator's command."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        return {**clean, "ONCOMMIT_DATABASE_URL": self.stack.reach.parts["operator"]}

    def halves(self) -> dict[str, int]:
        """Return how many jobs died of which error class."""
        return {MENDED: self.jobs - self.jobs // 2, BROKEN: self.jobs // 2}

    def http(self, team: str) -> httpx.Client:
        """Return a client of the portal."""
        headers = {"Authorization": f"Bearer {self.tokens[team]}"}
        return httpx.Client(
            base_url=self.stack.portals[0], headers=headers, timeout=ANSWER_SECONDS, trust_env=False
        )

    def renders(self) -> list[dict[str, Any]]:
        """Return the lines of the render log."""
        text = (self.folder / "renders.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def mark_log(self) -> None:
        """Forget what PostgreSQL has logged by now: making the dead is not what is measured."""
        self.logged = (self.stack.home.logs / "postgres.log").stat().st_size

    def longest_statement(self) -> tuple[float, str]:
        """Return milliseconds and text of the longest statement since the mark; 0 below LOGGED_MS."""
        with (self.stack.home.logs / "postgres.log").open(encoding="utf-8", errors="replace") as log:
            log.seek(self.logged)
            found = re.findall(r"duration: ([\d.]+) ms  (?:statement|execute [^:]*): (.*)", log.read())
        # The stream is a statement that lasts as long as its connection.
        took = [(float(ms), text) for ms, text in found if "START_REPLICATION" not in text]
        return max(took, default=(0.0, ""))

    def introduce(self, team: str) -> None:
        """Make a team, its token and a document of it."""
        operator = self.stack.reach.parts["operator"]
        create_team(operator, team, who=WHO)
        self.tokens[team] = f"oc_{secrets.token_urlsafe(32)}"
        store_token(operator, self.tokens[team], TokenOrder(team), who=WHO)
        with self.http(team) as http:
            put = http.put("/v1/documents", content=b"# Replay\n").raise_for_status()
            self.document[team] = put.json()["document"]

    def bury(self) -> None:
        """Accept the storm's jobs and let them die by the workers' own statements, without rendering."""
        half = self.jobs // 2
        asked = [
            {"document": self.document[STORM], "kind": "thumbnail", "max_attempts": 1}
            | ({"simulate": {"fail_permanently": True}} if n < half else {})
            for n in range(self.jobs)
        ]
        with self.http(STORM) as http:
            http.post(
                "/v1/batches", json={"jobs": asked}, headers={"Idempotency-Key": "storm"}
            ).raise_for_status()
        query = "SELECT id, simulate IS NOT NULL FROM jobs WHERE team = %s ORDER BY id"
        rows: list[tuple[uuid.UUID, bool]] = self.admin.execute(query, [STORM]).fetchall()
        self.dead = {str(job) for job, _ in rows}
        worker = uuid.uuid4()
        with psycopg.connect(self.stack.reach.parts["worker"], autocommit=True) as conn:
            for start in range(0, len(rows), SLICE):
                part = rows[start : start + SLICE]
                taken = claim(conn, worker, [(job, 1) for job, _ in part])
                if any(one.answer is not Answer.TAKEN for one in taken):
                    raise RuntimeError("somebody else has taken a job: no worker may run here")
                for broken, error in ((True, BROKEN), (False, MENDED)):
                    jobs = [job for job, is_broken in part if is_broken is broken]
                    conn.execute(DIE, [worker, error, f"worker:{worker}", jobs])


@contextmanager
def scene(folder: Path, jobs: int, say: Callable[[str], None]) -> Generator[Scene]:
    """Set the scene: the dead are dead, the workers are ready, Redis holds nothing of it."""
    for name in [name for name in os.environ if name.startswith(PREFIX) and "TEST" not in name]:
        del os.environ[name]
    log = folder / "renders.jsonl"
    os.environ |= {f"{PREFIX}RENDER_LOG": str(log), f"{PREFIX}LOG_LEVEL": "warning"}
    plan = StackPlan(
        home=folder / "home",
        workers=WORKERS,
        threads=THREADS,
        postgres={"log_min_duration_statement": str(LOGGED_MS)},
    )
    with Stack(plan, say=say) as stack, psycopg.connect(stack.reach.owner, autocommit=True) as admin:
        found = Scene(stack, folder, jobs, admin)
        workers = [service for service in stack.services if service.name.startswith("worker")]
        for worker in workers:
            worker.process.end()
        for team in (STORM, CALM):
            found.introduce(team)
        started = time.monotonic()
        found.bury()
        say(f"{jobs} jobs accepted and dead, {time.monotonic() - started:.1f} s")
        admin.execute("VACUUM ANALYZE jobs, job_events, outbox")
        if stack.valkey is None:
            raise RuntimeError("this wants a Valkey of its own")
        # The messages of the dead: an empty Redis is rebuilt from the table, which has none of them.
        stack.valkey.kill()
        stack.valkey.start(empty=True)
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait()
        found.mark_log()
        yield found


class Calm:
    """Sends a job a second within the block; `refused`: what was not accepted."""

    def __init__(self, on: Scene) -> None:
        self._on = on
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.refused: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _send(self) -> None:
        body = {
            "document": self._on.document[CALM],
            "kind": "page",
            "simulate": {"sleep_ms": CALM_RENDER_MS},
        }
        due = time.monotonic()
        with self._on.http(CALM) as http:
            while not self._stop.is_set():
                headers = {"Idempotency-Key": str(uuid.uuid4())}
                try:
                    answer = http.post("/v1/jobs", json=body, headers=headers)
                except httpx.HTTPError as error:
                    self.refused.append(type(error).__name__)
                else:
                    if not answer.is_success:
                        self.refused.append(answer.text)
                due += EVERY_SECONDS
                self._stop.wait(max(0.0, due - time.monotonic()))

    def wait_ended(self) -> None:
        """Return when every job of the team has ended, or a minute is over."""
        query = "SELECT count(*) FROM jobs WHERE team = %s AND finished_at IS NULL"
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            row = self._on.admin.execute(query, [CALM]).fetchone()
            if row is not None and row[0] == 0:
                return
            time.sleep(0.1)
