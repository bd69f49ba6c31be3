"""Whatever happens to a job, in any order and by whoever: its row is the fold of its events."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from db import claims, outbox, workers
from db.claims import Answer, Claim, Ended, How
from db.jobs import JobStatus, fold
from db.pool import connect
from support.bench import Bench
from support.ends import finish

ARTIFACT = "sha256:" + "a" * 64
MIND = {"suppress_health_check": [HealthCheck.function_scoped_fixture], "deadline": None}

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(0, 1), st.integers(-1, 1)),
        st.tuples(st.just("finish"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 1), st.sampled_from(How), st.booleans(), st.booleans()),
        st.tuples(st.sampled_from(["cancel", "replay", "quarantine", "rescue"])),
    ),
    max_size=25,
)


class History:
    """One job, two workers, and every transition that there is."""

    def __init__(self, bench: Bench, worker: psycopg.Connection[Any], most: int) -> None:
        self.bench = bench
        self.worker = worker
        self.most = most
        (self.job,) = bench.accept(max_attempts=most)
        self.ids = (uuid4(), uuid4())
        self.held: list[Claim | None] = [None, None]
        self.starts = 0

    def claim(self, who: int, off: int) -> None:
        before = self.bench.row(self.job)
        number = before.dispatch_no + off
        claimed = claims.claim(self.worker, self.ids[who], [(self.job, number)])[0]
        if claimed.answer is Answer.TAKEN:
            assert claimed.claim is not None
            self.held[who] = claimed.claim
            assert off == 0, "only the current dispatch can be claimed"
            assert claimed.claim.attempt <= self.most
        else:
            assert self.bench.row(self.job) == before, "a refusal changes nothing"

    def finish(self, who: int, twice: bool) -> None:
        if (claim := self.held[who]) is None:
            return
        before = self.bench.row(self.job)
        ended = finish(self.worker, self.ids[who], claim, ARTIFACT, 1)
        self.fence(who, ended, before)
        if twice:
            again = finish(self.worker, self.ids[who], claim, ARTIFACT, 1)
            assert again is (Ended.LOST if ended is Ended.LOST else Ended.ALREADY)

    def end(self, who: int, how: How, spend: bool, with_error: bool) -> None:
        if (claim := self.held[who]) is None:
            return
        before = self.bench.row(self.job)
        error = "Boom" if with_error else None
        arguments: dict[str, Any] = {"error_class": error, "error": error, "spend": spend}
        ended = claims.end(self.worker, self.ids[who], claim, how, **arguments)
        self.fence(who, ended, before)
        if ended is Ended.DONE:
            again = claims.end(self.worker, self.ids[who], claim, how, **arguments)
            assert again is Ended.ALREADY

    def fence(self, who: int, ended: Ended, before: Any) -> None:
        mine = before.status is JobStatus.PROCESSING and before.worker == self.ids[who]
        claim = self.held[who]
        assert claim is not None
        same = (claim.dispatch_no, claim.attempt) == (before.dispatch_no, before.attempt)
        assert (ended is Ended.DONE) == (mine and same)
        if ended is not Ended.DONE:
            assert self.bench.row(self.job) == before

    def cancel(self) -> None:
        self.bench.cancel(self.job)

    def replay(self) -> None:
        self.bench.replay(self.job)

    def quarantine(self) -> None:
        intents = [i for i in self.bench.intents() if str(self.job) in i]
        for message_id in intents:
            outbox.quarantine(self.worker, message_id, "test", "test")

    def rescue(self) -> None:
        workers.rescue(self.worker, dict.fromkeys(self.ids), (), "test")

    def check(self) -> None:
        events = self.bench.events(self.job)
        state = self.bench.row(self.job)
        assert fold(events) == state
        assert state.attempt <= self.most
        over = state.status in {JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED}
        mine = [i for i in self.bench.intents() if str(self.job) in i]
        assert mine == ([] if over else [f"acme|{self.job}.{state.dispatch_no}"])


@settings(max_examples=60, **MIND)
@given(most=st.integers(1, 3), steps=STEPS)
def test_the_row_is_the_fold_of_its_events(
    database: Any, bench: Bench, most: int, steps: list[tuple[Any, ...]]
) -> None:
    with connect(database.dsn("worker"), "test") as worker:
        history = History(bench, worker, most)
        for name, *arguments in steps:
            getattr(history, name)(*arguments)
            history.check()


@pytest.fixture
def worker(database: Any) -> Any:
    with connect(database.dsn("worker"), "test") as conn:
        yield conn


def taken(worker: Any, who: UUID, job: UUID, number: int = 1) -> Claim:
    claimed = claims.claim(worker, who, [(job, number)])[0]
    assert claimed.answer is Answer.TAKEN
    assert claimed.claim is not None
    return claimed.claim


def test_of_two_workers_one_gets_the_claim(bench: Bench, worker: Any) -> None:
    (job,) = bench.accept()
    one, two = uuid4(), uuid4()
    taken(worker, one, job)
    assert claims.claim(worker, two, [(job, 1)])[0].answer is Answer.ANOTHERS
    assert bench.row(job).attempt == 1


def test_a_claim_whose_reply_was_lost_is_adopted_and_not_counted_twice(bench: Bench, worker: Any) -> None:
    (job,) = bench.accept()
    me = uuid4()
    assert taken(worker, me, job) == taken(worker, me, job)
    assert bench.types(job) == ["accepted", "claimed"]


def test_ten_free_releases_and_then_each_spends(bench: Bench, worker: Any) -> None:
    (job,) = bench.accept(max_attempts=2)
    me = uuid4()
    for number in range(1, 11):
        claim = taken(worker, me, job, number)
        assert (claim.attempt, claim.releases) == (1, number - 1)
        claims.end(worker, me, claim, How.RELEASED, error_class="DiskFull", spend=False)
    claims.end(worker, me, taken(worker, me, job, 11), How.RELEASED, error_class="DiskFull", spend=True)
    claim = taken(worker, me, job, 12)
    assert claim.attempt == 2
    claims.end(worker, me, claim, How.RELEASED, error_class="DiskFull", spend=True)
    assert (bench.status(job), bench.row(job).error_class) == ("dead", "DiskFull")
    bench.check()


def test_an_end_after_a_cancel_is_a_cancel(bench: Bench, worker: Any) -> None:
    for how in (How.FAILED, How.RELEASED, How.DIED):
        (job,) = bench.accept()
        me = uuid4()
        claim = taken(worker, me, job)
        assert bench.cancel(job) == "asked"
        assert claims.end(worker, me, claim, how, error_class="Boom") is Ended.DONE
        assert claims.end(worker, me, claim, how, error_class="Boom") is Ended.ALREADY
        assert bench.status(job) == "cancelled"
    bench.check()


def test_a_finish_that_came_before_the_cancel_took_effect_wins(bench: Bench, worker: Any) -> None:
    (job,) = bench.accept()
    me = uuid4()
    claim = taken(worker, me, job)
    bench.cancel(job)
    assert finish(worker, me, claim, ARTIFACT, 1) is Ended.DONE
    bench.check()


def test_a_rescue_spends_the_attempt_that_ran_and_the_last_one_is_dead(bench: Bench, worker: Any) -> None:
    (job,) = bench.accept(max_attempts=2)
    for number in (1, 2):
        me = uuid4()
        claim = taken(worker, me, job, number)
        workers.rescue(worker, {me: None}, (), "steward")
        assert finish(worker, me, claim, ARTIFACT, 1) is Ended.LOST
    assert bench.types(job) == ["accepted", "claimed", "rescued", "claimed", "died"]
    assert bench.row(job).error_class == "WorkerLost"
    bench.check()


def test_a_heartbeat_that_moved_since_it_was_watched_saves_its_claims(bench: Bench, worker: Any) -> None:
    (job,) = bench.accept()
    me = uuid4()
    workers.beat(worker, me, "host", 1, 1)
    watched = workers.heartbeats(worker)[me]
    taken(worker, me, job)
    workers.beat(worker, me, "host", 1, 1)
    assert workers.rescue(worker, {me: watched}, (), "steward") == []
    assert workers.rescue(worker, {me: workers.heartbeats(worker)[me]}, (), "steward")
