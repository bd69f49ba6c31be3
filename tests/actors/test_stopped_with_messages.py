"""A stopped worker holds messages that it has fetched and not begun: they start elsewhere at once."""

import signal
import time
from pathlib import Path

import pytest

from support.bench import Bench
from support.kinds import kinds
from support.processes import Processes
from support.valkey import Valkey
from support.waiting import eventually

pytestmark = pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)

#: Messages are fetched for free threads only: so many are fetched, and each is about to begin.
THREADS = 4
ELSEWHERE_SECONDS = 5.0


def test_what_a_stopped_worker_had_fetched_starts_elsewhere_and_spends_nothing(
    bench: Bench, whole: Processes, valkey: Valkey, tmp_path: Path
) -> None:
    gate = tmp_path / "claims-wait-while-this-is-here"
    stopped = whole.worker(threads=THREADS, ONCOMMIT_FAILPOINTS=f"claim.before=pause:{gate}")
    jobs = bench.accept(THREADS, max_attempts=1)

    def fetched() -> int:
        return int(valkey.client.scard("oncommit:previews:running:acme"))  # type: ignore[arg-type]

    eventually(lambda: gate.exists() and fetched() == THREADS, describe="every message is in hand")
    other = whole.worker(threads=THREADS)
    assert [bench.types(job) for job in jobs] == [["accepted"]] * THREADS
    began = time.time()
    stopped.signal(signal.SIGTERM)
    eventually(lambda: '"stopping":true' in stopped.page("/readyz") or not stopped.running)

    def let_go() -> bool:
        gate.unlink(missing_ok=True)  # a thread that comes late makes it again
        return not stopped.running

    eventually(let_go, timeout=30)
    assert stopped.returncode == 0
    assert bench.settled(jobs) == {"succeeded": THREADS}
    starts = [line for line in whole.renders() if line["phase"] == "start"]
    assert sorted(line["job"] for line in starts) == sorted(str(job) for job in jobs)
    assert all(line["worker"] in other.log_text() for line in starts), "each on the other worker"
    assert max(line["time"] for line in starts) - began < ELSEWHERE_SECONDS
    for job in jobs:
        assert bench.types(job) == ["accepted", "claimed", "succeeded"]
        assert (bench.row(job).attempt, bench.row(job).releases) == (1, 0)
