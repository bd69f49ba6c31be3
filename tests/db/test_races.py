"""Everybody at once: workers, stewards, operators and clients on the same few jobs, by seeded choices.

The choices are repeated by the seed; how they interleave is the machine's. Whatever it is, afterwards
each row is the fold of its events, each dispatch was claimed once, and the outbox holds exactly the
dispatches that are unfinished.
"""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from threading import Barrier
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.errors import ActiveSqlTransaction

from db import claims, keeping, operate, outbox, oversight, replay, workers
from db.claims import Answer, Claim, Ended, How
from db.jobs import Event, EventType, JobState, JobStatus, fold
from db.pool import connect
from db.replay import Filter
from support.ends import finish
from support.waiting import eventually

WHO = {"who": "operator:eve", "reason": "the race"}
ARTIFACT = "sha256:" + "1" * 64
OLD = timedelta(0)
CAP = 3
HANDS, STEPS = 6, 60
DISPATCHES = "SELECT id, dispatch_no FROM jobs WHERE id = ANY(%s)"
PROCESSING = "SELECT count(*) FROM jobs WHERE status = 'processing'"
ROWS = """
SELECT id, team, status, dispatch_no, attempt, releases, worker, artifact, error_class,
       cancel_requested_at IS NOT NULL, version, max_attempts FROM jobs
"""
EVENTS = "SELECT seq, type, at, who, data FROM job_events WHERE job = %s ORDER BY seq"


class Hand:
    """One of those who act at once: a worker and an operator, with connections of their own."""

    def __init__(self, database: Any, jobs: list[UUID], seed: int, stack: ExitStack) -> None:
        self.jobs = jobs
        self.choose = random.Random(seed)
        self.id = uuid4()
        self.worker = stack.enter_context(connect(database.dsn("worker"), "test hand"))
        self.operator = stack.enter_context(connect(database.dsn("operator"), "test hand"))
        self.held: list[Claim] = []
        self.finished = 0
        self.did: Counter[str] = Counter()

    def work(self, barrier: Barrier) -> None:
        acts = [self.claim] * 6 + [self.finish] * 3 + [self.end] * 3 + [
            self.rescue, self.cancel, self.replay, self.sweep, self.prune, self.quarantine, self.pause,
        ]  # fmt: skip
        barrier.wait()
        for _ in range(STEPS):
            act = self.choose.choice(acts)
            act()
            self.did[act.__name__] += 1

    def claim(self) -> None:
        picked = self.choose.sample(self.jobs, 2)
        wanted = self.worker.execute(DISPATCHES, [picked]).fetchall()
        for claimed in claims.claim(self.worker, self.id, wanted):
            if claimed.answer is Answer.TAKEN and claimed.claim is not None:
                self.held.append(claimed.claim)
                row = self.worker.execute(PROCESSING).fetchone()
                assert row is not None
                assert row[0] <= CAP

    def finish(self) -> None:
        if self.held:
            claim = self.held.pop()
            ended = finish(self.worker, self.id, claim, ARTIFACT, 1)
            self.finished += ended is Ended.DONE
            again = finish(self.worker, self.id, claim, ARTIFACT, 1)
            # Succeeded is for good, but for pruning, which takes the history too.
            assert again is Ended.LOST or ended is not Ended.LOST

    def end(self) -> None:
        if self.held:
            how = self.choose.choice(list(How))
            claims.end(
                self.worker, self.id, self.held.pop(), how, error_class="Boom", error="boom", spend=True
            )

    def rescue(self) -> None:
        overdue = sorted(workers.claimed(self.worker), key=lambda c: c.job)[:1]
        workers.rescue(self.worker, {}, overdue, "steward")

    def cancel(self) -> None:
        operate.cancel(self.operator, self.choose.choice(self.jobs), **WHO)

    def replay(self) -> None:
        replay.replay(self.operator, self.choose.sample(self.jobs, 5), **WHO)

    def sweep(self) -> None:
        run = replay.begin(self.operator, Filter(), afresh=False, **WHO)
        # Another hand may finish this run, and `prune`, which keeps nothing here, forget it meanwhile.
        with suppress(replay.UnknownRun):
            replay.replay_slice(self.operator, run, 3, **WHO)

    def prune(self) -> None:
        _, _, before = oversight.prunable(self.operator, OLD, dead_too=False)
        for _ in keeping.prune(self.operator, before, dead_too=False, **WHO):
            pass

    def quarantine(self) -> None:
        row = self.worker.execute("SELECT message_id FROM outbox ORDER BY random() LIMIT 1").fetchone()
        if row is not None:
            outbox.quarantine(self.worker, row[0], "race", "test")

    def pause(self) -> None:
        operate.pause(self.operator, "acme", True, **WHO)
        operate.pause(self.operator, "acme", False, **WHO)


def check(admin: psycopg.Connection[Any]) -> Counter[str]:
    """Check every job that is left; return how many there are in each status."""
    living, statuses = set(), Counter[str]()
    for job, team, status, *columns, most in admin.execute(ROWS).fetchall():
        row = JobState(JobStatus(status), *columns)
        rows = admin.execute(EVENTS, [job]).fetchall()
        events = [Event(seq, EventType(kind), *rest) for seq, kind, *rest in rows]
        assert fold(events) == row
        assert row.attempt <= most
        times = [event.at for event in events]
        assert times == sorted(times), "no event is earlier than the one before it"
        claimed = [event.data["dispatch_no"] for event in events if event.type is EventType.CLAIMED]
        assert len(claimed) == len(set(claimed)), "one claim for a dispatch"
        statuses[status] += 1
        if row.status not in {JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED}:
            living.add(f"{team}|{job}.{row.dispatch_no}")
    assert {row[0] for row in admin.execute("SELECT message_id FROM outbox").fetchall()} == living
    return statuses


@pytest.fixture(params=["read committed", "serializable"])
def forced(request: pytest.FixtureRequest, database: Any) -> Iterator[str]:
    """What somebody has set as the roles' default, in this database."""
    for role in ("worker", "operator"):
        database.admin.execute(
            f"ALTER ROLE oncommit_{role} IN DATABASE {database.name}"
            f" SET default_transaction_isolation = '{request.param}'".encode()
        )
    yield request.param
    for role in ("worker", "operator"):
        database.admin.execute(f"ALTER ROLE oncommit_{role} IN DATABASE {database.name} RESET ALL".encode())


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_races_the_rows_tell_what_happened(
    database: Any, accept: Any, forced: str, seed: int
) -> None:
    del forced
    jobs = [job for count in (1, 1, 1, 1, 4, 4) for job in accept(count, max_attempts=4)]
    database.admin.execute("SELECT set_lane('acme', %s, 'test', '')", [f'{{"max_running": {CAP}}}'])
    with ExitStack() as stack:
        hands = [Hand(database, jobs, seed * 100 + n, stack) for n in range(HANDS)]
        threads = stack.enter_context(ThreadPoolExecutor(HANDS))
        barrier = Barrier(HANDS)
        for done in [threads.submit(hand.work, barrier) for hand in hands]:
            done.result()  # no deadlock, no refusal: any error of the database ends the test
    statuses = check(database.admin)
    finished = sum(hand.finished for hand in hands)
    row = database.admin.execute("SELECT count(*) FROM job_events WHERE type = 'succeeded'").fetchone()
    assert row is not None
    assert row[0] <= finished, "as many as were told done, less those that were pruned"
    assert statuses["succeeded"] == row[0]
    assert finished > 0


def test_twenty_claimers_at_once_never_exceed_a_cap_and_reach_it(database: Any, accept: Any) -> None:
    jobs = accept(40)
    database.admin.execute("SELECT set_lane('acme', '{\"max_running\": 5}', 'test', '')")
    barrier = Barrier(20)

    def claim(n: int) -> list[Answer]:
        wanted = [(jobs[n], 1), (jobs[39 - n], 1)]
        with connect(database.dsn("worker"), "test claimer") as conn:
            barrier.wait()
            return [c.answer for c in claims.claim(conn, uuid4(), wanted if n % 2 else wanted[::-1])]

    with ThreadPoolExecutor(20) as threads:
        answers = Counter(answer for found in threads.map(claim, range(20)) for answer in found)
    assert answers[Answer.TAKEN] == 5
    assert set(answers) <= {Answer.TAKEN, Answer.FULL, Answer.ANOTHERS}
    assert database.admin.execute(PROCESSING).fetchone() == (5,)
    check(database.admin)


LATE = """
SELECT count(*) FROM pg_stat_activity
 WHERE application_name = 'test late' AND datname = current_database() AND wait_event_type = 'Lock'
"""
FINISH = "SELECT outcome FROM finish_jobs(%s, %s, %s, %s, %s, %s)"
CLAIM = "SELECT outcome FROM claim_jobs(%s, %s, %s)"


def test_arrays_in_opposite_orders_do_not_deadlock(database: Any, accept: Any) -> None:
    jobs = accept(60)
    me = uuid4()
    ones = [1] * len(jobs)

    def both(n: int) -> tuple[Counter[str], Counter[str]]:
        order = jobs[:: -1 if n % 2 else 1]
        with connect(database.dsn("worker"), "test array") as conn:
            claimed = conn.execute(CLAIM, [me, order, ones]).fetchall()
            finished = conn.execute(FINISH, [me, order, ones, ones, [ARTIFACT] * 60, ones]).fetchall()
        return Counter(row[0] for row in claimed), Counter(row[0] for row in finished)

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(both, range(6)))
    finished = sum((done for _, done in answers), Counter[str]())
    assert finished["done"] == 60
    assert finished["already"] == 300
    assert check(database.admin) == {"succeeded": 60}


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_claim_is_refused_where_it_could_not_see_the_claims_that_it_waited_for(
    database: Any, accept: Any, level: IsolationLevel
) -> None:
    (job,) = accept()
    with database.connect("worker") as conn:
        conn.isolation_level = level
        with pytest.raises(ActiveSqlTransaction):
            conn.execute(CLAIM, [uuid4(), [job], [1]])


def test_a_pause_that_commits_while_a_claim_waits_for_its_row_holds(
    admin: psycopg.Connection[Any], database: Any, accept: Any
) -> None:
    (job,) = accept()
    with (
        database.connect() as holder,
        connect(database.dsn("worker"), "test late") as conn,
        ThreadPoolExecutor(1) as thread,
    ):
        holder.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [job])
        late = thread.submit(claims.claim, conn, uuid4(), [(job, 1)])
        eventually(lambda: admin.execute(LATE).fetchone() == (1,))
        admin.execute("SELECT pause_lane('*', true, 'eve', 'stop')")
        holder.commit()
        assert late.result(timeout=10)[0].answer is Answer.PAUSED
