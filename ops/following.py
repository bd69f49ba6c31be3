"""Follow jobs to their end: what is known of each, asked of the portal in turn."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self

from db.jobs import TERMINAL, JobStatus
from ops.client import Accepted, Client

# Often enough that a table feels live, seldom enough that following thousands of jobs is no load: so many
# unfinished jobs are asked about in each round, in turn.
ROUND_SECONDS = 0.2
ROUND_JOBS = 25


@dataclass(frozen=True, slots=True)
class Followed:
    """A job as last seen.

    Attributes:
        title, kind, id, document: what it is.
        status: as the portal said.
        attempts: renderer starts that were spent.
        seconds: from accepted to its end, by PostgreSQL's clock; None before.
        error: the class of its last error.
        replayed: its key had been decided before: an earlier run asked for it.

    """

    title: str
    kind: str
    id: str
    document: str
    status: JobStatus
    attempts: int
    seconds: float | None
    error: str | None
    replayed: bool = False

    @classmethod
    def of(cls, job: Mapping[str, Any], *, replayed: bool = False) -> Self:
        """Return what a job resource of the portal says."""
        ended = job["finished_at"]
        took = (
            None
            if ended is None
            else datetime.fromisoformat(ended) - datetime.fromisoformat(job["created_at"])
        )
        return cls(
            title=job["title"] or job["document"],
            kind=job["kind"],
            id=job["id"],
            document=job["document"],
            status=JobStatus(job["status"]),
            attempts=job["attempt"],
            seconds=None if took is None else took.total_seconds(),
            error=job["error_class"],
            replayed=replayed,
        )

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self.status in TERMINAL

    @property
    def succeeded(self) -> bool:
        """Whether it has its preview."""
        return self.status is JobStatus.SUCCEEDED

    def cells(self) -> list[str]:
        """Return document, kind, status, attempts and time, for humans."""
        status = self.status.value + (f" ({self.error})" if self.error and not self.succeeded else "")
        return [
            self.title,
            self.kind,
            status,
            str(self.attempts),
            "" if self.seconds is None else f"{self.seconds:.2f} s",
        ]

    def facts(self) -> dict[str, Any]:
        """Return the same for scripts."""
        return {**asdict(self), "status": self.status.value}


def follow(
    client: Client,
    accepted: Sequence[Accepted],
    show: Callable[[Sequence[Followed]], None],
    *,
    timeout_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Followed]:
    """Ask about the jobs until each has ended or the time is up; return them as last seen.

    Raises:
        PortalError: the portal does not answer within the client's patience.

    """
    deadline = time.monotonic() + timeout_seconds
    jobs = [Followed.of(one.job, replayed=one.replayed) for one in accepted]
    rounds = 0
    show(jobs)
    while (waiting := [n for n, job in enumerate(jobs) if not job.ended]) and time.monotonic() < deadline:
        sleep(ROUND_SECONDS if rounds else 0)  # what an earlier run asked for may have ended long ago
        for n in in_turn(waiting, rounds * ROUND_JOBS):
            jobs[n] = Followed.of(client.job(jobs[n].id), replayed=jobs[n].replayed)
        rounds += 1
        show(jobs)
    return jobs


def in_turn(waiting: Sequence[int], start: int) -> list[int]:
    """Return the next few of those that wait, so that each is asked about, however many there are."""
    first = start % len(waiting)
    return [*waiting[first:], *waiting[:first]][:ROUND_JOBS]
