"""Finishes that wait in a real worker process: what may happen to it, to its database and to its messages."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.bench import Bench
from support.kinds import kinds
from support.processes import Processes, Running
from support.valkey import Valkey
from support.waiting import always, eventually

pytestmark = pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)


def starts(whole: Processes, job: Any = None) -> int:
    return sum(r["phase"] == "start" and job in {None, r["job"]} for r in whole.renders())


def ends(whole: Processes) -> int:
    return sum(r["phase"] == "end" for r in whole.renders())


def in_flight(valkey: Valkey) -> int:
    return int(valkey.client.hlen("oncommit:previews:holder"))  # type: ignore[arg-type]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that is there while a finish is held."""
    return tmp_path / "finish-held"


def held(whole: Processes, gate: Path, **settings: str) -> Running:
    """Start a worker of two threads whose finishes wait as long as the file is there."""
    failpoints = {"ONCOMMIT_FAILPOINTS": f"finish.before=pause:{gate}"}
    return whole.worker(threads=2, **failpoints, ONCOMMIT_WORKER_LOST_SECONDS="2", **settings)


def test_a_thread_goes_on_while_its_finish_waits_and_the_teams_slot_stays_taken(
    bench: Bench, whole: Processes, valkey: Valkey, gate: Path
) -> None:
    bench.set_lane("acme", max_running=1)
    mine = bench.accept(2, max_attempts=1)
    held(whole, gate)
    eventually(gate.exists)
    bench.team("other")
    others = bench.accept(3, team="other", max_attempts=1)
    eventually(lambda: ends(whole) == 4, describe="more renders than threads ended meanwhile")
    always(lambda: sum(starts(whole, str(job)) for job in mine) == 1, during=1)
    assert in_flight(valkey) == 4, "no message is acknowledged before its finish is committed"
    assert {bench.status(job) for job in others} == {"processing"}
    gate.unlink()
    # It stops at each group.
    eventually(lambda: gate.unlink(missing_ok=True) or bench.status(mine[1]) == "succeeded")
    assert bench.settled() == {"succeeded": 5}
    assert starts(whole) == 5
    eventually(lambda: in_flight(valkey) == 0)


def test_a_stop_writes_what_waits_within_its_grace(
    bench: Bench, whole: Processes, valkey: Valkey, gate: Path
) -> None:
    worker = held(whole, gate, ONCOMMIT_SHUTDOWN_GRACE_SECONDS="20")
    jobs = bench.accept(5, max_attempts=1)
    eventually(lambda: ends(whole) == 5)
    worker.signal(signal.SIGTERM)
    eventually(lambda: worker.get("/readyz") != 200)
    always(lambda: worker.running and in_flight(valkey) == 5, during=1)
    eventually(lambda: gate.unlink(missing_ok=True) or not worker.running)
    assert worker.returncode == 0
    assert [bench.types(job) for job in jobs] == [["accepted", "claimed", "succeeded"]] * 5
    assert starts(whole) == 5
    assert valkey.client.hlen("oncommit:previews:messages") == 0, "each was acknowledged"
    bench.check()


def test_a_killed_worker_costs_one_attempt_for_each_finish_that_waited(
    bench: Bench, whole: Processes, gate: Path
) -> None:
    worker = held(whole, gate)
    jobs = bench.accept(5, max_attempts=2)
    eventually(lambda: ends(whole) == 5)
    worker.kill()
    whole.worker(threads=2, ONCOMMIT_WORKER_LOST_SECONDS="2")
    assert bench.settled() == {"succeeded": 5}
    for job in jobs:
        assert bench.types(job) == ["accepted", "claimed", "rescued", "claimed", "succeeded"]
        assert (starts(whole, str(job)), bench.row(job).attempt) == (2, 2)


def test_a_frozen_worker_that_wakes_with_finishes_waiting_changes_nothing(
    bench: Bench, whole: Processes, gate: Path
) -> None:
    worker = held(whole, gate)
    jobs = bench.accept(3, max_attempts=2)
    eventually(lambda: ends(whole) == 3)
    frozen = worker.worker_pid
    os.kill(frozen, signal.SIGSTOP)
    whole.worker(threads=2, ONCOMMIT_WORKER_LOST_SECONDS="2")
    assert bench.settled() == {"succeeded": 3}
    before = [bench.row(job) for job in jobs]
    os.kill(frozen, signal.SIGCONT)
    eventually(lambda: gate.unlink(missing_ok=True) or worker.log_text().count('"outcome":"lost"') == 3)
    assert [bench.row(job) for job in jobs] == before
    assert worker.running
    bench.check()


def test_finishes_that_wait_outlast_the_database(
    bench: Bench, whole: Processes, database: Any, gate: Path
) -> None:
    held(whole, gate)
    jobs = bench.accept(4, max_attempts=1)
    eventually(lambda: ends(whole) == 4)
    database.server.stop()
    gate.unlink()
    database.server.start()
    bench.admin = database.server.connect(database.name)
    eventually(lambda: gate.unlink(missing_ok=True) or all(bench.status(job) == "succeeded" for job in jobs))
    assert bench.settled() == {"succeeded": 4}
    assert starts(whole) == 4


def test_a_dead_finisher_ends_the_process_non_zero_and_costs_an_attempt(
    bench: Bench, whole: Processes
) -> None:
    settings = {"ONCOMMIT_FAILPOINTS": "finish.before=raise", "ONCOMMIT_WORKER_LOST_SECONDS": "2"}
    worker = whole.worker(threads=2, **settings)
    (job,) = bench.accept(max_attempts=2)
    assert worker.wait_ended() == 70
    assert "the thread finishes failed" in worker.log_text()
    whole.worker(threads=2, ONCOMMIT_WORKER_LOST_SECONDS="2")
    assert bench.settled() == {"succeeded": 1}
    assert bench.types(job) == ["accepted", "claimed", "rescued", "claimed", "succeeded"]


def test_a_stop_ends_though_the_database_is_frozen(bench: Bench, whole: Processes, database: Any) -> None:
    worker = whole.worker(threads=2, ONCOMMIT_SHUTDOWN_GRACE_SECONDS="1")
    del bench
    database.server.freeze()
    # A beat stands in its call by then, and holds the connection that a goodbye needs.
    eventually(lambda: worker.get("/readyz") != 200)
    worker.signal(signal.SIGTERM)
    assert worker.wait_ended(timeout=60) in {0, 70}
