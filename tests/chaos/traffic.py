"""Traffic: clients that put documents and ask for previews until they get a definite answer.

A client that hears nothing, a 5xx, a 409 or a 429 sends the same request under the same key again. So
each key ends with exactly one 202, and names exactly one job or batch, whatever happens in between.
"""

import random
import threading
import time
import uuid
from typing import Any

import httpx

from .history import History
from .settings import TEAMS
from .world import ANSWER_SECONDS, World

PAUSE_SECONDS = 0.3  # between two tries
#: Longest time in which a request must come to a definite answer once nothing is broken any more.
DEFINITE_SECONDS = 60.0
AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
#: (share of jobs, what the renderer is told to do, most starts, status in the end)
KINDS: tuple[tuple[int, dict[str, Any], int, str], ...] = (
    (55, {}, 30, "succeeded"),
    (25, {"sleep_ms": 300}, 30, "succeeded"),
    (4, {"sleep_ms": 2000}, 30, "succeeded"),
    (8, {"fail_first": 1}, 30, "succeeded"),
    (4, {"crash": "child"}, 2, "dead"),
    (4, {"fail_permanently": True}, 30, "dead"),
)


class Traffic:
    """So many clients, each a thread with its own seed."""

    def __init__(
        self, world: World, history: History, seed: int, *, clients: int = 3, pace_seconds: float = 0.6
    ) -> None:
        self._world = world
        self._history = history
        self._pace_seconds = pace_seconds
        self._stopped = threading.Event()
        self._give_up_at = float("inf")
        self._clients = [
            threading.Thread(target=self._run, args=[random.Random(f"{seed} client {n}")], daemon=True)
            for n in range(clients)
        ]

    def start(self) -> None:
        """Let the clients begin."""
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        """Let no request begin, and wait until those under way are answered."""
        self._give_up_at = time.monotonic() + DEFINITE_SECONDS
        self._stopped.set()
        for client in self._clients:
            client.join(DEFINITE_SECONDS + 2 * ANSWER_SECONDS)

    def abandon(self) -> None:
        """Stop at once, answered or not: the run has failed by itself."""
        self._give_up_at = 0.0
        self._stopped.set()

    def post(
        self, team: str, jobs: list[dict[str, Any]], *,
        batch: bool = False, key: str | None = None, patience: float = ANSWER_SECONDS,
    ) -> None:  # fmt: skip
        """Send one request of the test's own, until it is answered; `patience`: seconds with each try."""
        documents = self._world.documents[team]
        bodies = [
            {"document": documents[n % len(documents)], "kind": "page", **job} for n, job in enumerate(jobs)
        ]
        with self._world.http(patience) as http:
            self._until_answered(http, team, bodies, batch=batch, key=key)

    # -- one client

    def _run(self, rng: random.Random) -> None:
        with self._world.http() as http:
            while not self._stopped.is_set():
                team = rng.choice(list(TEAMS))
                batch = rng.random() < 0.15
                size = rng.randint(2, 20) if batch else 1
                self._until_answered(http, team, [self._job(rng, team) for _ in range(size)], batch=batch)
                self._stopped.wait(rng.expovariate(1 / self._pace_seconds))

    def _job(self, rng: random.Random, team: str) -> dict[str, Any]:
        _, simulate, starts, _ = rng.choices(KINDS, [share for share, *_ in KINDS])[0]
        job: dict[str, Any] = {
            "document": rng.choice(self._world.documents[team]),
            "kind": rng.choice(["page", "thumbnail"]),
            "priority": rng.randint(0, 9),
            "max_attempts": starts,
        }
        return {**job, "simulate": simulate} if simulate else job

    def _until_answered(
        self, http: httpx.Client, team: str, jobs: list[dict[str, Any]], *,
        batch: bool, key: str | None = None,
    ) -> None:  # fmt: skip
        key, path = key or str(uuid.uuid4()), "/v1/batches" if batch else "/v1/jobs"
        body = {"jobs": jobs} if batch else jobs[0]
        headers = {**self._world.bearer(team), "Idempotency-Key": key}
        tries = 0
        while time.monotonic() < self._give_up_at:
            tries += 1
            self._history.add("request", key=key, team=team, path=path, jobs=len(jobs), tries=tries)
            try:
                answer = http.post(path, json=body, headers=headers)
            except httpx.HTTPError as error:
                self._history.add("no_answer", key=key, team=team, why=type(error).__name__)
            else:
                kind = answer.headers.get("content-type", "")
                told = answer.json() if kind.startswith("application/") else {}
                self._history.add(
                    "answer", key=key, team=team, path=path, jobs=len(jobs), status=answer.status_code,
                    kind=kind, id=told.get("id"), replayed="idempotent-replayed" in answer.headers,
                    seconds=answer.elapsed.total_seconds(),
                )  # fmt: skip
                if answer.status_code not in AGAIN:
                    return
            time.sleep(PAUSE_SECONDS)
        self._history.add("gave_up", key=key, team=team)
