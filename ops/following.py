"""A job as a client last saw it: what the portal answered, and the events that have come since."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from db.jobs import STATUS_AFTER, TERMINAL, EventType, JobStatus
from ops import show

REASON_CHARACTERS = 120  # of a renderer's text, which may have 2,000


@dataclass(frozen=True, slots=True)
class Followed:
    """A job as last seen.

    Attributes:
        title, kind, id, document: what it is.
        created: when it was accepted, by PostgreSQL's clock.
        version: number of the last event that is known.
        status: as the portal said.
        attempts: renderer starts that were spent.
        seconds: from accepted to its end, by PostgreSQL's clock; None before.
        error: the class of its last error; reason: its text, where an event told it.
        replayed: its key had been decided before: an earlier run asked for it.

    """

    title: str
    kind: str
    id: str
    document: str
    created: datetime
    version: int
    status: JobStatus
    attempts: int
    seconds: float | None
    error: str | None
    reason: str | None = None
    replayed: bool = False

    @classmethod
    def of(cls, job: Mapping[str, Any], *, replayed: bool = False) -> Self:
        """Return what a job resource of the portal says."""
        created = datetime.fromisoformat(job["created_at"])
        ended = job["finished_at"]
        return cls(
            title=job["title"] or job["document"],
            kind=job["kind"],
            id=job["id"],
            document=job["document"],
            created=created,
            version=job["version"],
            status=JobStatus(job["status"]),
            attempts=job["attempt"],
            seconds=None if ended is None else (datetime.fromisoformat(ended) - created).total_seconds(),
            error=job["error_class"],
            replayed=replayed,
        )

    def after(self, event: Mapping[str, Any]) -> Self:
        """Return it after an event of its stream."""
        type_, data = EventType(event["type"]), event["data"]
        status = STATUS_AFTER[type_] or self.status
        at = datetime.fromisoformat(event["at"])
        attempts, error, reason = self.attempts, data.get("error_class", self.error), data.get("error")
        if type_ is EventType.CLAIMED:
            attempts, reason = data["attempt"], self.reason
        elif type_ is EventType.RELEASED:
            attempts -= bool(data.get("refunded"))
        elif type_ is EventType.REPLAYED:
            attempts, error = 0, None
        return replace(
            self,
            version=event["seq"],
            status=status,
            attempts=attempts,
            seconds=(at - self.created).total_seconds() if status in TERMINAL else None,
            error=None if status is JobStatus.SUCCEEDED else error,
            reason=reason,
        )

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self.status in TERMINAL

    @property
    def succeeded(self) -> bool:
        """Whether it has its preview."""
        return self.status is JobStatus.SUCCEEDED

    def told(self) -> str:
        """Return its status, and the error with its reason, in a few words."""
        if self.succeeded or not self.error:
            return self.status.value
        why = f"{self.error}: {self.reason[:REASON_CHARACTERS]}" if self.reason else self.error
        return f"{self.status.value} ({why})"

    def cells(self) -> list[str]:
        """Return document, kind, status, attempts and time, for humans."""
        took = "" if self.seconds is None else f"{self.seconds:.2f} s"
        return [show.printable(self.title), self.kind, self.told(), str(self.attempts), took]

    def facts(self) -> dict[str, Any]:
        """Return the same for scripts."""
        names = ("title", "kind", "id", "document", "attempts", "seconds", "error", "reason", "replayed")
        return {**{name: getattr(self, name) for name in names}, "status": self.status.value}
