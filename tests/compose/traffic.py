"""Documents for the portals, and what became of the jobs."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

ANSWER_SECONDS = 30.0
ACCEPTED = 202
#: What a render takes beside its own milliseconds: long enough that a fault finds renders under way.
RENDER_MS = 1_000
#: What one page of GET /v1/jobs holds at most.
PAGE = 100
ENDED = frozenset({"succeeded", "dead", "cancelled"})


class Traffic:
    """A team's client, which goes to the portals in turn and tries nothing twice."""

    def __init__(self, portals: Sequence[str], token: str) -> None:
        self._turn = itertools.cycle(
            # A proxy of the environment leads to other machines, never back to this one.
            [httpx.Client(base_url=p, timeout=ANSWER_SECONDS, trust_env=False) for p in portals]
        )
        self._headers = {"Authorization": f"Bearer {token}"}
        self._put = 0
        self._ended: set[str] = set()
        self.answers: list[int] = []
        self.jobs: list[str] = []

    def submit_batch(self, count: int) -> str:
        """Put so many new documents, ask for all their previews at once, and return the batch's id.

        One answer, so that what is accepted runs ahead of what is rendered, however slow this client is.
        """
        jobs = [self._order() for _ in range(count)]
        batch: str = self._post("/v1/batches", {"jobs": jobs})["id"]
        page = self.get(f"/v1/jobs?batch={batch}&limit={PAGE}").raise_for_status().json()
        self.jobs += [job["id"] for job in page["jobs"]]
        return batch

    def submit(self, count: int) -> None:
        """Put so many new documents, and ask for a preview of each."""
        for _ in range(count):
            self.jobs.append(self._post("/v1/jobs", self._order())["id"])

    def _order(self) -> dict[str, Any]:
        self._put += 1
        content = f"Document {self._put}.\n".encode()
        answer = next(self._turn).put("/v1/documents", content=content, headers=self._headers)
        return {
            "document": answer.raise_for_status().json()["document"],
            "kind": "page",
            "title": f"document {self._put}",
            "simulate": {"sleep_ms": RENDER_MS},
        }

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {**self._headers, "Idempotency-Key": f"request-{self._put}"}
        answer = next(self._turn).post(path, json=body, headers=headers)
        self.answers.append(answer.status_code)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def get(self, path: str) -> httpx.Response:
        """Return a page of whichever portal's turn it is."""
        return next(self._turn).get(path, headers=self._headers)

    def succeeded(self, batch: str) -> int:
        """Return how many jobs of a batch have succeeded."""
        return int(self.get(f"/v1/batches/{batch}").raise_for_status().json()["counts"]["succeeded"])

    def job(self, job: str) -> dict[str, Any]:
        """Return a job as it is now."""
        found: dict[str, Any] = self.get(f"/v1/jobs/{job}").raise_for_status().json()
        return found

    def events(self, job: str) -> list[str]:
        """Return the types of what happened to a job, in order."""
        page = self.get(f"/v1/jobs/{job}/events").raise_for_status().json()
        return [event["type"] for event in page["events"]]

    def unfinished(self) -> int:
        """Return how many jobs have not ended; those that have are not asked about again."""
        self._ended |= {j for j in self.jobs if j not in self._ended and self.job(j)["status"] in ENDED}
        return len(self.jobs) - len(self._ended)
