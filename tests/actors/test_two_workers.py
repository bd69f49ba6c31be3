"""Two workers, and work that one of them could keep from the other; and retries among dying workers."""

import time
from uuid import UUID

import pytest

from support.bench import Bench
from support.kinds import kinds
from support.processes import Processes
from support.proxy import Proxies, proxies
from support.waiting import eventually

__all__ = ["proxies"]

pytestmark = pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)

#: While any thread anywhere is free.
STARTS_SECONDS = 5.0
#: Its waits are between half of this and this: longer than a silent consumer lives (10 s).
BACKOFF_SECONDS = 22.0


def starts(whole: Processes, *jobs: UUID) -> list[float]:
    """Return when each render of these jobs began."""
    wanted = {str(job) for job in jobs}
    return [line["time"] for line in whole.renders() if line["phase"] == "start" and line["job"] in wanted]


def test_a_worker_with_long_jobs_keeps_no_short_one_from_an_idle_worker(
    bench: Bench, whole: Processes
) -> None:
    bench.team("short")
    whole.worker(threads=2)
    long = bench.accept(3, sleep_ms=60_000, max_attempts=1)
    eventually(lambda: len(starts(whole, *long)) == 2, describe="both threads have a long job")
    whole.worker(threads=2)
    eventually(lambda: len(starts(whole, *long)) == 3, describe="the idle one takes the third at once")
    began = time.time()
    short = bench.accept(10, team="short", sleep_ms=100)
    eventually(lambda: all(bench.status(job) == "succeeded" for job in short))
    begun = starts(whole, *short)
    assert len(begun) == 10
    assert max(begun) - began < STARTS_SECONDS
    assert {bench.status(job) for job in long} == {"processing"}
    for job in long:
        bench.cancel(job)


def test_retries_that_come_due_among_dying_workers_and_a_broken_redis_run_twice_and_never_at_once(
    bench: Bench, whole: Processes, proxies: Proxies
) -> None:
    links = [proxies.to(whole.valkey.port) for _ in range(3)]  # type: ignore[attr-defined] -- a local one
    workers = [
        whole.worker(
            threads=2,
            ONCOMMIT_REDIS_URL=f"redis://127.0.0.1:{link.port}/0",
            ONCOMMIT_WORKER_LOST_SECONDS="4",
            ONCOMMIT_BACKOFF_BASE_MS=str(round(BACKOFF_SECONDS * 1000)),
            ONCOMMIT_BACKOFF_CAP_MS=str(round(BACKOFF_SECONDS * 1000)),
        )
        for link in links
    ]
    jobs = bench.accept(200, fail_first=1, max_attempts=5)
    eventually(lambda: len(starts(whole, *jobs)) >= 200, timeout=60, describe="each has failed once")
    for n, (worker, link) in enumerate(zip(workers[:2], links[1:], strict=True)):
        wanted = 210 + 40 * n
        eventually(lambda w=wanted: len(starts(whole, *jobs)) >= w, timeout=60, describe="retries run")
        worker.kill()
        link.cut()
        time.sleep(2)  # so long is the cut
        link.restore()
        worker.restart()
    assert bench.settled(timeout=120) == {"succeeded": 200}
    taken = 0
    for job in jobs:
        rescued = bench.types(job).count("rescued")
        taken += rescued
        # Two by themselves; one more, counted, for each that a killed worker had claimed.
        assert bench.row(job).attempt == bench.types(job).count("claimed") == 2 + rescued
        assert 2 <= len(starts(whole, job)) <= 2 + rescued
        _never_at_once(bench, whole, job)
    assert taken <= 4, "two workers were killed, of two threads each"


def _never_at_once(bench: Bench, whole: Processes, job: UUID) -> None:
    ends = {
        (event.data["dispatch_no"], event.data["attempt"]): event.at.timestamp()
        for event in bench.events(job)
        if event.type in {"failed", "rescued", "succeeded"}
    }
    over = 0.0
    for line in whole.renders():
        if line["job"] == str(job) and line["phase"] == "start":
            assert line["time"] >= over, "it began before its last run was over"
            over = ends[line["dispatch"], line["attempt"]]
