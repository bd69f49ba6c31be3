"""Heartbeat, steward and gate, turn by turn, on a real database."""

import threading
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from actors.decide import FREE_RELEASES, backoff
from actors.errors import RenderStopped, Stop
from actors.gate import Gate
from actors.heartbeat import BACKOFF_BASE_MS, BACKOFF_CAP_MS, Heartbeat
from actors.kept_connection import KeptConnection
from actors.not_yet import GIVE_UP_SECONDS, Patience
from actors.running import Running
from actors.steward import Steward
from db import claims, workers
from db.claims import Answer, Claim, Ended
from db.errors import Unavailable
from support.bench import Bench, terminate_backends
from support.ends import finish

ARTIFACT = "sha256:" + "a" * 64


class Broker:
    """Writes down what the gate asks of the broker."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def pause_fetching(self) -> None:
        self.said.append("pause")

    def resume_fetching(self) -> None:
        self.said.append("resume")

    def drain(self) -> None:
        self.said.append("drain")


class Worker:
    """A worker process without its threads."""

    def __init__(self, dsn: str) -> None:
        self.id = uuid4()
        self.database = KeptConnection(dsn, "test")
        self.broker = Broker()
        self.gate = Gate(self.broker)
        self.running = Running()
        self.heartbeat = Heartbeat(self.id, self.database, self.gate, self.running, threads=1)
        self.steward = Steward(self.id, self.database, lost_seconds=15, render_seconds=60)

    def claim(self, job: UUID, number: int = 1) -> Claim:
        with self.database.connection() as conn:
            claimed = claims.claim(conn, self.id, [(job, number)])[0]
        assert claimed.answer is Answer.TAKEN
        assert claimed.claim is not None
        return claimed.claim

    def finish(self, claim: Claim) -> Ended:
        with self.database.connection() as conn:
            return finish(conn, self.id, claim, ARTIFACT, 1)


@pytest.fixture
def worker(database: Any) -> Any:
    found = Worker(database.dsn("worker"))
    yield found
    found.database.close()


@pytest.fixture
def other(database: Any) -> Any:
    found = Worker(database.dsn("worker"))
    yield found
    found.database.close()


def test_nothing_is_fetched_before_the_first_beat_took(worker: Worker) -> None:
    assert worker.broker.said == ["pause"]
    worker.heartbeat.beat()
    assert worker.broker.said == ["pause", "resume"]


def test_a_lost_connection_closes_the_gate_and_the_next_beat_opens_it(worker: Worker, bench: Bench) -> None:
    worker.heartbeat.beat()
    assert terminate_backends(bench.admin, "test") == 1
    assert not worker.heartbeat.try_beat()
    assert worker.gate.database_away
    assert worker.heartbeat.try_beat()
    assert not worker.gate.database_away
    assert worker.broker.said == ["pause", "resume", "pause", "resume"]


def test_a_gate_that_stops_stays_closed(worker: Worker) -> None:
    worker.gate.stop()
    worker.heartbeat.beat()
    assert worker.broker.said == ["pause", "pause", "drain"]


def test_a_claim_that_nobody_runs_is_released_at_the_second_beat_and_spends_nothing(
    worker: Worker, bench: Bench
) -> None:
    (job,) = bench.accept(max_attempts=1)
    worker.claim(job)
    worker.heartbeat.beat()
    assert bench.status(job) == "processing"
    worker.heartbeat.beat()
    assert bench.types(job) == ["accepted", "claimed", "released"]
    assert bench.row(job).attempt == 0
    bench.check()


def test_a_claim_that_is_forgotten_again_and_again_waits_longer_and_is_bounded(
    worker: Worker, bench: Bench
) -> None:
    (job,) = bench.accept(max_attempts=1)
    for number in range(1, FREE_RELEASES + 2):
        worker.claim(job, number)
        worker.heartbeat.beat()
        worker.heartbeat.beat()
    forgotten = ["claimed", "released"] * FREE_RELEASES
    assert bench.types(job) == ["accepted", *forgotten, "claimed", "died"]
    assert (bench.row(job).attempt, bench.row(job).error_class) == (1, "ClaimForgotten")
    released = [event for event in bench.events(job) if event.type == "released"]
    waits = [
        (datetime.fromisoformat(e.data["not_before"]) - e.at) / timedelta(milliseconds=1) for e in released
    ]
    assert waits == [backoff(n, str(job), BACKOFF_BASE_MS, BACKOFF_CAP_MS) for n in range(1, len(waits) + 1)]
    assert waits[-1] > 100 * waits[0]
    bench.check()


def test_a_message_that_comes_while_its_claim_is_released_does_not_adopt_it(
    worker: Worker, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = bench.accept()
    worker.claim(job)
    worker.heartbeat.beat()
    entered: list[Any] = []
    end = claims.end

    def ending(*arguments: Any, **words: Any) -> Ended:
        entered.append(worker.running.enter(job, 1))
        return end(*arguments, **words)

    monkeypatch.setattr(claims, "end", ending)
    worker.heartbeat.beat()
    assert entered == [None]
    assert bench.types(job)[-1] == "released"
    assert worker.running.all() == []


def test_a_claim_that_is_run_is_left_alone(worker: Worker, bench: Bench) -> None:
    (job,) = bench.accept()
    run = worker.running.enter(job, 1)
    assert run is not None
    run.claim = worker.claim(job)
    for _ in range(3):
        worker.heartbeat.beat()
    assert bench.status(job) == "processing"
    assert run.stopped is None
    assert worker.running.enter(job, 1) is None, "a message that came twice is dropped"


def test_a_run_whose_claim_was_taken_away_is_stopped_at_the_second_beat(worker: Worker, bench: Bench) -> None:
    (job,) = bench.accept()
    run = worker.running.enter(job, 1)
    assert run is not None
    run.claim = worker.claim(job)
    worker.heartbeat.beat()
    with worker.database.connection() as conn:
        workers.rescue(conn, {worker.id: workers.heartbeats(conn)[worker.id]}, (), "test")
    worker.heartbeat.beat()
    assert run.stopped is None
    worker.heartbeat.beat()
    assert run.stopped is Stop.LOST
    with pytest.raises(RenderStopped):
        run.begin_ending(rendered=True)


def test_a_cancel_request_reaches_the_run_at_the_next_beat(worker: Worker, bench: Bench) -> None:
    (job,) = bench.accept()
    run = worker.running.enter(job, 1)
    assert run is not None
    run.claim = worker.claim(job)
    bench.cancel(job)
    worker.heartbeat.beat()
    assert run.stopped is Stop.CANCELLED


def test_a_finish_that_has_begun_wins_over_a_shutdown(worker: Worker) -> None:
    early, late, rendered = (worker.running.enter(uuid4(), 1) for _ in range(3))
    assert early is not None
    assert late is not None
    assert rendered is not None
    early.begin_ending(rendered=True)
    assert worker.running.stop_all(Stop.SHUTDOWN) == 2
    assert early.stopped is None
    rendered.begin_ending(rendered=True)  # its bytes are there: they are finished, not thrown away
    with pytest.raises(RenderStopped):
        late.begin_ending(rendered=False)
    after = worker.running.enter(uuid4(), 1)
    assert after is not None
    assert after.stopped is Stop.SHUTDOWN


def age(bench: Bench, job: UUID, by: str) -> None:
    """Make the job's claim older."""
    bench.admin.execute("UPDATE jobs SET claimed_at = claimed_at - %s::interval WHERE id = %s", [by, job])


def reads(steward: Steward, since: float, seconds: float) -> float:
    """Let the steward look every 3 s for so long, by its own clock; return the time of the last look."""
    now = since
    while now < since + seconds:
        now += 3
        steward.look(now)
    return now


def test_a_worker_is_lost_after_15_seconds_of_the_stewards_own_reading(
    worker: Worker, other: Worker, bench: Bench
) -> None:
    (job,) = bench.accept()
    other.heartbeat.beat()
    claim = other.claim(job)
    worker.steward.look(0)
    now = reads(worker.steward, 0, 12)
    assert bench.status(job) == "processing"
    reads(worker.steward, now, 3)
    assert bench.types(job) == ["accepted", "claimed", "rescued"]
    assert other.finish(claim) is Ended.LOST
    bench.check()


def test_time_in_which_the_steward_could_not_read_does_not_count(
    worker: Worker, other: Worker, bench: Bench
) -> None:
    (job,) = bench.accept()
    other.heartbeat.beat()
    other.claim(job)
    age(bench, job, "10 minutes")
    worker.steward.look(0)
    now = reads(worker.steward, 0, 12)
    worker.steward.look(now + 600)  # the database was away for ten minutes, for everybody
    reads(worker.steward, now + 600, 12)
    assert bench.status(job) == "processing"
    other.heartbeat.beat()
    reads(worker.steward, now + 612, 3)
    assert bench.status(job) == "processing"


def test_a_claim_without_a_workers_row_is_rescued_too(worker: Worker, bench: Bench) -> None:
    (job,) = bench.accept()
    stranger = Worker(worker.database._dsn)
    stranger.claim(job)
    stranger.database.close()
    worker.steward.look(0)
    reads(worker.steward, 0, 15)
    assert bench.types(job)[-1] == "rescued"


def beating(steward: Steward, other: Worker, since: float, seconds: float) -> float:
    """As `reads`, while the other worker beats."""
    now = since
    while now < since + seconds:
        with other.database.connection() as conn:
            workers.beat(conn, other.id, "host", 1, 1)
        now = reads(steward, now, 3)
    return now


def test_a_claim_that_was_watched_for_longer_than_any_render_is_rescued_though_its_worker_lives(
    worker: Worker, other: Worker, bench: Bench
) -> None:
    (job,) = bench.accept(max_attempts=1000)
    claim = other.claim(job)
    worker.steward.look(0)
    now = beating(worker.steward, other, 0, 60 + 30 - 3)
    assert bench.status(job) == "processing"
    now = beating(worker.steward, other, now, 3)
    assert bench.types(job) == ["accepted", "claimed", "rescued"]
    assert other.finish(claim) is Ended.LOST
    other.claim(job, 2)
    beating(worker.steward, other, now, 60 + 30 - 3)
    assert bench.status(job) == "processing", "the next claim of the same job has its own time"
    bench.check()


@pytest.mark.parametrize("step", ["1 hour", "-1 hour"])
def test_a_step_of_the_databases_clock_rescues_nobody(
    worker: Worker, other: Worker, bench: Bench, step: str
) -> None:
    worker.steward.look(0)
    now = beating(worker.steward, other, 0, 120)
    (job,) = bench.accept()
    claim = other.claim(job)
    now = beating(worker.steward, other, now, 3)
    # What the clock wrote before its step lies that much further back, or ahead, after it.
    age(bench, job, step)
    bench.admin.execute("UPDATE workers SET started_at = started_at - %s::interval", [step])
    beating(worker.steward, other, now, 60 + 30 - 6)
    assert bench.status(job) == "processing"
    assert other.finish(claim) is Ended.DONE


def test_a_claim_watched_across_a_gap_begins_anew(worker: Worker, other: Worker, bench: Bench) -> None:
    (job,) = bench.accept()
    other.claim(job)
    worker.steward.look(0)
    now = beating(worker.steward, other, 0, 84)
    worker.steward.look(now + 600)  # nobody could end anything meanwhile
    now = beating(worker.steward, other, now + 600, 84)
    assert bench.status(job) == "processing"
    beating(worker.steward, other, now, 6)
    assert bench.types(job)[-1] == "rescued"


def test_time_in_which_nothing_could_be_written_does_not_count(
    worker: Worker, other: Worker, bench: Bench, database: Any
) -> None:
    (job,) = bench.accept(max_attempts=1)
    other.heartbeat.beat()
    other.claim(job)
    worker.steward.look(0)
    now = reads(worker.steward, 0, 12)
    name = database.name.encode()
    bench.admin.execute(b"ALTER DATABASE " + name + b" SET default_transaction_read_only = on")
    terminate_backends(bench.admin, "test")
    with pytest.raises(Unavailable, match=r"connection|57P01"):
        worker.steward.look(now)
    for _ in range(20):  # it reads that the other's heartbeat stays, which is not the other's fault
        now += 3
        with pytest.raises(Unavailable, match="25006"):
            worker.steward.look(now)
    bench.admin.execute("SET default_transaction_read_only = off")
    bench.admin.execute(b"ALTER DATABASE " + name + b" RESET default_transaction_read_only")
    worker.steward.look(now + 3)
    now = reads(worker.steward, now + 3, 12)
    assert bench.status(job) == "processing"
    reads(worker.steward, now, 3)
    assert bench.types(job)[-1] == "died", "that long it was silent by itself"


def test_rows_of_processes_long_gone_are_forgotten(worker: Worker, bench: Bench) -> None:
    bench.admin.execute(
        "INSERT INTO workers (id, host, pid, threads, heartbeat_at)"
        " VALUES (%s, 'h', 1, 1, now() - interval '2 days')",
        [uuid4()],
    )
    worker.heartbeat.beat()
    worker.steward.look(0)
    with worker.database.connection() as conn:
        assert list(workers.heartbeats(conn)) == [worker.id]
        assert workers.forget(conn, timedelta(days=1)) == 0


def test_patience_doubles_up_to_a_second_and_ends_after_a_minute() -> None:
    now = [0.0]
    patience = Patience(lambda: now[0])
    job = uuid4()
    assert [patience.next_ms(job, 1) for _ in range(7)] == [50, 100, 200, 400, 800, 1000, 1000]
    now[0] = GIVE_UP_SECONDS
    assert patience.next_ms(job, 1) is None
    assert patience.next_ms(job, 1) == 50, "published again: from the start"
    patience.over(job, 1)
    assert patience.next_ms(job, 1) == 50


def test_a_run_is_entered_by_one_of_many_threads() -> None:
    running, job, entered = Running(), uuid4(), []
    barrier = threading.Barrier(8)

    def enter() -> None:
        barrier.wait()
        if running.enter(job, 1) is not None:
            entered.append(1)

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entered) == 1
