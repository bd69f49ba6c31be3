"""Real worker processes under the stock `dramatiq` command, with real PostgreSQL and Valkey."""

import os
import signal
import time
from collections import Counter
from datetime import datetime
from typing import Any

import psutil
import pytest

from support.bench import Bench, terminate_backends
from support.kinds import kinds
from support.processes import Processes
from support.valkey import Valkey
from support.waiting import always, eventually

# What depends on the server's version is tested on each in test_transitions.py; these take long.
pytestmark = pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)


def starts(whole: Processes, job: Any = None) -> int:
    return sum(r["phase"] == "start" and job in {None, r["job"]} for r in whole.renders())


def rendering(bench: Bench, whole: Processes, job: Any) -> None:
    eventually(lambda: starts(whole, str(job)) and bench.status(job) == "processing")


def test_jobs_are_rendered_once_and_their_previews_are_there(bench: Bench, whole: Processes) -> None:
    whole.worker()
    pages = bench.accept(20, content=b"text\n") + bench.accept(5, kind="thumbnail", content=b"%PDF-1.7\n")
    assert bench.settled() == {"succeeded": 25}
    assert Counter(r["job"] for r in whole.renders() if r["phase"] == "start") == {str(j): 1 for j in pages}
    assert {r["outcome"] for r in whole.renders() if r["phase"] == "end"} == {"rendered"}
    artifacts = {bench.row(job).artifact for job in pages}
    assert len(artifacts) == 2, "same digest, kind and size: same bytes"
    for artifact in artifacts:
        assert artifact
        assert bench.blobs.read(artifact).startswith(b"\x89PNG")


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_job_is_started_exactly_max_attempts_times(bench: Bench, whole: Processes, most: int) -> None:
    whole.worker(ONCOMMIT_BACKOFF_BASE_MS="1", ONCOMMIT_RENDER_TIMEOUT_SECONDS="1")
    faults: dict[str, dict[str, Any]] = {
        "SimulatedFailure": {"fail_first": 1000},
        "RenderCrashed": {"crash": "child"},
        "RenderTimeout": {"hang": True},
        "RenderMemory": {"allocate_mb": 9999},
    }
    jobs = {error: bench.accept(max_attempts=most, **fault)[0] for error, fault in faults.items()}
    assert bench.settled() == {"dead": 4}
    for error, job in jobs.items():
        assert starts(whole, str(job)) == most
        assert bench.row(job).error_class == error
        assert bench.types(job) == ["accepted", *["claimed", "failed"] * (most - 1), "claimed", "died"]


def test_seventy_failures_then_success(bench: Bench, whole: Processes) -> None:
    whole.worker(ONCOMMIT_BACKOFF_BASE_MS="1", ONCOMMIT_BACKOFF_CAP_MS="50")
    (job,) = bench.accept(max_attempts=100, fail_first=70)
    assert bench.settled(timeout=60) == {"succeeded": 1}
    assert starts(whole, str(job)) == 71
    for event in bench.events(job):
        if due := event.data.get("not_before"):
            assert (datetime.fromisoformat(due) - event.at).total_seconds() <= 0.050


def test_a_permanent_error_is_dead_at_once(bench: Bench, whole: Processes) -> None:
    whole.worker()
    jobs = [*bench.accept(fail_permanently=True), *bench.accept(content=b"")]
    assert bench.settled() == {"dead": 2}
    assert [bench.row(job).error_class for job in jobs] == [
        "SimulatedPermanentFailure",
        "UnsupportedDocument",
    ]
    assert starts(whole) == 2


def test_a_document_that_kills_its_worker_is_bounded_and_hurts_no_other(
    bench: Bench, whole: Processes
) -> None:
    (pill,) = bench.accept(max_attempts=2, crash="worker")
    bench.accept(10)
    # Not waited for: the pill may kill one before it has said that it is ready.
    workers = [whole.worker(ready=False, ONCOMMIT_WORKER_LOST_SECONDS="2") for _ in range(2)]

    def restarted() -> bool:
        for worker in workers:
            if not worker.running:
                assert worker.returncode not in {0, None}, "whoever supervises must see it"
                worker.restart()
        return bench.status(pill) == "dead"

    eventually(restarted, timeout=60)
    for worker in workers:
        if not worker.running:
            worker.restart()
    assert bench.settled() == {"succeeded": 10, "dead": 1}
    assert starts(whole, str(pill)) == 2
    assert bench.row(pill).error_class == "WorkerLost"


def test_a_cancelled_render_stops_within_two_seconds(bench: Bench, whole: Processes) -> None:
    whole.worker()
    (job,) = bench.accept(sleep_ms=60_000)
    rendering(bench, whole, job)
    assert bench.cancel(job) == "asked"
    begun = time.monotonic()
    assert bench.settled() == {"cancelled": 1}
    assert time.monotonic() - begun < 2
    assert bench.types(job)[-2:] == ["cancel_requested", "cancelled"]


def test_sigterm_gives_grace_and_then_releases_without_spending(bench: Bench, whole: Processes) -> None:
    first = whole.worker(threads=2, ONCOMMIT_SHUTDOWN_GRACE_SECONDS="3")
    (short,) = bench.accept(max_attempts=1, sleep_ms=2000)
    (long,) = bench.accept(max_attempts=1, sleep_ms=20_000)
    waiting = bench.accept(4, max_attempts=1)
    rendering(bench, whole, short)
    rendering(bench, whole, long)
    first.signal(signal.SIGTERM)
    assert first.wait_ended() == 0
    assert bench.status(short) == "succeeded"
    assert bench.types(long) == ["accepted", "claimed", "released"]
    assert (bench.row(long).attempt, bench.row(long).releases) == (0, 1)
    row = bench.admin.execute("SELECT count(*) FROM workers").fetchone()
    assert row == (0,), "it said goodbye"
    whole.worker()
    eventually(lambda: all(bench.status(job) == "succeeded" for job in waiting), timeout=10)
    bench.cancel(long)
    bench.settled()
    assert starts(whole, str(short)) == 1


def test_a_stop_of_every_process_at_once_is_orderly_too(bench: Bench, whole: Processes) -> None:
    worker = whole.worker(ONCOMMIT_SHUTDOWN_GRACE_SECONDS="10")
    (job,) = bench.accept(max_attempts=1, sleep_ms=2000)
    rendering(bench, whole, job)
    everyone = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    for process in everyone:
        process.send_signal(signal.SIGTERM)
    worker.wait_ended()
    assert bench.settled() == {"succeeded": 1}
    assert starts(whole, str(job)) == 1


def test_a_stop_while_redis_is_away_ends_and_spends_nothing(
    bench: Bench, whole: Processes, valkey: Valkey
) -> None:
    worker = whole.worker(ONCOMMIT_SHUTDOWN_GRACE_SECONDS="1")
    (job,) = bench.accept(max_attempts=1, sleep_ms=20_000)
    rendering(bench, whole, job)
    valkey.freeze()
    worker.signal(signal.SIGTERM)
    worker.wait_ended(timeout=40)
    valkey.thaw()
    assert bench.row(job).attempt == 0
    assert bench.types(job)[-1] == "released"


def test_a_killed_workers_job_starts_elsewhere(bench: Bench, whole: Processes) -> None:
    first = whole.worker(threads=1, ONCOMMIT_WORKER_LOST_SECONDS="2")
    (job,) = bench.accept(max_attempts=2, sleep_ms=4000)
    rendering(bench, whole, job)
    first.kill()
    whole.worker(threads=1, ONCOMMIT_WORKER_LOST_SECONDS="2")
    assert bench.settled() == {"succeeded": 1}
    assert bench.types(job) == ["accepted", "claimed", "rescued", "claimed", "succeeded"]
    assert starts(whole, str(job)) == 2


def test_a_frozen_worker_that_wakes_changes_nothing(bench: Bench, whole: Processes) -> None:
    first = whole.worker(threads=1, ONCOMMIT_WORKER_LOST_SECONDS="2")
    (job,) = bench.accept(max_attempts=2, sleep_ms=1000)
    rendering(bench, whole, job)
    frozen = first.worker_pid
    os.kill(frozen, signal.SIGSTOP)
    whole.worker(threads=1, ONCOMMIT_WORKER_LOST_SECONDS="2")
    assert bench.settled() == {"succeeded": 1}
    before = bench.row(job)
    os.kill(frozen, signal.SIGCONT)
    first.wait_log('"outcome":"lost"')
    assert bench.row(job) == before
    assert first.running, "being late is no reason to die"
    bench.check()


def test_database_away_for_a_while_costs_no_attempt_and_no_worker(
    bench: Bench, whole: Processes, database: Any
) -> None:
    worker = whole.worker(threads=2, ONCOMMIT_WORKER_LOST_SECONDS="2")
    pid = worker.worker_pid
    jobs = bench.accept(2, max_attempts=1, sleep_ms=1000)
    for job in jobs:
        rendering(bench, whole, job)
    database.server.stop()
    eventually(lambda: worker.get("/readyz") == 503)
    always(lambda: worker.get("/livez") == 200, during=5)
    database.server.start()
    bench.admin = database.server.connect(database.name)
    assert bench.settled(jobs) == {"succeeded": 2}
    assert starts(whole) == 2
    eventually(lambda: worker.get("/readyz") == 200)
    assert worker.worker_pid == pid


def test_sessions_cut_under_load_lose_nothing(bench: Bench, whole: Processes) -> None:
    whole.worker(threads=2)
    jobs = bench.accept(60, max_attempts=1, sleep_ms=20)
    for _ in range(5):
        terminate_backends(bench.admin, "oncommit worker")
        terminate_backends(bench.admin, "oncommit worker heartbeat")
        done = sum(bench.status(job) == "succeeded" for job in jobs)
        eventually(lambda done=done: sum(bench.status(j) == "succeeded" for j in jobs) >= min(done + 3, 60))
    assert bench.settled() == {"succeeded": 60}
    assert starts(whole) == 60


def test_a_dead_loop_ends_the_process_non_zero(bench: Bench, whole: Processes) -> None:
    del bench
    worker = whole.worker(ready=False, ONCOMMIT_FAILPOINTS="heartbeat.before=raise@5")
    assert worker.wait_ended() == 70
    assert "the thread heartbeat failed" in worker.log_text()


@pytest.mark.parametrize(
    "place", ["claim.after", "render.before", "artifact.before", "finish.before", "finish.after"]
)
def test_killed_at_any_place_the_job_ends_once(bench: Bench, whole: Processes, place: str) -> None:
    doomed = whole.worker(threads=1, ONCOMMIT_FAILPOINTS=f"{place}=kill", ONCOMMIT_WORKER_LOST_SECONDS="2")
    (job,) = bench.accept(max_attempts=2)
    doomed.wait_ended()
    whole.worker(threads=1, ONCOMMIT_WORKER_LOST_SECONDS="2")
    assert bench.settled() == {"succeeded": 1}
    again = place != "finish.after"
    assert ("rescued" in bench.types(job)) is again
    assert bench.types(job).count("succeeded") == 1


def test_unreadable_arguments_are_put_aside(bench: Bench, whole: Processes) -> None:
    (job,) = bench.accept()
    bench.admin.execute(
        """UPDATE outbox SET body = replace(body, '"args":["', '"args":["x","')""",
    )
    whole.worker()
    assert bench.settled() == {"dead": 1}
    assert bench.row(job).error_class == "Quarantined"
    assert starts(whole) == 0


def test_a_cap_and_a_pause_hold_also_when_redis_does_not_know_them(bench: Bench, whole: Processes) -> None:
    whole.worker(threads=4)
    bench.set_lane("acme", max_running=1)
    jobs = bench.accept(4, sleep_ms=200)
    assert bench.settled(jobs) == {"succeeded": 4}
    running = 0
    for line in sorted(whole.renders(), key=lambda r: (r["time"], r["phase"] == "start")):
        running += 1 if line["phase"] == "start" else -1
        assert running <= 1
    bench.set_lane("*", paused=True)
    held = bench.accept(2)
    always(lambda: starts(whole) == 4, during=1)
    bench.set_lane("*", paused=False)
    assert bench.settled(held) == {"succeeded": 2}
