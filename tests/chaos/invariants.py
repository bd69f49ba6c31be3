"""The invariants: each looks at the evidence of a run and yields a sentence for every violation."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from db.jobs import TERMINAL, EventType, FoldError, fold

from .evidence import Evidence, Job, told
from .interruptions import faults, interrupted, within
from .settings import TEAMS

Invariant = Callable[[Evidence], Iterator[str]]
#: Ends of a claim that its own worker did not choose: a second start is explained by them.
TAKEN_AWAY = frozenset({EventType.RESCUED, EventType.RELEASED})
ACCEPTED, INTERNAL = 202, 500


def every_request_came_to_a_definite_answer(evidence: Evidence) -> Iterator[str]:
    """A client that goes on asking hears 202 in the end, always of the same job."""
    answers: defaultdict[str, set[str]] = defaultdict(set)
    for entry in evidence.of("answer"):
        if entry["status"] == ACCEPTED:
            answers[entry["key"]].add(entry["id"])
        elif entry["status"] < 500 and entry["status"] not in {408, 409, 425, 429}:
            yield f"the key {entry['key']} was refused with {entry['status']}"
    for key in {entry["key"] for entry in evidence.of("request")}:
        if len(answers[key]) != 1:
            yield f"the key {key} was answered with {sorted(answers[key]) or 'nothing'}"


def every_error_is_a_problem(evidence: Evidence) -> Iterator[str]:
    """Whatever is wrong, the portal says so in its own words, and is never wrong itself."""
    for entry in evidence.of("answer"):
        if entry["status"] == INTERNAL or (
            entry["status"] >= 400 and entry["kind"] != "application/problem+json"
        ):
            yield f"the key {entry['key']} was answered {entry['status']} as {entry['kind']!r}"


def no_job_but_those_that_were_asked_for(evidence: Evidence) -> Iterator[str]:
    """What clients were told is what the database knows, job by job; nothing was accepted twice."""
    singles, batches = set[str](), dict[str, int]()
    for entry in evidence.of("answer"):
        if entry["status"] == ACCEPTED and entry["path"].endswith("jobs"):
            singles.add(entry["id"])
        elif entry["status"] == ACCEPTED:
            batches[entry["id"]] = entry["jobs"]
    found = Counter(str(job.batch) for job in evidence.jobs.values() if job.batch is not None)
    there = {str(job.id) for job in evidence.jobs.values() if job.batch is None}
    for job in sorted(singles ^ there):
        yield f"the job {job} was {'answered and is not there' if job in singles else 'never answered'}"
    if found != Counter(batches):
        yield f"batches: answered {batches}, there {dict(found)}"
    keys = {entry["key"] for entry in evidence.of("request")}
    for key, _, _ in evidence.requests:
        if key not in keys:
            yield f"the database knows the key {key}, which nobody sent"


def every_accepted_job_ended_as_it_should(evidence: Evidence) -> Iterator[str]:
    """A 202 is terminal; a good document is rendered, a bad one dead."""
    for job in evidence.jobs.values():
        if job.state.status not in TERMINAL:
            yield f"not terminal: {told(job)}"
        elif job.state.status is not job.expected:
            yield f"{job.state.status}, not {job.expected}: {told(job)}"


def events_fold_to_the_row(evidence: Evidence) -> Iterator[str]:
    """The row is the fold of its events."""
    for job in evidence.jobs.values():
        try:
            folded = fold(job.events)
        except FoldError as error:
            yield f"{error}: {told(job)}"
        else:
            if folded != job.state:
                yield f"row {job.state}, fold {folded}: {told(job)}"


def attempts_are_bounded(evidence: Evidence) -> Iterator[str]:
    """Renderer starts that count never exceed max_attempts, by the log as by the row."""
    for line in evidence.renders:
        job = evidence.jobs[UUID(line["job"])]
        if line["attempt"] > job.max_attempts:
            yield f"attempt {line['attempt']} of {job.max_attempts}: {told(job)}"


def every_start_is_a_claim_of_its_own(evidence: Evidence) -> Iterator[str]:
    """Each start in the render log has its own claim, and each success its own `succeeded`."""
    starts: Counter[tuple[Any, ...]] = Counter()
    for line in evidence.renders:
        if line["phase"] == "start":
            starts[line["job"], line["dispatch"], line["attempt"]] += 1
    for (job_id, dispatch, attempt), count in starts.items():
        job = evidence.jobs[UUID(job_id)]
        claims = [
            e
            for e in job.events
            if e.type is EventType.CLAIMED
            and (e.data["dispatch_no"], e.data["attempt"]) == (dispatch, attempt)
        ]
        if len(claims) != 1 or count != 1:
            yield f"{count} starts of dispatch {dispatch}, {len(claims)} claims: {told(job)}"


def one_successful_render_for_each_job(evidence: Evidence) -> Iterator[str]:
    """Whoever was rendered once more was taken from a worker before, and the event says so."""
    rendered: defaultdict[UUID, list[tuple[int, int]]] = defaultdict(list)
    for line in evidence.renders:
        if line["phase"] == "end" and line["outcome"] == "rendered":
            rendered[UUID(line["job"])].append((line["dispatch"], line["attempt"]))
    for job in evidence.jobs.values():
        endings = [job.ending_of(*claim) for claim in rendered[job.id]]
        good = [e for e in endings if e is not None and e.type is EventType.SUCCEEDED]
        others = [e for e in endings if e is None or e.type not in {EventType.SUCCEEDED, *TAKEN_AWAY}]
        if job.state.status == "succeeded" and len(good) != 1:
            yield f"{len(good)} successful renders: {told(job)}"
        if others:
            yield f"a finished render counted as {[e and str(e.type) for e in others]}: {told(job)}"


def nobody_is_taken_for_dead_who_is_well(evidence: Evidence) -> Iterator[str]:
    """While no fault can end a render, nobody is taken for dead, and no render that began is thrown away.

    A claim whose reply was lost may be given back: nothing was started for it.
    """
    spans = interrupted(evidence.entries)
    starts = {(line["job"], line["dispatch"], line["attempt"]) for line in evidence.renders}
    for job in evidence.jobs.values():
        for event in (event for event in job.events if event.type in TAKEN_AWAY):
            claim = str(job.id), event.data["dispatch_no"], event.data["attempt"]
            began = event.type is EventType.RESCUED or claim in starts
            if began and not within(event.at.timestamp(), spans):
                yield f"{event.data.get('error_class')}, from a worker that was well: {told(job)}"


def nothing_is_left(evidence: Evidence) -> Iterator[str]:
    """Neither an intent nor a message outlives its job."""
    if evidence.intents:
        yield f"intents left: {evidence.intents}"
    if evidence.keys:
        yield f"keys left in Redis: {evidence.keys}"


def caps_hold(evidence: Evidence) -> Iterator[str]:
    """A team's max_running is never exceeded, by the render log.

    A render that was taken from its worker counts until the database took it away: nobody can know
    better of a worker that was lost.
    """
    for team, limits in TEAMS.items():
        if (cap := limits.get("max_running")) is None:
            continue
        changes: list[tuple[float, int, str]] = []
        for job in (job for job in evidence.jobs.values() if job.team == team):
            for began, ended in _renders(evidence, job):
                changes += [(began, 1, str(job.id)), (ended, -1, str(job.id))]
        running = 0
        for at, change, job_id in sorted(changes):
            running += change
            if running > cap:
                yield f"{running} renders of {team} at {datetime.fromtimestamp(at, UTC)} (job {job_id})"


def _renders(evidence: Evidence, job: Job) -> Iterator[tuple[float, float]]:
    ends = {
        (line["dispatch"], line["attempt"]): line["time"]
        for line in evidence.renders_of.get(job.id, ())
        if line["phase"] == "end"
    }
    for line in evidence.renders_of.get(job.id, ()):
        if line["phase"] == "start":
            claim = line["dispatch"], line["attempt"]
            ending = job.ending_of(*claim)
            known = [ends.get(claim), ending and ending.at.timestamp()]
            yield line["time"], max(line["time"], min(t for t in [*known, float("inf")] if t is not None))


def no_two_renders_of_one_job_overlap(evidence: Evidence) -> Iterator[str]:
    """A job begins again only when its last render has ended, or was taken from its worker."""
    for job in evidence.jobs.values():
        over = 0.0
        for began, ended in sorted(_renders(evidence, job)):
            if began < over:
                yield f"begun {over - began:g} s before its last render was over: {told(job)}"
            over = max(over, ended)


def a_paused_team_starts_nothing(evidence: Evidence) -> Iterator[str]:
    """No claim between the pause's commit and the moment somebody asks to resume."""
    since: dict[str, float] = {}
    for entry in evidence.entries:
        if entry["what"] == "paused":
            since[entry["team"]] = entry["at"]
        elif entry["what"] == "resuming":
            since.pop(entry["team"], None)
        elif entry["what"] == "event" and entry["type"] == "claimed":
            job = evidence.jobs[UUID(entry["job"])]
            if job.team in since:
                yield f"claimed while paused: {told(job)}"


def processes_end_for_a_reason(evidence: Evidence) -> Iterator[str]:
    """No process ended by itself."""
    for entry in evidence.of("ended"):
        if not entry["expected"]:
            yield f"{entry['process']} ended by itself with code {entry['code']}"


def an_armed_failpoint_acts(evidence: Evidence) -> Iterator[str]:
    """A process that should kill itself somewhere does, unless another fault kept it from getting there."""
    for entry in evidence.of("failpoint"):
        others = (
            told["fault"]
            for told, (begun, over) in faults(evidence.entries)
            if told["fault"] != entry["fault"] and begun < entry["at"] and over > entry["since"]
        )
        if not entry["fired"] and next(others, None) is None:
            yield f"{entry['process']} lived through {entry['fault']}"


INVARIANTS: tuple[Invariant, ...] = (
    every_request_came_to_a_definite_answer,
    every_error_is_a_problem,
    no_job_but_those_that_were_asked_for,
    every_accepted_job_ended_as_it_should,
    events_fold_to_the_row,
    attempts_are_bounded,
    every_start_is_a_claim_of_its_own,
    one_successful_render_for_each_job,
    nobody_is_taken_for_dead_who_is_well,
    nothing_is_left,
    caps_hold,
    no_two_renders_of_one_job_overlap,
    a_paused_team_starts_nothing,
    processes_end_for_a_reason,
    an_armed_failpoint_acts,
)


def violations(evidence: Evidence) -> list[str]:
    """Return every violation, with the name of its invariant."""
    return [f"{check.__name__}: {text}" for check in INVARIANTS for text in check(evidence)]
