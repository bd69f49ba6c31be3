"""Act 1, before: a portal that commits and then calls `send()`. Redis dies in between."""

import json
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from broker.client import redis_client
from db.cluster import create_database
from ops.demo import old_portal
from ops.demo.claims import Act
from ops.demo.stage import ANSWER_SECONDS, Stage, until
from ops.ending import Manner
from ops.guardian import Guardian
from ops.ports import LOOPBACK, free_port
from ops.processes import Command, Process, StartError
from ops.services import answers

DATABASE = "before"
# Whoever waits for a message that nobody will send waits for ever; this long shows it, with a control that
# the same worker did within it.
STUCK_SECONDS = 4.0
START_SECONDS = 30.0
SENT_SECONDS = 30.0  # redis-py tries a refused connection again for some seconds


def before(stage: Stage) -> Act:
    """Show that a job whose Redis died between commit and `send()` stays QUEUED.

    Raises:
        StartError: the miniature did not start.

    """
    act = Act("before: commit, then send(); Redis is killed in between")
    with act.clock(), Guardian() as guardian:
        old = _Old(stage, guardian)
        with _running(old.portal):
            old.portal.wait_until(lambda: answers(old.url, "/"), START_SECONDS)
            code, lost = old.post(in_between=stage.valkey.kill)
            act.claim("the client is told", expected=202, measured=code)
            act.claim("Redis is dead when send() is called", expected=False, measured=stage.valkey.answers())
            act.claim("send() of its message", expected="lost", measured=old.fate(lost))
            stage.valkey.start(empty=True)
            with _running(old.worker):
                _, control = old.post()
                done = until(lambda: old.status(control) == "DONE", START_SECONDS)
                act.claim("a second job, sent after Redis is back, is done", expected=True, measured=done)
                seen = old.watch(lost)
        act.claim(
            f"status of the first, {STUCK_SECONDS:g} s later", expected=["QUEUED"], measured=sorted(seen)
        )
        act.claim("messages that Redis holds for it", expected=0, measured=_messages(stage))
    return act


class _Old:
    """The miniature: its portal, its stock worker, and the gate between commit and `send()`."""

    def __init__(self, stage: Stage, guardian: Guardian) -> None:
        if stage.stack.postgres is None:
            raise StartError("the demonstration runs on a PostgreSQL of its own")
        create_database(stage.stack.postgres.dsn(), DATABASE)
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}"
        self.gate = stage.folder / "gate"
        env = stage.stack.environment() | {
            "ONCOMMIT_DATABASE_URL": stage.stack.postgres.dsn(DATABASE),
            "ONCOMMIT_PORT": str(port),
            "ONCOMMIT_FAILPOINTS": f"{old_portal.BEFORE_SEND}=pause:{self.gate}",
        }
        module = old_portal.__name__
        self.portal = _process("old-portal", ["-m", module], stage.folder, env, guardian)
        worker = ["-m", "dramatiq", f"{module}:{old_portal.setup.__name__}", "-p", "1", "-t", "1"]
        self.worker = _process("old-worker", worker, stage.folder, env, guardian)

    def post(self, in_between: Callable[[], object] = lambda: None) -> tuple[int, int]:
        """Post a job, act between its commit and its `send()`; return the answer's code and the id."""
        answer = httpx.post(f"{self.url}/jobs", timeout=ANSWER_SECONDS, trust_env=False)
        if not until(self.gate.exists, SENT_SECONDS):
            raise StartError(f"the old portal never came to send():\n{self.portal.log_tail()}")
        in_between()
        self.gate.unlink()
        return answer.status_code, int(answer.json()["id"])

    def fate(self, job: int) -> str:
        """Wait for the end of `send()`; return "sent" or "lost", as the portal's log says."""
        found: list[str] = []

        def told() -> bool:
            lines = [json.loads(text) for text in self.portal.log_text().splitlines() if text.startswith("{")]
            found.extend(word for line in lines for word, told_of in line.items() if told_of == job)
            return bool(found)

        return found[0] if until(told, SENT_SECONDS) else "nothing in its log"

    def status(self, job: int) -> str:
        """Return the job's status as the portal shows it."""
        answer = httpx.get(f"{self.url}/jobs/{job}", timeout=ANSWER_SECONDS, trust_env=False)
        return str(answer.json()["status"])

    def watch(self, job: int) -> set[str]:
        """Return every status that the job is seen in while its worker runs on."""
        seen: set[str] = set()
        deadline = time.monotonic() + STUCK_SECONDS

        def look() -> bool:
            seen.add(self.status(job))
            return time.monotonic() > deadline

        until(look, STUCK_SECONDS + ANSWER_SECONDS)
        return seen


def _messages(stage: Stage) -> int:
    # Where stock Dramatiq keeps a queue's messages: a hash at <namespace>:<queue>.msgs.
    client = redis_client(stage.stack.redis_url)
    try:
        return int(client.hlen(f"{old_portal.NAMESPACE}:{old_portal.QUEUE}.msgs"))
    finally:
        client.close()


def _process(
    name: str, arguments: list[str], folder: Path, env: dict[str, str], guardian: Guardian
) -> Process:
    manner = Manner(((15, 5.0),))
    return Process(Command(name, [sys.executable, *arguments], folder / f"{name}.log", env, manner), guardian)


@contextmanager
def _running(process: Process) -> Generator[None]:
    process.start()
    try:
        yield
    finally:
        process.end()
