"""What goes in and out: the requests that are taken, and the resources that are shown.

Requests are strict: a wrong type, an unknown name or a value out of range is refused, never mended.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from db.jobs import Event, EventType, JobStatus
from db.reads import BatchRow, DocumentRow, JobRow
from portal.problems import Fault, Problem

MAX_BATCH = 10_000
Kind = Literal["page", "thumbnail"]
Digest = Annotated[
    str,
    Field(
        pattern=r"^sha256:[0-9a-f]{64}$",
        description="of a document that the team has put",
        examples=["sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    ),
]
T = TypeVar("T")


class Request(BaseModel):
    """Base of what is taken."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Simulate(Request):
    """Faults of the renderer, for tests and demonstrations; see `simulation-off`."""

    sleep_ms: int = Field(default=0, ge=0, le=3_600_000, description="render so long, milliseconds")
    fail_first: int = Field(default=0, ge=0, le=1000, description="fail the first so many attempts")
    fail_permanently: bool = Field(default=False, description="fail in a way that is not retried")
    crash: bool | Literal["child", "worker"] = Field(
        default=False, description="the renderer kills itself (true, child), or its whole worker"
    )
    hang: bool = Field(default=False, description="the renderer never ends")
    allocate_mb: int = Field(default=0, ge=0, le=1_000_000, description="take so much memory, MB")


class JobRequest(Request):
    """One preview that is asked for."""

    document: Digest
    kind: Kind = Field(description="what to draw")
    priority: int = Field(default=5, ge=0, le=9, description="0 is taken first, 9 last, inside the team")
    title: str | None = Field(default=None, max_length=200, description="for the team's own use")
    max_attempts: int | None = Field(
        default=None, ge=1, le=1000, description="starts of the renderer; default: the kind's"
    )
    simulate: Simulate | None = None


class BatchRequest(Request):
    """Many previews that are asked for at once: all are accepted, or none."""

    jobs: list[JobRequest] = Field(min_length=1, max_length=MAX_BATCH)


class BatchShape(Request):
    """A batch whose jobs are still to be validated, one by one."""

    jobs: list[Any] = Field(min_length=1, max_length=MAX_BATCH)


JOB_REQUEST = TypeAdapter(JobRequest)
BATCH_SHAPE = TypeAdapter(BatchShape)


class Links(BaseModel):
    """Where to go on."""

    self: str
    events: str
    preview: str


class Job(BaseModel):
    """A job as it is now."""

    id: UUID
    team: str
    batch: UUID | None
    kind: Kind
    document: str
    title: str | None
    priority: int
    status: JobStatus
    dispatch_no: int
    attempt: int
    max_attempts: int
    artifact: str | None
    artifact_size: int | None
    error_class: str | None
    not_before: datetime | None
    cancel_requested_at: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    version: int
    links: Links


class JobPage(BaseModel):
    """Jobs, newest first; `next` is the cursor of the page after, null at the end."""

    jobs: list[Job]
    next: str | None


class JobEvent(BaseModel):
    """One thing that happened to a job."""

    seq: int
    type: EventType
    at: datetime
    who: str
    data: dict[str, Any]


class JobEvents(BaseModel):
    """A job's events, oldest first; `next` is the `after` of the page that follows, null at the end."""

    events: list[JobEvent]
    next: int | None


class BatchLinks(BaseModel):
    """Where to go on."""

    self: str
    events: str
    jobs: str


class Batch(BaseModel):
    """A batch as it is now: how many of its jobs are in each status, and how many events they had."""

    id: UUID
    team: str
    size: int
    created_at: datetime
    finished: bool
    counts: dict[JobStatus, int]
    events: int
    links: BatchLinks


class Document(BaseModel):
    """A document that the team has put; `size` in bytes."""

    document: str
    size: int


def job_json(row: JobRow) -> dict[str, Any]:
    """Return the JSON of `Job`."""
    here = f"/v1/jobs/{row.id}"
    fields: dict[str, Any] = {name: getattr(row, name) for name in JobRow.__slots__}
    return {**fields, "links": {"self": here, "events": f"{here}/events", "preview": f"{here}/preview"}}


def event_json(event: Event) -> dict[str, Any]:
    """Return the JSON of `JobEvent`."""
    return {"seq": event.seq, "type": event.type, "at": event.at, "who": event.who, "data": event.data}


def batch_json(row: BatchRow) -> dict[str, Any]:
    """Return the JSON of `Batch`."""
    here = f"/v1/batches/{row.id}"
    return {
        "id": row.id,
        "team": row.team,
        "size": row.size,
        "created_at": row.created_at,
        "finished": row.finished,
        "counts": {status.value: row.counts.get(status, 0) for status in JobStatus},
        "events": row.events,
        "links": {"self": here, "events": f"{here}/events", "jobs": f"/v1/jobs?batch={row.id}"},
    }


def document_json(row: DocumentRow) -> dict[str, Any]:
    """Return the JSON of `Document`."""
    return {"document": row.digest, "size": row.size}


def validated(validate: Callable[[Any], T], value: Any, at: str = "") -> T:
    """Return the request that `value` is; `at` is the pointer of `value` in the body.

    Raises:
        Problem: invalid-request, with a pointer to each fault.

    """
    try:
        return validate(value)
    except ValidationError as error:
        raise Problem("invalid-request", errors=faults(error, at)) from None


def faults(error: ValidationError, at: str = "") -> list[Fault]:
    """Return pydantic's findings without the values that it found."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [Fault(at + _pointer(e["loc"]), e["msg"]) for e in found]


def _pointer(location: tuple[int | str, ...]) -> str:
    """Return the JSON pointer (RFC 6901); a name that the caller made up is cut."""
    steps = (str(step)[:100].replace("~", "~0").replace("/", "~1") for step in location)
    return "".join(f"/{step}" for step in steps)
