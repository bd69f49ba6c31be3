"""Workers: killed, stopped, and how fast they are; servers away while they work."""

import signal
import statistics
import time
from collections.abc import Callable
from uuid import UUID

from benchmarks.bounds.stage import Measured, Stage, seconds_until

AWAY_SECONDS = 30.0
ONE_AT_A_TIME = """SELECT set_lane('free', '{"max_running": 1}', 'bounds', 'one slot')"""
CLAIMED = "SELECT extract(epoch FROM at) FROM job_events WHERE job = %s AND type = 'claimed'"


def redis_frozen(stage: Stage) -> Measured:
    """Redis stands still for 30 s while jobs run and others wait."""
    return _away(stage, stage.world.valkey.freeze, stage.world.valkey.thaw)


def postgres_away(stage: Stage) -> Measured:
    """PostgreSQL is stopped for 30 s, twice what a lost worker is given, while jobs run and others wait."""
    return _away(stage, stage.world.server.stop, stage.world.server.start)


def _away(stage: Stage, leave: Callable[[], None], back: Callable[[], None]) -> Measured:
    stage.start(workers=2)
    jobs = stage.accept(count=12, simulate='{"sleep_ms": 2000}')
    seconds_until(lambda: sum(map(stage.started, jobs)) >= 3, 30)
    leave()
    stage.world.pass_time(AWAY_SECONDS)
    back()
    seconds_until(lambda: stage.succeeded(jobs), 120)
    return stage.cost(jobs)


def worker_killed(stage: Stage) -> Measured:
    """A worker is killed with its team's only slot; its job and the team's next one start elsewhere."""
    stage.start(workers=2)
    stage.admin.execute(ONE_AT_A_TIME)
    # Short, since whichever starts first holds the slot meanwhile; long enough to be killed in.
    [job] = stage.accept(simulate='{"sleep_ms": 3000}')
    seconds_until(lambda: stage.started(job), 30)
    [line] = stage.world.processes.renders()
    workers = stage.world.of("worker")
    victim = next(w for w in workers if line["worker"] in w.running.log_text())
    [following] = stage.accept()
    victim.kill()
    killed, after = time.monotonic(), {job: 1, following: 0}
    took: dict[UUID, float] = {}

    def both_started() -> bool:
        for each in after.keys() - took.keys():
            if stage.started(each, after=after[each]):
                took[each] = time.monotonic() - killed
        return len(took) == len(after)

    seconds_until(both_started, 90)
    if any(
        r["outcome"] == "rendered" and r["worker"] == line["worker"] for r in stage.world.processes.renders()
    ):
        raise AssertionError("its render ended before it was killed: nothing was measured")
    return {"elsewhere": took[job], "next": took[following]}


def worker_stopped(stage: Stage) -> Measured:
    """A worker is told to stop, with no grace: what it runs or has fetched starts on the other one."""
    stage.start(workers=2, threads=4, ONCOMMIT_SHUTDOWN_GRACE_SECONDS="0")
    jobs = stage.accept(count=4, simulate='{"sleep_ms": 20000}')
    seconds_until(lambda: all(stage.started(job) for job in jobs), 30)
    renders = stage.world.processes.renders()
    first = next(w for w in stage.world.of("worker") if renders[0]["worker"] in w.running.log_text())
    log = first.running.log_text()
    moved = [job for job in jobs for line in renders if line["job"] == str(job) and line["worker"] in log]
    first.signal(signal.SIGTERM)
    took = seconds_until(lambda: all(stage.started(job, after=1) for job in moved), 60)
    return {"elsewhere": took, "attempts": stage.cost(moved)["attempts"]}


def idle_latency(stage: Stage) -> Measured:
    """One job at a time on an idle system."""
    stage.start(workers=1, threads=4)
    claims: list[float] = []
    starts: list[float] = []
    for _ in range(100):
        before = time.time()
        [job] = stage.accept()
        committed = time.time()
        seconds_until(lambda job=job: stage.started(job), 30)
        claims.append(stage.number(CLAIMED, job) - committed)
        [begun] = [
            line["time"]
            for line in stage.world.processes.renders()
            if line["job"] == str(job) and line["phase"] == "start"
        ]
        starts.append(begun - committed)
        assert before <= committed
    return {
        "claim": statistics.median(claims) * 1000,
        "start": statistics.median(starts) * 1000,
    }
