"""The words of a job: its statuses, its events, and the fold that makes the row from the events.

The enums equal those in PostgreSQL; `tests/db/test_words.py` compares them with the server's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class JobStatus(StrEnum):
    """Where a job is. `succeeded`, `dead`, `cancelled` are terminal; only `dead` can be left, by replay."""

    QUEUED = "queued"
    PROCESSING = "processing"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


TERMINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED})


class EventType(StrEnum):
    """What can happen to a job."""

    ACCEPTED = "accepted"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RELEASED = "released"
    RESCUED = "rescued"
    DIED = "died"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    REPLAYED = "replayed"
    QUARANTINED = "quarantined"


#: The status that an event leads to; `cancel_requested` leaves it as it is.
STATUS_AFTER: Mapping[EventType, JobStatus | None] = {
    EventType.ACCEPTED: JobStatus.QUEUED,
    EventType.CLAIMED: JobStatus.PROCESSING,
    EventType.SUCCEEDED: JobStatus.SUCCEEDED,
    EventType.FAILED: JobStatus.RETRYING,
    EventType.RELEASED: JobStatus.QUEUED,
    EventType.RESCUED: JobStatus.QUEUED,
    EventType.DIED: JobStatus.DEAD,
    EventType.CANCEL_REQUESTED: None,
    EventType.CANCELLED: JobStatus.CANCELLED,
    EventType.REPLAYED: JobStatus.QUEUED,
    EventType.QUARANTINED: JobStatus.DEAD,
}

#: Events after which the job has a new dispatch, hence a new intent.
NEXT_DISPATCH = frozenset({EventType.FAILED, EventType.RELEASED, EventType.RESCUED, EventType.REPLAYED})


@dataclass(frozen=True, slots=True)
class Event:
    """One row of `job_events`; `seq` counts from 1 without a gap."""

    seq: int
    type: EventType
    at: datetime
    who: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobState:
    """The columns of `jobs` that events decide. `attempt` counts spent renderer starts."""

    status: JobStatus
    dispatch_no: int
    attempt: int
    releases: int
    worker: UUID | None
    artifact: str | None
    error_class: str | None
    cancel_requested: bool
    version: int


class FoldError(ValueError):
    """The events do not make a job: a gap, or something before `accepted`."""


def fold(events: Iterable[Event]) -> JobState:
    """Return what the job's row must be after these events, oldest first.

    Raises:
        FoldError: the events have a gap or do not start with `accepted`.

    """
    state: JobState | None = None
    for event in events:
        if state is None:
            if event.type is not EventType.ACCEPTED or event.seq != 1:
                raise FoldError(f"the first event is {event.seq} {event.type}, not 1 accepted")
            state = JobState(JobStatus.QUEUED, 1, 0, 0, None, None, None, False, 1)
        elif event.seq != state.version + 1:
            raise FoldError(f"event {event.seq} follows {state.version}")
        else:
            state = _step(state, event)
    if state is None:
        raise FoldError("no events")
    return state


def _step(state: JobState, event: Event) -> JobState:
    status = STATUS_AFTER[event.type] or state.status
    changes: dict[str, Any] = {
        "status": status,
        "version": event.seq,
        "dispatch_no": state.dispatch_no + (event.type in NEXT_DISPATCH),
        "worker": UUID(event.data["worker"]) if event.type is EventType.CLAIMED else state.worker,
        "error_class": event.data.get("error_class", state.error_class),
    }
    if status is not JobStatus.PROCESSING:
        changes["worker"] = None
    match event.type:
        case EventType.CLAIMED:
            changes["attempt"] = event.data["attempt"]
        case EventType.RELEASED:
            changes["attempt"] = state.attempt - bool(event.data["refunded"])
            changes["releases"] = state.releases + 1
        case EventType.SUCCEEDED:
            changes |= {"artifact": event.data["artifact"], "error_class": None}
        case EventType.CANCEL_REQUESTED:
            changes["cancel_requested"] = True
        case EventType.REPLAYED:
            changes |= {"attempt": 0, "releases": 0, "error_class": None, "cancel_requested": False}
        case _:
            pass
    return replace(state, **changes)
