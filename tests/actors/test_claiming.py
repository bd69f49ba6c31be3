"""Claims ahead of the threads: one commit for what a fetch brought, and nothing is claimed for nobody."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any
from uuid import UUID, uuid4

import pytest

from actors.claiming import Claiming
from actors.ending import Ends
from actors.errors import RenderStopped, Stop
from actors.gate import Gate
from actors.kept_connection import KeptConnection
from actors.running import Running
from db import claims, pool
from db.claims import Answer, Claimed
from runtime.settings import Settings
from support.bench import Bench
from support.waiting import eventually

COMMITS = "SELECT count(DISTINCT xmin::text) FROM job_events WHERE type = 'claimed'"


class Broker:
    def pause_fetching(self) -> None: ...

    def resume_fetching(self) -> None: ...

    def drain(self) -> None: ...


@dataclass
class Message:
    """A message as it was fetched."""

    job: UUID
    number: int = 1
    actor_name: str = "render_preview"
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def lane_id(self) -> str:
        return f"acme|{self.job}.{self.number}"

    @property
    def args(self) -> tuple[str, int]:
        return str(self.job), self.number


class Worker:
    def __init__(self, dsn: str) -> None:

        self.id = uuid4()
        self.gate = Gate(Broker())
        self.gate.back()
        self.running = Running()
        self.kept = KeptConnection(dsn, "test claiming")
        self.pool = pool.pool(dsn, "test ends", size=2, timeout=2.0)
        ends = Ends(self.id, self.pool, self.gate, Settings(), Event())
        self.claiming = Claiming(
            self.id, self.kept, self.gate, self.running, actor="render_preview", give_back=ends.end
        )

    def close(self) -> None:
        self.kept.close()
        self.pool.close()


@pytest.fixture
def worker(database: Any) -> Iterator[Worker]:
    found = Worker(database.dsn("worker"))
    yield found
    found.close()


def test_one_commit_claims_what_a_fetch_brought(worker: Worker, bench: Bench, database: Any) -> None:
    messages = [Message(job) for job in bench.accept(5)]
    foreign, unreadable = Message(uuid4(), actor_name="mine"), Message(uuid4(), kwargs={"more": 1})
    worker.claiming.prepare([*messages, foreign, unreadable])
    assert database.admin.execute(COMMITS).fetchone() == (1,)
    for message in messages:
        prepared = worker.claiming.take(message.lane_id)
        assert prepared is not None
        assert prepared.claimed.answer is Answer.TAKEN
        assert prepared.run.claim == prepared.claimed.claim
        assert worker.claiming.take(message.lane_id) is None, "one thread begins it"
    assert worker.claiming.take(foreign.lane_id) is None
    assert worker.claiming.take(unreadable.lane_id) is None
    assert {run.job for run in worker.running.all()} == {message.job for message in messages}


def test_what_is_in_hand_or_held_by_somebody_is_left_to_its_thread(
    worker: Worker, bench: Bench, database: Any
) -> None:
    twice, held, free = (Message(job) for job in bench.accept(3))
    assert worker.running.enter(twice.job, 1) is not None
    with database.server.connect(database.name) as holder:
        holder.execute("BEGIN")
        holder.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [held.job])
        worker.claiming.prepare([twice, held, free])
    assert worker.claiming.take(twice.lane_id) is None
    assert worker.claiming.take(held.lane_id) is None
    assert worker.claiming.take(free.lane_id) is not None
    assert {run.job for run in worker.running.all()} == {twice.job, free.job}
    assert bench.types(held.job) == ["accepted"]


def test_a_failing_statement_leaves_everything_to_the_threads(
    worker: Worker, bench: Bench, database: Any
) -> None:
    messages = [Message(job) for job in bench.accept(2)]
    database.admin.execute("REVOKE EXECUTE ON FUNCTION claim_each FROM oncommit_worker")
    worker.claiming.prepare(messages)
    assert [worker.claiming.take(message.lane_id) for message in messages] == [None, None]
    assert worker.running.all() == []
    database.admin.execute("GRANT EXECUTE ON FUNCTION claim_each TO oncommit_worker")
    worker.claiming.prepare(messages)
    assert all(worker.claiming.take(message.lane_id) for message in messages)


def given_back(worker: Worker, bench: Bench, jobs: list[UUID]) -> None:
    eventually(lambda: worker.running.all() == [])
    for job in jobs:
        assert bench.types(job) == ["accepted", "claimed", "released"]
        row = bench.row(job)
        assert (row.status, row.attempt, row.dispatch_no) == ("queued", 0, 2), "nothing is spent"
    bench.check()


def test_a_stop_gives_back_what_no_thread_has_begun(worker: Worker, bench: Bench) -> None:
    begun, *others = (Message(job) for job in bench.accept(3))
    worker.claiming.prepare([begun, *others])
    prepared = worker.claiming.take(begun.lane_id)
    assert prepared is not None
    worker.claiming.stop()
    eventually(lambda: worker.running.all() == [prepared.run])
    worker.running.leave(prepared.run)
    given_back(worker, bench, [message.job for message in others])
    assert bench.types(begun.job) == ["accepted", "claimed"], "its thread has it"
    assert all(worker.claiming.take(message.lane_id) is None for message in others)


def test_a_stop_is_over_when_everything_is_given_back(worker: Worker, bench: Bench, database: Any) -> None:
    jobs = bench.accept(2)
    worker.claiming.prepare([Message(job) for job in jobs])
    with database.server.connect(database.name) as holder, ThreadPoolExecutor(1) as threads:
        holder.execute("BEGIN")
        holder.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [jobs[0]])
        worker.claiming.stop()
        settled = threads.submit(worker.claiming.settle)
        with pytest.raises(TimeoutError):
            settled.result(timeout=1.0)
        holder.execute("COMMIT")
        settled.result(timeout=10)
    assert worker.running.all() == []
    given_back(worker, bench, jobs)


def test_one_that_cannot_be_given_back_keeps_no_other(
    worker: Worker, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = bench.accept(2)
    worker.claiming.prepare([Message(job) for job in jobs])
    end = claims.end

    def failing(conn: Any, me: UUID, claim: claims.Claim, *args: Any, **kwargs: Any) -> claims.Ended:
        if claim.job == jobs[0]:
            raise RuntimeError("a fault of this program")
        return end(conn, me, claim, *args, **kwargs)

    monkeypatch.setattr(claims, "end", failing)
    worker.claiming.stop()
    worker.claiming.settle()
    assert worker.running.all() == []
    assert bench.types(jobs[0]) == ["accepted", "claimed"]
    assert bench.types(jobs[1]) == ["accepted", "claimed", "released"]


def test_a_stop_that_comes_while_the_claim_is_on_its_way_gives_it_back(
    worker: Worker, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [Message(job) for job in bench.accept(2)]
    claim = claims.claim

    def stopped_meanwhile(*args: Any, **kwargs: Any) -> list[Claimed]:
        worker.claiming.stop()
        return claim(*args, **kwargs)

    monkeypatch.setattr(claims, "claim", stopped_meanwhile)
    worker.claiming.prepare(messages)
    given_back(worker, bench, [message.job for message in messages])


def test_a_claim_that_is_cancelled_before_its_thread_begins_it_does_not_render(
    worker: Worker, bench: Bench
) -> None:
    (message,) = (Message(job) for job in bench.accept())
    worker.claiming.prepare([message])
    (run,) = worker.running.all()
    assert run.stop(Stop.CANCELLED)
    prepared = worker.claiming.take(message.lane_id)
    assert prepared is not None
    with pytest.raises(RenderStopped):
        prepared.run.lend(None)  # type: ignore[arg-type] -- no child is reached
