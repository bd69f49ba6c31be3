"""Fairness with real workers, judged by the render log: nobody is crowded out, and every limit holds."""

import time
from collections import Counter
from uuid import UUID

import pytest

from support.bench import Bench
from support.kinds import kinds
from support.processes import Processes
from support.starts import least_share, most_at_once, most_beyond, shares, starts
from support.waiting import eventually

# Fairness lies in Redis; what depends on the server's version has tests of its own.
pytestmark = pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)

THREADS = 4
JOB_SECONDS = 0.2
JOB_MS = int(JOB_SECONDS * 1000)


@pytest.fixture
def working(processes: Processes, bench: Bench) -> Processes:
    """Start a relay and a worker of four threads."""
    assert bench.blobs.root == processes.blobs
    processes.relay()
    processes.worker(threads=THREADS)
    return processes


def started(working: Processes, jobs: list[UUID]) -> dict[str, float]:
    wanted = {str(job) for job in jobs}
    found: dict[str, float] = {}
    for line in working.renders():
        if line["phase"] == "start" and line["job"] in wanted:
            found.setdefault(line["job"], line["time"])
    return found


def wait(working: Processes, jobs: list[UUID], accepted: float, *, timeout: float = 30) -> float:
    """Return how long the last of these jobs waited, seconds."""
    found = eventually(
        lambda: len(at := started(working, jobs)) == len(jobs) and at, timeout=timeout, describe="all start"
    )
    return max(found.values()) - accepted


def in_redis(working: Processes) -> int:
    return int(working.valkey.client.hlen("oncommit:previews:messages"))


def test_a_flood_leaves_room_for_one_and_for_few(bench: Bench, working: Processes) -> None:
    """One job and then twenty behind 3,000: alone the flood has every thread, together an even share."""
    for team in ("flood", "one", "few"):
        bench.team(team)
    bench.accept(3_000, team="flood", sleep_ms=JOB_MS)
    eventually(lambda: in_redis(working) > 2_500 and len(working.renders()) > 6 * THREADS)
    assert most_at_once(working.renders(), ["flood"]) == THREADS, "a team alone uses every thread"

    accepted = time.time()
    one = bench.accept(team="one", sleep_ms=JOB_MS)
    assert wait(working, one, accepted) < (THREADS + 2) * JOB_SECONDS

    accepted = time.time()
    few = bench.accept(20, team="few", sleep_ms=JOB_MS)
    # Every second thread that becomes free is theirs.
    wait(working, few, accepted)
    began = sorted(started(working, few).values())
    counts = shares(starts(working.renders(), ["flood", "few"]), began[0], began[-1])
    assert counts["few"] >= 0.8 * counts.total() / 2, counts


def test_three_teams_share_evenly_and_by_weight(bench: Bench, working: Processes) -> None:
    weights = {"one": 1, "two": 2, "four": 4}
    for team in weights:
        bench.team(team)
        bench.accept(400, team=team, sleep_ms=50)
    eventually(lambda: {team for _, team in starts(working.renders(), weights)} == set(weights))
    since = time.time()
    eventually(lambda: len(starts(working.renders(), weights)) > 150, timeout=60)
    until = time.time()
    least = least_share(
        starts(working.renders(), weights),
        list(weights),
        seconds=min(10.0, 0.9 * (until - since)),
        since=since,
        until=until,
    )
    assert least >= 0.8

    for team, weight in weights.items():
        bench.set_lane(team, weight=weight)
    eventually(lambda: b" 4 " in (working.valkey.client.hget("oncommit:limits", "four") or b""))
    since, before = time.time(), len(starts(working.renders(), weights))
    eventually(lambda: len(starts(working.renders(), weights)) > before + 280, timeout=60)
    counts = shares(starts(working.renders(), weights), since, time.time())
    for team, weight in weights.items():
        assert counts[team] == pytest.approx(counts.total() * weight / 7, rel=0.1), counts


def test_caps_and_rates_hold_and_spend_nothing(bench: Bench, working: Processes) -> None:
    """No render beyond the cap, no start beyond the bucket, nobody bounced, and the rest is used."""
    rate, burst = 5.0, 5
    bench.team("capped", max_running=1)
    bench.team("rated", rate_per_second=rate, burst=burst)
    bench.team("free")
    limited = bench.accept(15, team="capped", sleep_ms=100) + bench.accept(20, team="rated")
    bench.accept(40, team="free", sleep_ms=100)
    assert bench.settled(timeout=60) == {"succeeded": 75}
    lines = working.renders()
    assert most_at_once(lines, ["capped"]) == 1
    assert most_at_once(lines, ["capped", "free"]) > 1
    # A start is written down some ms after its fetch, so two may come one closer.
    assert most_beyond([at for at, _ in starts(lines, ["rated"])], rate) <= burst + 1
    for job in limited:
        state = bench.row(job)
        assert (state.dispatch_no, state.attempt, state.releases) == (1, 1, 0)
    told = working.started[1].log_lines()
    assert {line["process"] for line in told} == {"worker"}
    assert [line for line in told if line["level"] not in {"debug", "info"}] == [], "throttling is no trouble"


def test_priorities_order_a_team_and_nobody_else(bench: Bench, working: Processes) -> None:
    bench.team("ranked", max_running=1, paused=True)
    order = [7, 2, 9, 0, 5, 3, 8, 1, 6, 4]
    jobs = [bench.accept(team="ranked", priority=priority)[0] for priority in order]
    eventually(lambda: in_redis(working) == len(jobs))
    other = bench.accept(team="other")
    bench.set_lane("ranked", paused=False)
    wait(working, jobs + other, time.time())
    began = started(working, jobs)
    assert [order[jobs.index(UUID(job))] for job in sorted(began, key=began.__getitem__)] == sorted(order)


def test_a_thousand_teams_settle_and_a_new_one_starts_at_once(bench: Bench, working: Processes) -> None:
    """No restart, and no more work for an idle Redis than before."""

    def commands() -> float:
        working.valkey.client.config_resetstat()
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 3)
        stats = working.valkey.client.info("commandstats")
        return sum(s["calls"] for s in stats.values()) / (time.monotonic() - began)

    before = commands()
    jobs = [bench.accept(team=f"team-{n}", content=b"same")[0] for n in range(1_000)]
    eventually(lambda: not bench.intents(), timeout=120, every=0.5)
    assert Counter(line["job"] for line in working.renders() if line["phase"] == "start") == {
        str(job): 1 for job in jobs
    }
    assert commands() <= 1.5 * before

    accepted = time.time()
    bench.team("new-here")
    assert wait(working, bench.accept(team="new-here"), accepted) < 5
