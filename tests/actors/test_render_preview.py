"""The actor, message by message, in this process: each answer of a claim, each trouble around a render."""

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest

from actors import pauses
from actors.child import Renderers
from actors.ending import Ends
from actors.errors import Stop
from actors.finishing import Finishes
from actors.gate import Gate
from actors.judge import Unreadable, judge
from actors.kept_connection import KeptConnection
from actors.progress import Progress
from actors.render_log import RenderLog
from actors.render_preview import Previews
from actors.renderer import Limits
from actors.running import Running
from broker.settle import Defer
from db import claims, pool
from db.errors import Refused, Unavailable
from runtime.blobs import BlobStore, BlobStoreFull
from runtime.settings import Settings
from support.bench import Bench


class Broker:
    """The gate's other side."""

    def pause_fetching(self) -> None:
        pass

    def resume_fetching(self) -> None:
        pass

    def drain(self) -> None:
        pass


class Message:
    """A message in flight: `said` is what the actor has told it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def keep(self) -> None:
        self.said.append("kept")

    def acknowledge(self) -> None:
        self.said.append("acknowledged")


class Actor:
    """A worker process without Dramatiq; of the threads beside the work it has only the one that finishes."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.id = uuid4()
        self.database = pool.pool(dsn, "test actor", size=3, timeout=2.0)
        self.gate = Gate(Broker())
        self.gate.back()
        self.running = Running()
        self.renderers = Renderers(Limits(128 << 20, 1 << 20))
        self.blobs = BlobStore(folder / "blobs")
        self.log_path = folder / "renders.jsonl"
        self.log = RenderLog(self.log_path, self.id)
        self.give_up = Event()
        self.ends = KeptConnection(dsn, "test finishes")
        self.finishes = Finishes(self.id, self.ends, self.gate, self.running, most=4, give_up=self.give_up)
        self.stopped = Event()
        self.finisher = Thread(target=self.finishes.run, args=[self.stopped])
        self.finisher.start()
        given = Settings(backoff_base_ms=1, render_timeout_seconds=10)
        self.previews = Previews(
            worker=self.id,
            database=self.database,
            gate=self.gate,
            running=self.running,
            renderers=self.renderers,
            blobs=self.blobs,
            render_log=self.log,
            settings=given,
            finishes=self.finishes,
            progress=Progress(),
            ends=Ends(self.id, self.database, self.gate, given, self.give_up),
        )

    def handle(self, job: UUID, number: int = 1) -> list[str]:
        """Handle a message, wait until its end is written, and return what it was told."""
        message = Message()
        self.previews.handle(job, number, message)
        self.finishes.settle()
        return message.said

    def deferred(self, job: UUID, number: int = 1) -> Defer:
        with pytest.raises(Defer) as caught:
            self.previews.handle(job, number, Message())
        assert self.running.all() == []
        return caught.value

    def starts(self) -> int:
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines()]
        return sum(line["phase"] == "start" for line in lines)

    def close(self) -> None:
        self.stopped.set()
        self.finisher.join()
        self.ends.close()
        self.renderers.close()
        self.log.close()
        self.database.close()


@pytest.fixture
def actor(database: Any, tmp_path: Path) -> Iterator[Actor]:
    found = Actor(database.dsn("worker"), tmp_path)
    yield found
    found.close()


def test_a_message_that_comes_before_its_row_waits_longer_each_time(actor: Actor, bench: Bench) -> None:
    stranger = uuid4()
    assert [actor.deferred(stranger).delay_ms for _ in range(3)] == [50, 100, 200]
    (job,) = bench.accept()
    assert actor.deferred(job, 2).delay_ms == 50, "ahead of the row"


def test_a_stale_a_finished_and_anothers_message_are_consumed(actor: Actor, bench: Bench) -> None:
    (job, other) = bench.accept(2)
    actor.handle(job, 1)
    actor.handle(job, 1)
    with actor.database.connection() as conn:
        claims.claim(conn, uuid4(), [(other, 1)])
    actor.handle(other, 1)
    bench.cancel(other)
    bench.replay(other)
    assert bench.types(job) == ["accepted", "claimed", "succeeded"]
    assert actor.starts() == 1
    bench.check()


def test_pauses_and_caps_hold_the_lane_and_spend_nothing(actor: Actor, bench: Bench) -> None:
    (job, other) = bench.accept(2)
    bench.set_lane("acme", paused=True)
    assert actor.deferred(job).why == "paused"
    bench.set_lane("acme", paused=False, max_running=1)
    with actor.database.connection() as conn:
        claims.claim(conn, uuid4(), [(other, 1)])
    assert actor.deferred(job).why == "full"
    assert bench.types(job) == ["accepted"]


def test_a_worker_without_a_free_descriptor_releases_and_spends_nothing(actor: Actor, bench: Bench) -> None:
    (job,) = bench.accept(max_attempts=1)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with actor.database.connection():  # one is open, so the claim needs no new one
        pass
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        actor.handle(job, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (bench.row(job).status, bench.row(job).attempt) == ("queued", 0)
    actor.handle(job, 2)
    assert bench.status(job) == "succeeded"
    bench.check()


def test_a_render_log_that_takes_no_lines_stops_no_render(actor: Actor, bench: Bench) -> None:
    (job,) = bench.accept(max_attempts=1)
    full = RenderLog(Path("/dev/full"), actor.id)
    with patch.object(actor.previews, "_render_log", full):
        actor.handle(job, 1)
    full.close()
    assert bench.status(job) == "succeeded"
    bench.check()


def test_a_full_disk_is_released_and_spends_nothing(
    actor: Actor, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = bench.accept(max_attempts=1)

    def full(_: bytes) -> str:
        raise BlobStoreFull(errno.ENOSPC, "the blob store is full")

    with monkeypatch.context() as patched:
        patched.setattr(actor.blobs, "put_bytes", full)
        for number in (1, 2, 3):
            actor.handle(job, number)
    assert bench.row(job).attempt == 0
    assert bench.row(job).error_class == "ArtifactNotStored"
    actor.handle(job, 4)
    assert bench.status(job) == "succeeded"
    bench.check()


def test_a_document_that_is_not_there_is_released(actor: Actor, bench: Bench) -> None:
    (job,) = bench.accept(max_attempts=1, content=b"here")
    row = bench.admin.execute("SELECT document FROM jobs WHERE id = %s", [job]).fetchone()
    assert row is not None
    bench.blobs.path(row[0]).unlink()
    actor.handle(job, 1)
    assert bench.types(job) == ["accepted", "claimed", "released"]
    assert bench.row(job).error_class == "DocumentMissing"
    assert not actor.log_path.read_text(), "nothing was rendered"


@pytest.mark.parametrize("simulate", [{}, {"fail_first": 1}], ids=["finish", "end"])
def test_an_end_whose_reply_was_lost_is_repeated_until_it_is_known(
    actor: Actor, bench: Bench, monkeypatch: pytest.MonkeyPatch, simulate: dict[str, Any]
) -> None:
    (job,) = bench.accept(max_attempts=1, **simulate)
    calls: list[Any] = []

    def losing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            answer = real(*args, **kwargs)
            calls.extend(answer if isinstance(answer, list) else [answer])
            if len(calls) < 3:
                raise Unavailable("the reply was lost")
            return answer

        return call

    monkeypatch.setattr(claims, "finish_each", losing(claims.finish_each))
    monkeypatch.setattr(claims, "end", losing(claims.end))
    actor.handle(job, 1)
    assert calls == ["done", "already", "already"]
    assert bench.status(job) == ("dead" if simulate else "succeeded")
    assert actor.gate.database_away, "closed until the next heartbeat"
    bench.check()


@pytest.mark.parametrize("simulate", [{}, {"fail_first": 1}], ids=["finish", "end"])
def test_an_end_that_is_refused_is_kept_until_it_takes(
    actor: Actor, bench: Bench, monkeypatch: pytest.MonkeyPatch, simulate: dict[str, Any]
) -> None:
    # It was given up and the message consumed: the next one found its own claim and rendered once more.
    (job,) = bench.accept(max_attempts=1, **simulate)
    answers: list[Any] = []

    def without_its_table(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not answers:
                bench.admin.execute("ALTER TABLE outbox RENAME TO aside")
            try:
                answer = real(*args, **kwargs)
            except Refused as refused:
                answers.append(refused)
                bench.admin.execute("ALTER TABLE aside RENAME TO outbox")
                raise
            answers.extend(answer if isinstance(answer, list) else [answer])
            return answer

        return call

    monkeypatch.setattr(claims, "finish_each", without_its_table(claims.finish_each))
    monkeypatch.setattr(claims, "end", without_its_table(claims.end))
    monkeypatch.setattr(pauses, "REFUSED_SECONDS", 0.01)
    actor.handle(job, 1)
    assert [str(answer) for answer in answers] == ["42P01 UndefinedTable", "done"]
    assert bench.status(job) == ("dead" if simulate else "succeeded")
    assert actor.starts() == 1
    bench.check()


def test_an_end_that_cannot_be_written_is_given_up_when_the_process_must_go(
    actor: Actor, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = bench.accept()

    def away(*_: Any) -> Any:
        actor.give_up.set()
        raise Unavailable("away")

    monkeypatch.setattr(claims, "finish_each", away)
    assert actor.handle(job, 1) == ["kept"]
    assert bench.status(job) == "processing", "the steward of another process rescues it"
    assert actor.running.all() == []


def test_without_the_database_messages_go_back_and_fetching_stops(actor: Actor, bench: Bench) -> None:
    (job,) = bench.accept()
    actor.database.close()
    assert actor.deferred(job).why == "database"
    assert actor.gate.database_away
    assert actor.deferred(job).why == "database"
    assert bench.types(job) == ["accepted"]


def test_a_message_that_comes_twice_at_once_runs_once(actor: Actor, bench: Bench) -> None:
    (job,) = bench.accept()
    run = actor.running.enter(job, 1)
    assert run is not None
    actor.handle(job, 1)
    assert bench.types(job) == ["accepted"]
    actor.running.leave(run)
    actor.handle(job, 1)
    assert bench.status(job) == "succeeded"


def test_a_stop_between_claim_and_render_starts_nothing(
    actor: Actor, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = bench.accept(max_attempts=1)
    take = actor.renderers.take

    def stopping() -> Any:
        actor.running.stop_all(Stop.SHUTDOWN)
        return take()

    monkeypatch.setattr(actor.renderers, "take", stopping)
    actor.handle(job, 1)
    assert (bench.types(job)[-1], bench.row(job).attempt) == ("released", 0)
    assert not actor.log_path.read_text()


JOB = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def test_arguments_that_name_a_dispatch_are_read() -> None:
    assert judge(f"acme|{JOB}.3", [str(JOB), 3], {}) == (JOB, 3)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ([], {}),
        ([str(JOB)], {}),
        ([str(JOB), 3, 1], {}),
        ([str(JOB), 3], {"more": 1}),
        ([str(JOB), "3"], {}),
        ([str(JOB), True], {}),
        ([None, 3], {}),
        (["no uuid", 3], {}),
        ([str(JOB), 4], {}),
    ],
)
def test_other_arguments_are_unreadable(args: list[Any], kwargs: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        judge(f"acme|{JOB}.3", args, kwargs)
