"""The operator's commands beside a relay and a worker at work: pause, drain, replay."""

import json
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runtime.blobs import BlobStore
from support.desk import Desk
from support.processes import Processes
from support.waiting import always, eventually

WHY = ("--reason", "the printer is back")
TAKES_HOLD_SECONDS = 2.0


@pytest.fixture
def live(desk: Desk, processes: Processes) -> Desk:
    """A desk beside a running relay and worker."""
    desk.env |= {
        "ONCOMMIT_REDIS_URL": processes.valkey.url,
        "ONCOMMIT_BLOBS": str(processes.blobs),
    }
    processes.relay()
    processes.worker(threads=2)
    return desk


def accept(
    desk: Desk, processes: Processes, number: int, simulate: dict[str, Any] | None = None
) -> list[UUID]:
    """Accept jobs of a real document; `simulate` is in their rows before anybody can claim them."""
    document = BlobStore(Path(processes.blobs)).put_bytes(b"a document")
    with desk.admin.transaction():
        jobs = desk.accept(number, document=document)
        desk.admin.execute("UPDATE jobs SET simulate = %s WHERE id = ANY(%s)", [json.dumps(simulate), jobs])
    return jobs


def hurry(desk: Desk, jobs: list[UUID]) -> None:
    """Let the rest of the jobs take no time: they were slow only to outlast the start of a command."""
    desk.admin.execute("UPDATE jobs SET simulate = NULL WHERE id = ANY(%s) AND status = 'queued'", [jobs])


def starts(processes: Processes) -> int:
    """Return how many renders have started, by the render log."""
    if not processes.render_log.exists():
        return 0
    lines = processes.render_log.read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line)["phase"] == "start" for line in lines)


def count(desk: Desk, status: str) -> int:
    (found,) = desk.admin.execute("SELECT count(*) FROM jobs WHERE status = %s", [status]).fetchone() or (0,)
    return int(found)


def test_a_pause_holds_for_what_waits_and_what_comes_also_after_redis_is_wiped(
    live: Desk, processes: Processes
) -> None:
    jobs = accept(live, processes, 60, {"sleep_ms": 500})
    eventually(lambda: starts(processes) >= 3)
    live.ok("dispatch", "pause", *WHY)
    in_force = time.monotonic() + TAKES_HOLD_SECONDS
    accept(live, processes, 3)
    eventually(lambda: time.monotonic() > in_force)
    started = starts(processes)
    assert started < 60
    always(lambda: starts(processes) == started, during=2.0, describe="nothing starts while paused")
    processes.valkey.client.flushall()
    always(lambda: starts(processes) == started, during=3.0, describe="nothing starts after FLUSHALL")
    assert live.json("dispatch", "status")["redis"]["reachable"]
    hurry(live, jobs)
    live.ok("dispatch", "resume")
    eventually(lambda: count(live, "succeeded") == 63, timeout=60)
    assert starts(processes) == 63


def test_a_drain_lets_running_renders_end_and_a_resume_needs_no_restart(
    live: Desk, processes: Processes
) -> None:
    jobs = accept(live, processes, 30, {"sleep_ms": 1000})
    eventually(lambda: starts(processes) >= 2)
    told = live.json("dispatch", "drain", "--timeout", "60", *WHY)
    assert told["drained"]
    started = starts(processes)
    assert count(live, "succeeded") == started < 30
    always(lambda: starts(processes) == started, during=1.0, describe="nothing starts once drained")
    hurry(live, jobs)
    live.ok("dispatch", "drain", "--abort")
    eventually(lambda: count(live, "succeeded") == 30, timeout=60)


def test_replayed_jobs_are_rendered_and_those_that_fail_again_are_dead_again(
    live: Desk, processes: Processes
) -> None:
    jobs = accept(live, processes, 20, {"fail_permanently": True})
    eventually(lambda: count(live, "dead") == 20, timeout=60)
    live.admin.execute("UPDATE jobs SET simulate = NULL WHERE id = ANY(%s)", [jobs[:10]])
    assert live.json("dead", "replay", "--team", "red", "--rate", "100/s", *WHY)["replayed"] == 20
    eventually(lambda: (count(live, "succeeded"), count(live, "dead")) == (10, 10), timeout=60)
    assert live.replays() == dict.fromkeys(jobs, 1)
    assert starts(processes) == 40
