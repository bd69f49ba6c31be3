"""Lanes under the faults that hurt others: floods, forgotten teams, slots that expired, windows' edges."""

import heapq
from collections import Counter

import pytest
from redis import Redis

from broker.lanes import Lanes, Settled
from support.lane_desk import Q, Relay, lanes_of, limit, message, take
from support.lane_server import Clock
from support.starts import most_beyond, most_in_window

DEAD_AFTER_MS = 10_000  # of lanes.lua: a consumer that was silent for so long is dead


@pytest.fixture
def relay(lanes: Lanes, clock: Clock) -> Relay:
    return Relay(lanes, clock)


# One team floods --------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["fresh", "due retries", "replay"])
def test_a_team_that_floods_again_and_again_takes_no_turn_of_others(
    lanes: Lanes, relay: Relay, clock: Clock, again: str
) -> None:
    relay.publish([message("flood", n) for n in range(3_000)], [limit(t) for t in ("flood", "one", "few")])
    relay.publish([message("few", n) for n in range(20)], [])
    taken: list[str] = []
    for n in range(10):
        more = range(10_000 * (n + 1), 10_000 * (n + 1) + 500)
        # A replay's intents are new; a retry's were delayed, and all are due at one instant.
        relay.publish([message("flood", m, delay_ms=100 * (again == "due retries")) for m in more], [])
        clock.now += 100
        taken += take(lanes, 4)
    assert Counter(lanes_of(taken)) == {"flood": 20, "few": 20}
    relay.publish([message("one", 0)], [])
    assert "one" in lanes_of(take(lanes, 2))


# Many, new and forgotten teams -------------------------------------------------------------------


def test_the_orphan_of_a_silent_team_comes_back_though_nobody_asks_for_it(
    lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    relay.publish([message("quiet", 0)], [limit("quiet", max_running=1), limit("busy")])
    assert len(lanes.fetch(Q, "killed", 1).messages) == 1
    relay.publish([message("busy", n) for n in range(8)], [])
    came: list[tuple[int, str]] = []
    for second in range(120):
        got = [i for i, _ in lanes.fetch(Q, "alive", 1).messages]
        came += [(second, i) for i in got]
        lanes.ack(Q, "alive", got)
        clock.now += 1_000
    assert [i for _, i in came] == [f"busy|{n}" for n in range(8)] + ["quiet|0"]
    assert came[-1][0] * 1_000 <= DEAD_AFTER_MS + 1_000
    assert lanes.stats(Q).running == 0


def test_an_idle_fetch_costs_the_same_after_a_thousand_teams(
    client: Redis, lanes: Lanes, relay: Relay
) -> None:
    def commands() -> int:
        client.config_resetstat()
        for _ in range(10):
            assert lanes.fetch(Q, "c", 4).messages == []
        stats = client.info("commandstats")
        return sum(s["calls"] for name, s in stats.items() if "config" not in name and "info" not in name)

    relay.publish([message("first", 0)], [limit("first")])
    assert len(take(lanes, 1)) == 1
    before = commands()
    teams = [f"team-{n}" for n in range(1_000)]
    relay.publish([message(t, n) for n, t in enumerate(teams)], [limit(t) for t in teams])
    assert Counter(lanes_of(take(lanes, 1_000))) == Counter(teams)
    assert commands() == before


# Slots and long jobs -----------------------------------------------------------------------------


def test_a_job_may_run_far_longer_than_a_silent_consumer_lives(
    lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    relay.publish([message("a", n) for n in range(3)], [limit("a", max_running=1)])
    assert len(lanes.fetch(Q, "long", 4).messages) == 1
    for _ in range(3 * DEAD_AFTER_MS // 1_000):
        clock.now += 1_000
        lanes.beat(Q, "long", {"a|0": 0})
        assert lanes.fetch(Q, "other", 4).messages == []
    lanes.ack(Q, "long", ["a|0"])
    assert len(lanes.fetch(Q, "other", 4).messages) == 1


def test_a_starved_beat_loses_the_slot_and_its_late_end_frees_nobody_elses(
    lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    relay.publish([message("a", n) for n in range(3)], [limit("a", max_running=1)])
    assert [i for i, _ in lanes.fetch(Q, "starved", 4).messages] == ["a|0"]
    for _ in range(DEAD_AFTER_MS // 1_000 + 1):
        clock.now += 1_000
        got = [i for i, _ in lanes.fetch(Q, "other", 4).messages]
    assert got == ["a|0"]
    for end in (lanes.ack, lanes.requeue):
        end(Q, "starved", ["a|0"])
        assert lanes.stats(Q).running == 1
        assert lanes.fetch(Q, "third", 4).messages == []
    assert lanes.beat(Q, "starved", {"a|0": 0}) == (0, 0), "another live consumer has it"
    assert lanes.fetch(Q, "third", 4).messages == []
    lanes.ack(Q, "other", ["a|0"])
    assert [i for i, _ in lanes.fetch(Q, "third", 4).messages] == ["a|1"]


def test_a_starved_beat_that_nobody_noticed_has_its_slot_still(
    lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    relay.publish([message("a", n) for n in range(2)], [limit("a", max_running=1)])
    lanes.fetch(Q, "starved", 4)
    clock.now += 3 * DEAD_AFTER_MS  # everybody was: no time was served
    assert lanes.fetch(Q, "other", 4).messages == []
    lanes.ack(Q, "starved", ["a|0"])
    assert [i for i, _ in lanes.fetch(Q, "other", 4).messages] == ["a|1"]


# Windows' edges ----------------------------------------------------------------------------------


def simulate(lanes: Lanes, clock: Clock, *, consumers: int, until: int) -> list[float]:
    """Let consumers with one free thread come back when they were told to; return the starts, seconds."""
    due = [(clock.now, n) for n in range(consumers)]
    done: dict[int, list[Settled]] = {n: [] for n in range(consumers)}
    starts: list[float] = []
    while due[0][0] < until:
        clock.now, who = heapq.heappop(due)
        got = lanes.fetch(Q, f"c{who}", 1, done[who])
        done[who] = [Settled(i) for i, _ in got.messages]
        starts += [clock.now / 1_000] * len(got.messages)
        heapq.heappush(due, (clock.now + (10 if got.messages else max(got.wait_ms, 1)), who))
    return starts


def test_no_window_holds_twice_the_limit_whenever_the_jobs_come(
    lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    """10 per 10 s as a bucket: at most burst + rate x 10 s in any 10 s, whatever the edge."""
    relay.publish([], [limit("a", rate_per_second=1, burst=1), limit("b", rate_per_second=1, burst=10)])
    for lane, most in (("a", 1 + 10), ("b", 10 + 10)):
        clock.now = (clock.now // 10_000 + 2) * 10_000 - 200  # just before an edge of the clock's tens
        relay.publish([message(lane, n) for n in range(200)], [])
        starts = simulate(lanes, clock, consumers=20, until=clock.now + 40_000)
        assert most_in_window(starts, 10) <= most
        assert len(starts) >= 40
        lanes.purge(Q, lane)


def test_half_an_hour_at_the_limit_does_not_decay(lanes: Lanes, relay: Relay, clock: Clock) -> None:
    relay.publish([message("a", n) for n in range(2_000)], [limit("a", rate_per_second=1, burst=10)])
    begin = clock.now / 1_000
    starts = simulate(lanes, clock, consumers=2, until=clock.now + 1_800_000)
    assert most_beyond(starts, 1) <= 10.01
    for n in range(6):  # each five minutes of it
        found = sum(begin + 300 * n <= at < begin + 300 * (n + 1) for at in starts)
        assert found >= 0.95 * 300
