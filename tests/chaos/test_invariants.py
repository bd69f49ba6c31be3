"""Each invariant finds what it is there to find: evidence of one good job, spoiled in one way at a time."""

import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from db.jobs import Event, EventType, JobState, JobStatus

from . import invariants
from .evidence import Evidence, Job
from .interruptions import AFTER_SECONDS

JOB = UUID(int=1)
WORKER = UUID(int=2)
START = datetime(2025, 1, 1, tzinfo=UTC)
ARTIFACT = "sha256:" + "0" * 64


def event(seq: int, kind: EventType, **data: Any) -> Event:
    return Event(seq, kind, START + timedelta(seconds=seq), "test", data)


def claim(seq: int, kind: EventType, **data: Any) -> Event:
    return event(seq, kind, **{"dispatch_no": 1, "attempt": 1, "worker": str(WORKER), **data})


GOOD = Job(
    id=JOB,
    team="capped",
    batch=None,
    simulate={},
    max_attempts=2,
    state=JobState(JobStatus.SUCCEEDED, 1, 1, 0, None, ARTIFACT, None, False, 3),
    events=[
        event(1, EventType.ACCEPTED),
        claim(2, EventType.CLAIMED),
        claim(3, EventType.SUCCEEDED, artifact=ARTIFACT, artifact_size=1),
    ],
)


def line(phase: str, at: float, outcome: str = "", **fields: Any) -> Mapping[str, Any]:
    told = {"phase": phase, "job": str(JOB), "dispatch": 1, "attempt": 1, "outcome": outcome}
    return {**told, "time": START.timestamp() + at, **fields}


def entry(what: str, at: float = 0.0, **fields: Any) -> dict[str, Any]:
    return {"at": START.timestamp() + at, "what": what, **fields}


WELL = Evidence(
    entries=[
        entry("request", key="k", team="capped", path="/v1/jobs", jobs=1),
        entry("answer", key="k", team="capped", path="/v1/jobs", jobs=1, status=202, id=str(JOB)),
        entry("event", 2, job=str(JOB), type="claimed"),
    ],
    jobs={JOB: GOOD},
    requests=[("k", JOB, None)],
    renders=[line("start", 2.1), line("end", 2.9, "rendered")],
    intents=[],
    keys=[],
)


def with_job(**changes: Any) -> Evidence:
    return dataclasses.replace(WELL, jobs={JOB: dataclasses.replace(GOOD, **changes)})


def with_entries(*entries: dict[str, Any]) -> Evidence:
    return dataclasses.replace(WELL, entries=sorted([*WELL.entries, *entries], key=lambda e: e["at"]))


def with_renders(*lines: Mapping[str, Any]) -> Evidence:
    return dataclasses.replace(WELL, renders=[*WELL.renders, *lines])


def crowd(size: int) -> Evidence:
    """Return evidence of so many jobs of one team that were rendered at the same time."""
    ids = [UUID(int=10 + n) for n in range(size)]
    renders = [{**found, "job": str(one)} for one in ids for found in WELL.renders]
    return dataclasses.replace(
        WELL, jobs={one: dataclasses.replace(GOOD, id=one) for one in ids}, renders=renders
    )


RESCUED = [*GOOD.events[:2], claim(3, EventType.RESCUED, error_class="WorkerLost")]
RELEASED = [*GOOD.events[:2], claim(3, EventType.RELEASED, error_class="RendererUnavailable")]


def fault(
    name: str, begun: float, over: float, *, interrupts: bool = True, touches: str = "workers"
) -> list[dict[str, Any]]:
    """Return the entries of a fault."""
    told = entry("inject", begun, fault=name, interrupts=interrupts, touches=[touches])
    return [told, entry("heal", over, fault=name)]


def rescued_around(*faults: list[dict[str, Any]]) -> Evidence:
    """Return evidence of a job that was rescued 3 s after the start, among these faults."""
    entries = with_entries(*(one for told in faults for one in told)).entries
    return dataclasses.replace(with_job(events=RESCUED), entries=entries)


SPOILED: list[tuple[Callable[..., Any], Evidence]] = [
    (invariants.every_request_came_to_a_definite_answer, with_entries(entry("request", key="other"))),
    (
        invariants.every_request_came_to_a_definite_answer,
        with_entries(entry("answer", key="k", path="/v1/jobs", jobs=1, status=202, id="another")),
    ),
    (
        invariants.every_request_came_to_a_definite_answer,
        with_entries(entry("answer", key="k", path="/v1/jobs", jobs=1, status=422, id=None)),
    ),
    (
        invariants.every_error_is_a_problem,
        with_entries(entry("answer", key="k", path="/v1/jobs", jobs=1, status=503, kind="text/plain")),
    ),
    (invariants.no_job_but_those_that_were_asked_for, dataclasses.replace(WELL, jobs={})),
    (
        invariants.no_job_but_those_that_were_asked_for,
        dataclasses.replace(WELL, jobs={**WELL.jobs, WORKER: dataclasses.replace(GOOD, id=WORKER)}),
    ),
    (invariants.no_job_but_those_that_were_asked_for, with_job(batch=UUID(int=3))),
    (
        invariants.no_job_but_those_that_were_asked_for,
        dataclasses.replace(WELL, requests=[("k", JOB, None), ("nobody's", JOB, None)]),
    ),
    (
        invariants.every_accepted_job_ended_as_it_should,
        with_job(state=dataclasses.replace(GOOD.state, status=JobStatus.QUEUED)),
    ),
    (
        invariants.every_accepted_job_ended_as_it_should,
        with_job(state=dataclasses.replace(GOOD.state, status=JobStatus.DEAD)),
    ),
    (invariants.events_fold_to_the_row, with_job(state=dataclasses.replace(GOOD.state, attempt=2))),
    (invariants.events_fold_to_the_row, with_job(events=GOOD.events[1:])),
    (invariants.attempts_are_bounded, with_renders(line("start", 3, attempt=3))),
    (invariants.every_start_is_a_claim_of_its_own, with_renders(line("start", 3))),
    (invariants.every_start_is_a_claim_of_its_own, with_renders(line("start", 3, dispatch=2))),
    (invariants.one_successful_render_for_each_job, dataclasses.replace(WELL, renders=[])),
    (
        invariants.one_successful_render_for_each_job,
        with_renders(line("end", 3, "rendered", dispatch=2, attempt=2)),
    ),
    (invariants.nobody_is_taken_for_dead_who_is_well, with_job(events=RESCUED)),
    (invariants.nobody_is_taken_for_dead_who_is_well, with_job(events=RELEASED)),
    # A fault that interrupts explains nothing before it, nor long after; one that does not, nothing at all.
    (invariants.nobody_is_taken_for_dead_who_is_well, rescued_around(fault("worker-killed", 4.0, 5.0))),
    (
        invariants.nobody_is_taken_for_dead_who_is_well,
        rescued_around(fault("worker-killed", -30.0, 2.9 - AFTER_SECONDS)),
    ),
    (
        invariants.nobody_is_taken_for_dead_who_is_well,
        rescued_around(fault("redis-frozen", 0.0, 5.0, interrupts=False)),
    ),
    (invariants.nothing_is_left, dataclasses.replace(WELL, intents=["capped|x.1"])),
    (invariants.nothing_is_left, dataclasses.replace(WELL, keys=["oncommit:previews:messages"])),
    (invariants.caps_hold, crowd(3)),
    (invariants.no_two_renders_of_one_job_overlap, with_renders(line("start", 2.5, dispatch=2, attempt=2))),
    (invariants.a_paused_team_starts_nothing, with_entries(entry("paused", 1, team="capped"))),
    (
        invariants.an_armed_failpoint_acts,
        with_entries(entry("failpoint", 9.0, fault="f", process="relay-1", fired=False, since=6.0)),
    ),
    (
        invariants.processes_end_for_a_reason,
        with_entries(entry("ended", process="worker-1", code=70, expected=False)),
    ),
]


def test_a_good_run_violates_nothing() -> None:
    assert invariants.violations(WELL) == []
    assert list(invariants.caps_hold(crowd(2))) == []


def test_every_invariant_is_spoiled_here() -> None:
    assert {check for check, _ in SPOILED} == set(invariants.INVARIANTS)


@pytest.mark.parametrize(
    "faults",
    [
        [fault("worker-killed", 2.5, 2.6)],
        [fault("worker-killed", -30.0, 3.1 - AFTER_SECONDS)],
        # While the database is away nobody can be missed: that time does not count.
        [
            fault("worker-killed", -30.0, -10.0),
            fault("postgres-stopped", -9.0, 0.0, interrupts=False, touches="postgres"),
        ],
    ],
)
def test_a_fault_that_interrupts_explains_a_rescue_soon_after(faults: list[list[dict[str, Any]]]) -> None:
    assert list(invariants.nobody_is_taken_for_dead_who_is_well(rescued_around(*faults))) == []


@pytest.mark.parametrize(("check", "evidence"), SPOILED)
def test_each_invariant_finds_its_violation(check: invariants.Invariant, evidence: Evidence) -> None:
    assert list(check(evidence))
