"""The stage: a stack of the demonstration's own in a temporary folder, and the hands that act on it."""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, LiteralString

import httpx
import psycopg

from ops.binaries import FORCE
from ops.demo.witness import Witness
from ops.stack import Stack, StackPlan
from ops.valkey import ValkeyServer
from runtime.settings import PREFIX

WORKERS = 2
THREADS = 2  # of each worker: few, so that "every thread is busy" is a state that can be held
CLIENTS = 8  # requests in flight at a time
ANSWER_SECONDS = 30.0
# Rendering 200 small documents takes seconds; a machine that needs longer is not fit for a demonstration.
END_SECONDS = 60.0
LOOK_EVERY_SECONDS = 0.05

JOBS_OF_BATCH = "SELECT id FROM jobs WHERE batch = %s"
UNFINISHED = "SELECT count(*) FROM jobs WHERE id = ANY(%s::uuid[]) AND finished_at IS NULL"


@dataclass(frozen=True, slots=True)
class Posted:
    """Answers to posted jobs: how many of each status code, the ids of the accepted, and the time."""

    answers: Counter[int]
    jobs: Sequence[str]
    seconds: float


class Stage:
    """The running stack and its witness."""

    def __init__(
        self, stack: Stack, folder: Path, witness: Witness, http: httpx.Client, admin: psycopg.Connection
    ) -> None:
        self.stack = stack
        self.folder = folder
        self.witness = witness
        self.http = http
        self.admin = admin
        self.document = ""

    @property
    def valkey(self) -> ValkeyServer:
        """Return the embedded Valkey: the demonstration kills nobody's own."""
        if self.stack.valkey is None:
            raise AssertionError("the stage takes ONCOMMIT_REDIS_URL out of the environment")
        return self.stack.valkey

    def put_document(self) -> None:
        """Put the document that all jobs are about."""
        content = b"oncommit demo\n\nA document that is rendered again and again.\n"
        headers = {"Content-Type": "application/octet-stream"}
        self.document = (
            self.http.put("/v1/documents", content=content, headers=headers)
            .raise_for_status()
            .json()["document"]
        )

    def post(self, key: str, title: str, simulate: dict[str, int] | None = None) -> httpx.Response:
        """Post one job, once: what the portal answers is what counts."""
        body: dict[str, Any] = {"document": self.document, "kind": "page", "title": title}
        if simulate:
            body["simulate"] = simulate
        return self.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})

    def post_many(self, name: str, count: int, simulate: dict[str, int] | None = None) -> Posted:
        """Post so many jobs, each once, several at a time."""
        started = time.monotonic()

        def post(n: int) -> httpx.Response:
            return self.post(f"{name}-{n}", f"{name} {n}", simulate)

        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(post, range(count)))
        jobs = [answer.json()["id"] for answer in answers if answer.status_code == HTTPStatus.ACCEPTED]
        return Posted(Counter(answer.status_code for answer in answers), jobs, time.monotonic() - started)

    def post_batch(self, name: str, count: int) -> Posted:
        """Post so many jobs as one batch: the answer is one, whatever the number of jobs."""
        jobs = [{"document": self.document, "kind": "page", "title": f"{name} {n}"} for n in range(count)]
        started = time.monotonic()
        answer = self.http.post("/v1/batches", json={"jobs": jobs}, headers={"Idempotency-Key": name})
        seconds = time.monotonic() - started
        batch = answer.json().get("id")
        ids = [str(row[0]) for row in self.admin.execute(JOBS_OF_BATCH, [batch]).fetchall()]
        return Posted(Counter([answer.status_code]), ids, seconds)

    def statuses(self, jobs: Sequence[str]) -> dict[str, int]:
        """Ask the portal about each job; return how many are in each status."""

        def ask(job: str) -> str:
            return str(self.http.get(f"/v1/jobs/{job}").json().get("status", "unknown"))

        with ThreadPoolExecutor(CLIENTS) as pool:
            return dict(Counter(pool.map(ask, jobs)))

    def wait_ended(self, jobs: Sequence[str]) -> float:
        """Wait until none of the jobs is unfinished, or the time is up; return the seconds."""
        started = time.monotonic()
        until(lambda: self.unfinished(jobs) == 0, END_SECONDS)
        return time.monotonic() - started

    def unfinished(self, jobs: Sequence[str]) -> int:
        """Return how many of the jobs have not ended, by PostgreSQL."""
        return self.number(UNFINISHED, list(jobs))

    def number(self, query: LiteralString, *values: object) -> int:
        """Return the one number that a query of the superuser gives."""
        row = self.admin.execute(query, values).fetchone()
        return 0 if row is None else int(row[0])


def until(predicate: Callable[[], bool], seconds: float) -> bool:
    """Wait until the predicate holds; tell whether it did in time."""
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_SECONDS)
    return True


@contextmanager
def staged(say: Callable[[str], None]) -> Generator[Stage]:
    """Set the stage; afterwards nothing of it is left, neither process nor file.

    Raises:
        StartError, NoServerError, ...: as `Stack.start` does.

    """
    folder = Path(tempfile.mkdtemp(prefix="oncommit-demo-"))
    folder.chmod(0o711)  # the servers' account passes through, when this is root
    witness = Witness(folder / "renders.jsonl")
    try:
        with _own_environment({"RENDER_LOG": str(witness.path), "SIMULATION": "1", "LOG_LEVEL": "warning"}):
            stack = Stack(StackPlan(home=folder / "stack", workers=WORKERS, threads=THREADS), say)
            try:
                with (
                    stack,
                    _http(stack) as http,
                    psycopg.connect(stack.reach.owner, autocommit=True) as admin,
                ):
                    stage = Stage(stack, folder, witness, http, admin)
                    stage.put_document()
                    yield stage
            finally:
                # Usually inside the folder; elsewhere when the servers' account cannot enter that.
                shutil.rmtree(stack.home.servers, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _http(stack: Stack) -> httpx.Client:
    headers = {"Authorization": f"Bearer {stack.token}"}
    # trust_env: a proxy of the environment has no business on the loopback.
    return httpx.Client(base_url=stack.portals[0], headers=headers, timeout=ANSWER_SECONDS, trust_env=False)


@contextmanager
def _own_environment(variables: dict[str, str]) -> Generator[None]:
    """Leave out the user's ONCOMMIT_ variables: the demonstration kills servers, and only its own."""
    before = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and name != FORCE}
    for name in before:
        del os.environ[name]
    mine = {f"{PREFIX}{name}": value for name, value in variables.items()}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)
        os.environ.update(before)
