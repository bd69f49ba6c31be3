"""What a body asks for: bytes in, jobs and their fingerprint out, or a problem that names each fault."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from db.accept import NewJob
from portal import idempotency, ids, json_text
from portal.problems import MAX_ERRORS, Fault, Problem
from portal.resources import (
    BATCH_SHAPE,
    JOB_REQUEST,
    MAX_BATCH,
    BatchRequest,
    JobRequest,
    faults,
    validated,
)

#: A job of the longest title, all of it escaped, takes 2.6 kB.
MAX_JOB_BYTES = 64 << 10
#: 10,000 jobs of 400 bytes; parsed at once, so the limit on what one body can make of memory.
MAX_BATCH_BYTES = 4 << 20
#: Line by line: 10,000 of the longest that make sense.
MAX_LINES_BYTES = 8 << 20
#: A job a line, and a blank one after each.
MAX_LINES = 2 * MAX_BATCH


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was understood: the jobs it asks for, and its fingerprint."""

    jobs: list[JobRequest]
    fingerprint: bytes

    def new_jobs(self) -> list[NewJob]:
        """Return the jobs with new ids, in order."""
        return [
            NewJob(
                id=id_,
                kind=job.kind,
                document=job.document,
                title=job.title,
                priority=job.priority,
                max_attempts=job.max_attempts,
                simulate=None
                if job.simulate is None
                else orjson.dumps(job.simulate.model_dump(exclude_defaults=True)).decode(),
            )
            for id_, job in zip(ids.uuid7s(len(self.jobs)), self.jobs, strict=True)
        ]


def one(body: bytearray) -> Asked:
    """Return what a body with one job asks for.

    Raises:
        Problem: malformed-json, invalid-request.

    """
    meaning = validated(JOB_REQUEST.validate_python, json_text.parse(body))
    return Asked([meaning], idempotency.fingerprint("POST /v1/jobs", meaning))


def many(body: bytearray) -> Asked:
    """Return what a JSON batch asks for; raises as `one` does."""
    return _batch(validated(BATCH_SHAPE.validate_python, json_text.parse(body)).jobs)


def lines(body: bytearray) -> Asked:
    """Return what a batch of one job a line asks for, blank lines left out; raises as `one` does."""
    # Looked at before it is split: millions of blank lines would be hundreds of megabytes of empty texts.
    few = body.count(b"\n") <= MAX_LINES
    texts = [line for line in body.split(b"\n") if line.strip()] if few else []
    if not 1 <= len(texts) <= MAX_BATCH:
        raise Problem("invalid-request", errors=[Fault("/jobs", f"1 to {MAX_BATCH} jobs are taken")])
    return _batch(_parsed(n, line) for n, line in enumerate(texts))


def _parsed(n: int, line: bytearray) -> Any:
    try:
        return json_text.parse(line)
    except Problem as problem:
        told = problem.errors[0].detail if problem.errors else problem.detail
        raise Problem(problem.slug, f"/jobs/{n}: {told}", problem.errors) from None


def _batch(items: Iterable[Any]) -> Asked:
    """Validate each job by itself: however many faults there are, few are held in memory."""
    jobs: list[JobRequest] = []
    found: list[Fault] = []
    left_out = 0
    for n, item in enumerate(items):
        try:
            jobs.append(JOB_REQUEST.validate_python(item))
        except ValidationError as error:
            if len(found) < MAX_ERRORS:
                found += faults(error, f"/jobs/{n}")
            else:
                left_out += error.error_count()
    if found:
        raise Problem("invalid-request", errors=found, left_out=left_out)
    meaning = BatchRequest.model_construct(jobs=jobs)
    return Asked(jobs, idempotency.fingerprint("POST /v1/batches", meaning))
