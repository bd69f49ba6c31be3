"""Limits and pauses beside two workers at work, judged by the render log: in force, also after a loss."""

import time
from collections.abc import Callable

import pytest

from support.bench import Bench
from support.desk import Desk
from support.kinds import kinds
from support.processes import Processes
from support.starts import most_at_once, most_beyond
from support.waiting import always, eventually

# Limits bind in Redis; what depends on the server's version has tests of its own.
pytestmark = pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)

WHY = ("--reason", "the printer is back")
IN_FORCE_SECONDS = 2.0
THREADS = 4  # of each of the two workers
CAP, RATE, BURST = 2, 5.0, 2
BACKOFF_MS = 5_000
DELAYED = "SELECT count(*), count(*) FILTER (WHERE not_before > now()) FROM jobs WHERE status = 'retrying'"


@pytest.fixture
def bench(desk: Desk, processes: Processes) -> Bench:
    """A relay, two workers, and the team red."""
    bench = Bench(desk.admin, processes.blobs)
    bench.team("red")
    processes.relay()
    backoff = {"ONCOMMIT_BACKOFF_BASE_MS": str(BACKOFF_MS)}
    for worker in [processes.worker(threads=THREADS, ready=False, **backoff) for _ in range(2)]:
        worker.wait_ready()
    return bench


def starts_since(processes: Processes, since: float) -> list[float]:
    return [r["time"] for r in processes.renders() if r["phase"] == "start" and r["time"] >= since]


def at_once_since(processes: Processes, since: float) -> int:
    """Return the most renders at one time since then, with those that had begun before."""
    lines = processes.renders()
    over = {line["job"] for line in lines if line["phase"] == "end" and line["time"] < since}
    return most_at_once([line for line in lines if line["job"] not in over], ["red"])


def obeyed(processes: Processes, holds: Callable[[float], bool], *, starts: int) -> float:
    """Wait until so many starts obey the limit; return since when: 2 s from now, or a little later."""
    at = time.time() + IN_FORCE_SECONDS

    def enough() -> bool:
        nonlocal at
        if not holds(at):
            at = time.time()
        return len(starts_since(processes, at)) >= starts

    eventually(enough, timeout=40, every=0.1, describe="the limit is in force")
    return at


def test_a_cap_binds_in_two_workers_at_work_and_through_a_loss_of_redis(
    desk: Desk, processes: Processes, bench: Bench
) -> None:
    bench.accept(2_000, team="red", sleep_ms=200)
    eventually(lambda: at_once_since(processes, time.time()) > THREADS, describe="both are at work")
    desk.ok("teams", "set", "red", "--max-running", str(CAP), *WHY)
    since = obeyed(processes, lambda at: at_once_since(processes, at) <= CAP, starts=20)
    processes.valkey.client.flushall()
    lost = time.time()
    eventually(lambda: len(starts_since(processes, lost)) >= 20, timeout=40, describe="dispatch goes on")
    assert at_once_since(processes, since) == CAP, "used, and never exceeded"
    desk.ok("teams", "set", "red", "--max-running", "none", *WHY)
    eventually(lambda: at_once_since(processes, time.time()) > THREADS, describe="both are at work again")


def test_a_rate_binds_in_two_workers_at_work_and_again_after_a_loss_of_redis(
    desk: Desk, processes: Processes, bench: Bench
) -> None:
    def holds(since: float) -> bool:
        # A start is written down some ms after its fetch, so two may come one closer.
        return most_beyond(starts_since(processes, since), RATE) <= BURST + 1

    bench.accept(2_000, team="red", sleep_ms=50)
    eventually(lambda: not holds(0), describe="both are at work")
    desk.ok("teams", "set", "red", "--rate", str(RATE), "--burst", str(BURST), *WHY)
    obeyed(processes, holds, starts=15)
    processes.valkey.client.flushall()
    obeyed(processes, holds, starts=15)
    desk.ok("teams", "set", "red", "--rate", "none", *WHY)
    again = time.time()
    eventually(lambda: not holds(again), describe="both are at work again")


def test_a_pause_holds_what_is_delayed_until_the_resume(
    desk: Desk, processes: Processes, bench: Bench
) -> None:
    jobs = bench.accept(6, team="red", max_attempts=3, fail_first=1)
    # Already all of them: each waits half its backoff at least.
    eventually(lambda: desk.admin.execute(DELAYED).fetchone() == (6, 6))
    desk.ok("dispatch", "pause", *WHY)
    in_force = time.monotonic() + IN_FORCE_SECONDS
    eventually(lambda: time.monotonic() > in_force)
    started = len(starts_since(processes, 0))
    assert started < 12, "some are delayed still"
    eventually(lambda: (desk.admin.execute(DELAYED).fetchone() or (0, 1))[1] == 0, describe="all are due")
    always(lambda: len(starts_since(processes, 0)) == started, during=3.0, describe="nothing starts")
    desk.ok("dispatch", "resume")
    assert bench.settled(jobs) == {"succeeded": 6}
    assert len(starts_since(processes, 0)) == 12
