"""`dispatch status` beside a relay and a worker at work: what it says is what there is."""

from typing import Any

import pytest

from support.bench import Bench
from support.desk import Desk
from support.kinds import kinds
from support.processes import Processes
from support.waiting import eventually

pytestmark = pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)


def lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def test_status_tells_delayed_and_running_jobs_and_up_to_where_the_relay_has_read(
    desk: Desk, processes: Processes
) -> None:
    desk.env["ONCOMMIT_REDIS_URL"] = processes.valkey.url
    bench = Bench(desk.admin, processes.blobs)
    bench.team("red")
    processes.relay()
    processes.worker(threads=1, ONCOMMIT_BACKOFF_BASE_MS="600000", ONCOMMIT_BACKOFF_CAP_MS="600000")
    (delayed,) = bench.accept(team="red", max_attempts=2, fail_first=1)
    eventually(lambda: bench.status(delayed) == "retrying")
    (running,) = bench.accept(team="red", sleep_ms=120_000)
    eventually(lambda: bench.status(running) == "processing")
    bench.accept(3, team="red")

    def shown() -> dict[str, Any]:
        told: dict[str, Any] = desk.json("dispatch", "status")
        assert told["redis"]["queues"]["previews"]["waiting"] == 3
        assert told["redis"]["queues"]["previews"]["delayed"] == 1
        return told

    status = eventually(shown, describe="the relay has published them")
    (lane,) = status["lanes"]
    names = ("lane", "waiting", "running", "retrying", "delayed", "dead")
    assert tuple(lane[name] for name in names) == ("red", 3, 1, 1, 1, 0)
    assert status["redis"]["queues"]["previews"]["running"] == 1
    assert (status["slot"]["active"], status["slot"]["slot"]) == (True, desk.database.slot)
    begun = lsn(status["redis"]["position"]["lsn"])
    assert 0 < begun <= lsn(status["slot"]["current_lsn"])
    text = desk.ok("dispatch", "status")
    assert f"relay had read up to {status['redis']['position']['lsn']}" in text
    assert "red\t3\t1\t1\t1\t0\t" in text
    bench.accept(team="red")
    eventually(
        lambda: lsn(desk.json("dispatch", "status")["redis"]["position"]["lsn"]) > begun,
        describe="the position moves on",
    )
