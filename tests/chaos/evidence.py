"""The evidence: what the database, Redis, the render log and the clients say once nothing is broken."""

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from db.jobs import Event, EventType, JobState, JobStatus

from .history import Entry
from .world import World

JOBS = """
SELECT id, team, batch, simulate, max_attempts, status, dispatch_no, attempt, releases, worker, artifact,
       error_class, cancel_requested_at IS NOT NULL, version, created_at
  FROM jobs WHERE created_at >= %s ORDER BY id
"""
EVENTS = "SELECT job, seq, type, at, who, data FROM job_events WHERE job = ANY(%s) ORDER BY job, seq"
REQUESTS = "SELECT key, job, batch FROM requests WHERE created_at >= %s"
UNFINISHED = "SELECT count(*) FROM jobs WHERE finished_at IS NULL"
INTENTS = "SELECT message_id FROM outbox ORDER BY id"
LOOK_SECONDS = 0.2
AHEAD_SECONDS = 3600  # what wrong_clock/sitecustomize.py adds
#: What an idle system may keep in Redis; everything else belongs to a message.
KEPT_KEYS = frozenset({"token", "limits", "clock", "queues", "consumers", "wake", "rate"})


@dataclass(frozen=True, slots=True)
class Job:
    """One job as its row and its events tell it."""

    id: UUID
    team: str
    batch: UUID | None
    simulate: Mapping[str, Any]
    max_attempts: int
    state: JobState
    events: Sequence[Event]

    @property
    def expected(self) -> JobStatus:
        """Return how the job has to end, by what its renders were told to do."""
        if self.simulate.get("fail_permanently") or self.simulate.get("crash"):
            return JobStatus.DEAD
        return JobStatus.SUCCEEDED

    def ending_of(self, dispatch: int, attempt: int) -> Event | None:
        """Return the event that ended this claim."""
        wanted = {"dispatch_no": dispatch, "attempt": attempt}
        for event in self.events:
            if event.type not in {EventType.CLAIMED, EventType.ACCEPTED, EventType.CANCEL_REQUESTED} and all(
                event.data.get(key) == value for key, value in wanted.items()
            ):
                return event
        return None


@dataclass(frozen=True)
class Evidence:
    """Everything that the invariants look at.

    Attributes:
        entries: the history.
        jobs: by id, those created since the history began.
        requests: (key, job, batch) that the database knows.
        renders: lines of the render log that belong to these jobs.
        intents: living intents, by message id.
        keys: keys left in Redis that belong to messages.

    """

    entries: Sequence[Entry]
    jobs: Mapping[UUID, Job]
    requests: Sequence[tuple[str, UUID | None, UUID | None]]
    renders: Sequence[Mapping[str, Any]]
    intents: Sequence[str]
    keys: Sequence[str]

    @cached_property
    def renders_of(self) -> Mapping[UUID, Sequence[Mapping[str, Any]]]:
        """The render log's lines by job: a long run has thousands of both."""
        found = defaultdict[UUID, list[Mapping[str, Any]]](list)
        for line in self.renders:
            found[UUID(line["job"])].append(line)
        return found

    def of(self, what: str) -> list[Entry]:
        """Return the history's entries of one kind."""
        return [entry for entry in self.entries if entry["what"] == what]


def wait_settled(world: World, seconds: float) -> None:
    """Wait until no job is unfinished and neither an intent nor a message is left.

    A backlog may be long and the machine slow: only standing still is wrong.

    Raises:
        AssertionError: `seconds` have passed in which no further job ended; says what is left.

    """
    least, since = float("inf"), time.monotonic()

    def left() -> dict[str, Any]:
        row = world.admin.execute(UNFINISHED).fetchone()
        assert row is not None
        return {"unfinished": row[0], "intents": len(_intents(world)), "keys": leftover_keys(world)}

    while any((found := left()).values()):
        if found["unfinished"] < least:
            least, since = found["unfinished"], time.monotonic()
        assert time.monotonic() - since < seconds, f"nothing more in {seconds:g} s; left: {found}"
        time.sleep(LOOK_SECONDS)


def _intents(world: World) -> list[str]:
    return [message_id for (message_id,) in world.admin.execute(INTENTS).fetchall()]


def leftover_keys(world: World) -> list[str]:
    """Return the keys in Redis that belong to some message."""
    keys: Any = world.valkey.client.keys("*")
    found = [key.decode() for key in keys]
    return sorted(key for key in found if key.rsplit(":", 1)[-1] not in KEPT_KEYS)


def gather(world: World) -> Evidence:
    """Collect the evidence of the world's present history, and complete that."""
    history = world.history
    since = datetime.fromtimestamp(history.began, UTC)
    rows = world.admin.execute(JOBS, [since]).fetchall()
    events: dict[UUID, list[Event]] = {row[0]: [] for row in rows}
    for job, seq, kind, at, who, data in world.admin.execute(EVENTS, [list(events)]).fetchall():
        events[job].append(Event(seq, EventType(kind), at, who, data))
    jobs = {row[0]: _job(row, events[row[0]]) for row in rows}
    renders = [_in_time(line) for line in world.processes.renders() if UUID(line["job"]) in jobs]
    history.complete(renders, (_entry(job, event) for job, told in events.items() for event in told))
    return Evidence(
        entries=history.entries,
        jobs=jobs,
        requests=world.admin.execute(REQUESTS, [since]).fetchall(),
        renders=renders,
        intents=_intents(world),
        keys=leftover_keys(world),
    )


def _in_time(line: dict[str, Any]) -> dict[str, Any]:
    """Set a line right that a worker with a wrong clock has stamped: nothing is logged in the future."""
    ahead = line["time"] > time.time() + AHEAD_SECONDS / 2
    return {**line, "time": line["time"] - AHEAD_SECONDS} if ahead else line


def _job(row: tuple[Any, ...], events: Sequence[Event]) -> Job:
    job, team, batch, simulate, max_attempts, status, *state, _ = row
    return Job(job, team, batch, simulate or {}, max_attempts, JobState(JobStatus(status), *state), events)


def _entry(job: UUID, event: Event) -> Entry:
    fields = {"seq": event.seq, "type": str(event.type), "who": event.who, "data": dict(event.data)}
    return {"at": event.at.timestamp(), "job": str(job), **fields}


def summary(evidence: Evidence) -> dict[str, int]:
    """Return the run in numbers."""
    starts = [line for line in evidence.renders if line["phase"] == "start"]
    return {
        "requests": len({entry["key"] for entry in evidence.of("request")}),
        "tries": len(evidence.of("request")),
        "jobs": len(evidence.jobs),
        "faults": len(evidence.of("inject")),
        "renders": len(starts),
        "second starts": len(starts) - len({line["job"] for line in starts}),
        "processes ended": len(evidence.of("ended")),
    }


def told(job: Job) -> str:
    """Return a job's events in one line, for a violation's text."""
    return f"{job.id} ({job.team}, {json.dumps(dict(job.simulate))}): " + " ".join(
        f"{event.type}{event.data.get('dispatch_no', '')}/{event.data.get('attempt', '')}"
        for event in job.events
    )


__all__ = ["Evidence", "Job", "gather", "leftover_keys", "summary", "told", "wait_settled"]
