"""Documents for the portals, and what became of the jobs."""

import itertools
from collections.abc import Sequence
from typing import Any

import httpx

ANSWER_SECONDS = 30.0
ACCEPTED = 202
#: How long a render takes beside its own milliseconds: long enough that a fault finds it under way.
RENDER_MS = 1_000
UNFINISHED = frozenset({"queued", "processing", "retrying"})


class Traffic:
    """A team's client, which goes to the portals in turn and tries nothing twice."""

    def __init__(self, portals: Sequence[str], token: str) -> None:
        self._turn = itertools.cycle(
            # A proxy of the environment leads to other machines, never back to this one.
            [httpx.Client(base_url=p, timeout=ANSWER_SECONDS, trust_env=False) for p in portals]
        )
        self._headers = {"Authorization": f"Bearer {token}"}
        self.answers: list[int] = []
        self.jobs: list[str] = []

    def submit(self, count: int) -> None:
        """Put so many new documents, and ask for a preview of each."""
        for _ in range(count):
            number = len(self.answers)
            put = next(self._turn).put(
                "/v1/documents", content=f"Document {number}.\n".encode(), headers=self._headers
            )
            put.raise_for_status()
            posted = next(self._turn).post(
                "/v1/jobs",
                json={
                    "document": put.json()["document"],
                    "kind": "page",
                    "title": f"document {number}",
                    "simulate": {"sleep_ms": RENDER_MS},
                },
                headers={**self._headers, "Idempotency-Key": f"document-{number}"},
            )
            self.answers.append(posted.status_code)
            if posted.status_code == ACCEPTED:
                self.jobs.append(posted.json()["id"])

    def get(self, path: str) -> httpx.Response:
        """Return a page of whichever portal's turn it is."""
        return next(self._turn).get(path, headers=self._headers)

    def job(self, job: str) -> dict[str, Any]:
        """Return a job as it is now."""
        found: dict[str, Any] = self.get(f"/v1/jobs/{job}").raise_for_status().json()
        return found

    def events(self, job: str) -> list[str]:
        """Return the types of what happened to a job, in order."""
        page = self.get(f"/v1/jobs/{job}/events").raise_for_status().json()
        return [event["type"] for event in page["events"]]

    def unfinished(self) -> list[str]:
        """Return the jobs that have not ended."""
        return [job for job in self.jobs if self.job(job)["status"] in UNFINISHED]
