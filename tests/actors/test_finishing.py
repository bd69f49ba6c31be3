"""Joint finishes on a real database: what is shared, what is each one's own, and what is kept."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any
from uuid import UUID, uuid4

import pytest

from actors import pauses
from actors.finishing import Finishes
from actors.gate import Gate
from actors.kept_connection import KeptConnection
from actors.running import Running
from db import claims, workers
from db.claims import Answer, Finish
from db.pool import connect
from support.bench import Bench, terminate_backends
from support.waiting import always, eventually

ARTIFACT = "sha256:" + "a" * 64


class Broker:
    """The gate's other side."""

    def pause_fetching(self) -> None:
        pass

    def resume_fetching(self) -> None:
        pass

    def drain(self) -> None:
        pass


class Message:
    """A message in flight, until it is acknowledged."""

    def __init__(self) -> None:
        self.kept = False
        self.acknowledged = 0

    def keep(self) -> None:
        self.kept = True

    def acknowledge(self) -> None:
        self.acknowledged += 1


class Worker:
    """What hands finishes over, and the thread that writes them."""

    def __init__(self, dsn: str, *, most: int = 100) -> None:
        self.id = uuid4()
        self.gate = Gate(Broker())
        self.gate.back()
        self.running = Running()
        self.give_up, self._stopped = Event(), Event()
        self._ends = KeptConnection(dsn, "test finishes")
        self._claims = connect(dsn, "test claims")
        self.finishes = Finishes(
            self.id, self._ends, self.gate, self.running, most=most, give_up=self.give_up
        )
        self._thread = Thread(target=self.finishes.run, args=[self._stopped])

    def start(self) -> None:
        self._thread.start()

    def put(self, job: UUID, artifact: str = ARTIFACT) -> Message:
        """Claim a job, and hand its finish over."""
        message = Message()
        run = self.running.enter(job, 1)
        assert run is not None
        claimed = claims.claim(self._claims, self.id, [(job, 1)])[0]
        assert claimed.answer is Answer.TAKEN
        assert claimed.claim is not None
        run.claim = claimed.claim
        run.begin_ending(rendered=True)
        self.finishes.put(run, message, Finish(claimed.claim, artifact, 1))
        return message

    def close(self) -> None:
        if self._thread.is_alive():
            self._stopped.set()
            self._thread.join()
        self._ends.close()
        self._claims.close()


@pytest.fixture
def worker(database: Any) -> Iterator[Worker]:
    found = Worker(database.dsn("worker"))
    yield found
    found.close()


@contextmanager
def locked(database: Any, job: UUID) -> Iterator[None]:
    """Hold a job's row for the block."""
    with database.server.connect(database.name) as holder, holder.transaction():
        holder.execute("SELECT FROM jobs WHERE id = %s FOR NO KEY UPDATE", [job])
        yield


def test_what_ends_meanwhile_shares_a_commit_and_is_acknowledged_after_it(
    worker: Worker, bench: Bench
) -> None:
    jobs = bench.accept(20)
    messages = [worker.put(job) for job in jobs]
    assert all(message.kept and not message.acknowledged for message in messages)
    assert len(worker.running.all()) == 20, "the process still knows them"
    worker.start()
    worker.finishes.settle()
    assert [message.acknowledged for message in messages] == [1] * 20
    assert worker.running.all() == []
    row = bench.admin.execute("SELECT count(DISTINCT xmin::text) FROM jobs").fetchone()
    assert row == (1,), "one commit"
    assert bench.settled() == {"succeeded": 20}


def test_one_that_is_refused_keeps_nobody_and_is_kept_until_it_takes(
    worker: Worker, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "REFUSED_SECONDS", 0.01)
    # A refusal that only one of them meets, and that somebody takes away later.
    bench.admin.execute(
        "ALTER TABLE jobs ADD CONSTRAINT small CHECK (artifact <> 'sha256:' || repeat('b', 64))"
    )
    first, second, third = bench.accept(3)
    messages = [
        worker.put(first), worker.put(second, "sha256:" + "b" * 64), worker.put(third),
    ]  # fmt: skip
    worker.start()
    eventually(lambda: [m.acknowledged for m in messages] == [1, 0, 1])
    always(lambda: not messages[1].acknowledged, during=0.3)
    assert [run.job for run in worker.running.all()] == [second]
    assert not worker.gate.database_away, "an answer is no outage"
    bench.admin.execute("ALTER TABLE jobs DROP CONSTRAINT small")
    worker.finishes.settle()
    assert messages[1].acknowledged == 1
    assert bench.settled() == {"succeeded": 3}


def test_a_row_that_is_held_up_holds_up_nobody_else(worker: Worker, bench: Bench, database: Any) -> None:
    held, free = bench.accept(2)
    first = worker.put(held)
    with locked(database, held):
        worker.start()
        second = worker.put(free)
        eventually(lambda: second.acknowledged)
        assert not first.acknowledged
    worker.finishes.settle()
    assert first.acknowledged == 1
    assert bench.settled() == {"succeeded": 2}


def test_finishes_outlast_a_database_that_is_away(worker: Worker, bench: Bench, database: Any) -> None:
    jobs = bench.accept(5, max_attempts=1)
    messages = [worker.put(job) for job in jobs]
    database.server.stop()
    worker.start()
    eventually(lambda: worker.gate.database_away)
    always(lambda: not any(message.acknowledged for message in messages), during=0.5)
    assert len(worker.running.all()) == 5
    database.server.start()
    bench.admin = database.server.connect(database.name)
    worker.finishes.settle()
    assert [message.acknowledged for message in messages] == [1] * 5
    assert bench.settled() == {"succeeded": 5}
    assert {bench.row(job).attempt for job in jobs} == {1}


def test_a_session_that_is_cut_costs_nothing(worker: Worker, bench: Bench) -> None:
    worker.start()
    worker.put(bench.accept()[0])
    worker.finishes.settle()
    assert terminate_backends(bench.admin, "test finishes") == 1
    message = worker.put(bench.accept()[0])
    worker.finishes.settle()
    assert message.acknowledged == 1
    assert bench.settled() == {"succeeded": 2}


def test_of_a_worker_that_was_taken_for_lost_only_what_was_rescued_is_fenced_off(
    worker: Worker, bench: Bench, database: Any
) -> None:
    jobs = bench.accept(4)
    messages = [worker.put(job) for job in jobs]
    with connect(database.dsn("worker"), "test steward") as steward:
        assert workers.rescue(steward, {}, [workers.ClaimKey(jobs[1], 1, 1)], "steward")
        claimed = claims.claim(steward, uuid4(), [(jobs[1], 2)])[0]
    before = bench.row(jobs[1])
    assert claimed.answer is Answer.TAKEN
    worker.start()
    worker.finishes.settle()
    assert bench.row(jobs[1]) == before, "the frozen worker that wakes changes nothing"
    assert [bench.status(job) for job in jobs] == ["succeeded", "processing", "succeeded", "succeeded"]
    assert [message.acknowledged for message in messages] == [1] * 4, "a lost one is over, too"
    bench.check()


def test_a_finish_that_waits_wins_over_a_cancel(worker: Worker, bench: Bench) -> None:
    (job,) = bench.accept()
    worker.put(job)
    assert bench.cancel(job) == "asked"
    worker.start()
    worker.finishes.settle()
    assert bench.settled() == {"succeeded": 1}


def test_who_outruns_the_database_waits(bench: Bench, database: Any) -> None:
    worker = Worker(database.dsn("worker"), most=2)
    try:
        jobs = bench.accept(3)
        messages = [worker.put(job) for job in jobs[:2]]
        third = Thread(target=worker.put, args=[jobs[2]])
        third.start()
        eventually(lambda: len(worker.running.all()) == 3)
        always(third.is_alive, during=0.3)
        worker.start()
        third.join(10)
        assert not third.is_alive()
        worker.finishes.settle()
        assert [message.acknowledged for message in messages] == [1, 1]
    finally:
        worker.close()
    assert bench.settled() == {"succeeded": 3}


def test_what_cannot_be_written_is_given_up_with_its_message_when_the_process_must_go(
    worker: Worker, bench: Bench, database: Any
) -> None:
    jobs = bench.accept(3)
    messages = [worker.put(job) for job in jobs]
    with locked(database, jobs[1]):
        worker.start()
        eventually(lambda: [m.acknowledged for m in messages] == [1, 0, 1])
        worker.give_up.set()
        begun = time.monotonic()
        worker.finishes.settle()
        assert time.monotonic() - begun < 5
    assert worker.running.all() == []
    assert messages[1].acknowledged == 0, "its message goes back"
    assert bench.status(jobs[1]) == "processing", "the steward of another process rescues it"
