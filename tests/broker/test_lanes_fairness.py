"""Lanes are fair, their limits bind, and a message costs the same whatever the number of lanes."""

from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise
from statistics import median

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from broker.lanes import PRIORITY_STEP as STEP
from broker.lanes import Lanes, Outgoing, Settled, Token, Verb
from support.lane_desk import Q, Relay, lanes_of, limit, message, open_lanes, take
from support.lane_server import NS, Clock


@pytest.fixture
def relay(lanes: Lanes, clock: Clock) -> Relay:
    return Relay(lanes, clock)


def test_three_equal_teams_take_turns(lanes: Lanes, relay: Relay) -> None:
    relay.publish([message(t, n) for t in "abc" for n in range(40)], [limit(t) for t in "abc"])
    assert Counter(lanes_of(take(lanes, 90))) == {"a": 30, "b": 30, "c": 30}


@pytest.mark.parametrize("size", [1, 3, 8])
def test_weights_are_shares(lanes: Lanes, relay: Relay, size: int) -> None:
    weights = {"a": 1, "b": 2, "c": 4}
    relay.publish(
        [message(t, n) for t in weights for n in range(500)], [limit(t, weight=w) for t, w in weights.items()]
    )
    taken: list[str] = []
    done: list[Settled] = []
    while len(taken) < 350:
        got = lanes.fetch(Q, "c", size, done).messages
        taken += [i for i, _ in got]
        done = [Settled(i) for i, _ in got]
    shares = Counter(lanes_of(taken))
    for team, weight in weights.items():
        assert shares[team] == pytest.approx(len(taken) * weight / 7, rel=0.1)


def test_a_single_job_does_not_wait_behind_a_batch(lanes: Lanes, relay: Relay) -> None:
    relay.publish([message("big", n) for n in range(1_000)], [limit("big"), limit("small")])
    take(lanes, 10)
    relay.publish([message("small", 0)], [])
    assert "small" in lanes_of(take(lanes, 2))


def test_due_retries_of_a_whole_backlog_are_no_different_from_a_batch(
    lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    relay.publish([message("big", n, delay_ms=500) for n in range(1_000)], [limit("big"), limit("small")])
    clock.now += 500
    relay.publish([message("small", 0)], [])
    assert "small" in lanes_of(take(lanes, 2))


def test_a_team_alone_uses_every_thread(lanes: Lanes, relay: Relay) -> None:
    relay.publish([message("a", n) for n in range(20)], [limit("a"), limit("b")])
    assert len(lanes.fetch(Q, "c", 16).messages) == 16


def test_priority_then_age_inside_a_team(lanes: Lanes, relay: Relay) -> None:
    relay.publish(
        [message("a", 1, priority=9), message("a", 2, priority=0), message("a", 3, priority=0)], [limit("a")]
    )
    assert take(lanes, 3) == ["a|2", "a|3", "a|1"]
    relay.publish([message("a", 3), message("a", 4), message("a", 2)], [])
    held = [i for i, _ in lanes.fetch(Q, "c", 2).messages]
    lanes.requeue(Q, "c", held)
    assert take(lanes, 3) == ["a|2", "a|3", "a|4"]  # a requeue keeps the order


def test_a_full_lane_opens_with_an_ack_and_never_before(lanes: Lanes, relay: Relay) -> None:
    relay.publish([message("a", n) for n in range(9)], [limit("a", max_running=2)])
    first = [i for i, _ in lanes.fetch(Q, "c", 8).messages]
    assert len(first) == 2
    assert lanes.fetch(Q, "other", 8).messages == []
    lanes.ack(Q, "c", first[:1])
    assert lanes.wait(Q, 1_000), "somebody who waits is woken"
    assert len(lanes.fetch(Q, "other", 8).messages) == 1


def test_a_killed_workers_slots_come_back(lanes: Lanes, relay: Relay, clock: Clock) -> None:
    relay.publish([message("a", n) for n in range(2)], [limit("a", max_running=1)])
    assert len(lanes.fetch(Q, "killed", 4).messages) == 1
    for _ in range(10):
        clock.now += 1_000
        assert lanes.fetch(Q, "alive", 4).messages == []
    clock.now += 1_000
    assert [i for i, _ in lanes.fetch(Q, "alive", 4).messages] == ["a|0"]


def test_a_frozen_redis_kills_nobody(lanes: Lanes, relay: Relay, clock: Clock) -> None:
    relay.publish([message("a", 0)], [limit("a")])
    lanes.fetch(Q, "c", 1)
    clock.now += 600_000
    assert lanes.fetch(Q, "other", 1).messages == []
    assert lanes.beat(Q, "c", {"a|0": 0}) == (0, 0)


def test_caps_hold_through_a_loss(client: Redis, lanes: Lanes, relay: Relay, clock: Clock) -> None:
    capped = [limit("a", max_running=1)]
    relay.publish([message("a", n) for n in range(3)], capped)
    assert len(lanes.fetch(Q, "c", 4).messages) == 1
    client.flushall()
    assert lanes.seize(2).lost
    relay.token = Token(2, 0)
    relay.publish([message("a", n) for n in range(1, 3)], capped)
    assert lanes.fetch(Q, "other", 4).messages == []  # closed for one beat
    assert lanes.beat(Q, "c", {"a|0": 0}) == (1, 0)
    relay.publish([message("a", 0)], [])  # its body returns; it stays in flight
    open_lanes(lanes, clock)
    assert lanes.fetch(Q, "other", 4).messages == []
    lanes.ack(Q, "c", ["a|0"])
    assert [i for i, _ in lanes.fetch(Q, "other", 4).messages] == ["a|1"]


def test_a_pause_holds_what_waits_and_what_comes(lanes: Lanes, relay: Relay, clock: Clock) -> None:
    relay.publish([message("a", 0), message("a", 1, delay_ms=10)], [limit("a"), limit("*", 2, paused=True)])
    clock.now += 50
    assert lanes.fetch(Q, "c", 4).messages == []
    relay.publish([], [limit("*", 3), limit("a", 4, paused=True)])
    assert lanes.fetch(Q, "c", 4).messages == []
    relay.publish([], [limit("a", 3)])  # an older version changes nothing
    assert lanes.fetch(Q, "c", 4).messages == []
    relay.publish([], [limit("a", 5)])
    assert len(lanes.fetch(Q, "c", 4).messages) == 2


def test_a_lane_without_limits_stays_closed(lanes: Lanes, relay: Relay) -> None:
    relay.publish([message("new", 0)], [])
    assert lanes.fetch(Q, "c", 1).messages == []
    relay.publish([], [limit("new")])
    assert len(lanes.fetch(Q, "c", 1).messages) == 1


def test_a_deferred_start_spends_no_token_and_holds_the_lane(
    lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    relay.publish([message("a", n) for n in range(5)], [limit("a", rate_per_second=0.1, burst=2)])
    assert [i for i, _ in lanes.fetch(Q, "c", 1).messages] == ["a|0"]
    lanes.defer(Q, "c", "a|0", 60_000, why="paused")
    assert lanes.fetch(Q, "c", 4).messages == []
    clock.now += 250
    assert len(lanes.fetch(Q, "c", 4).messages) == 2


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rate=st.floats(0.5, 200),
    burst=st.integers(1, 20),
    pauses=st.lists(st.integers(1, 900), min_size=20, max_size=60),
    refunds=st.booleans(),
)
def test_no_window_holds_more_starts_than_burst_and_rate_allow(
    client: Redis, rate: float, burst: int, pauses: list[int], *, refunds: bool
) -> None:
    client.flushall()
    clock = Clock()
    lanes = Lanes(client, NS, clock=clock)
    relay = Relay(lanes, clock)
    relay.publish([message("a", n) for n in range(2_000)], [limit("a", rate_per_second=rate, burst=burst)])
    starts: list[int] = []
    for pause in pauses:
        got = [i for i, _ in lanes.fetch(Q, "c", 16).messages]
        if refunds and got:  # not started after all
            lanes.settle(Q, "c", [Settled(got.pop(), Verb.REFUND, 3_600_000)])
        starts += [clock.now] * len(got)
        lanes.ack(Q, "c", got)
        clock.now += pause
    for i, begin in enumerate(starts):
        for j in range(i, len(starts)):
            # A thousandth of a token is the tolerance that the script grants to rounding.
            assert j - i + 1 <= burst + rate * (starts[j] - begin) / 1000 + 0.01


@pytest.mark.parametrize("rate", [0.5, 7, 100])
def test_the_long_run_reaches_the_limit(lanes: Lanes, relay: Relay, clock: Clock, rate: float) -> None:
    relay.publish([message("a", n) for n in range(400)], [limit("a", rate_per_second=rate)])
    begin, started = clock.now, 0
    while started < 100:
        got = lanes.fetch(Q, "c", 8)
        started += len(got.messages)
        lanes.ack(Q, "c", [i for i, _ in got.messages])
        clock.now += max(got.wait_ms, 1)  # a waiting consumer comes back when it was told to
    assert started / ((clock.now - begin) / 1000) >= 0.95 * rate


def test_idling_does_not_reset_a_bucket_and_a_full_bucket_is_forgotten(
    client: Redis, lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    relay.publish([message("a", 0), message("a", 1)], [limit("a", rate_per_second=1)])
    assert len(take(lanes, 3)) == 1
    lanes.purge(Q)
    relay.publish([message("a", 2)], [])
    assert take(lanes, 1) == []
    clock.now += 1_000
    assert take(lanes, 1) == ["a|2"]
    assert client.exists(f"{NS}:{Q}:rate")
    clock.now += 1_000
    take(lanes, 1)
    assert not client.exists(f"{NS}:{Q}:rate")


def test_a_raised_rate_takes_effect_at_once(lanes: Lanes, relay: Relay, clock: Clock) -> None:
    relay.publish([message("a", n) for n in range(50)], [limit("a", rate_per_second=0.001, burst=5)])
    assert len(take(lanes, 9)) == 5
    relay.publish([], [limit("a", 2, rate_per_second=100, burst=5)])
    clock.now += 10
    assert len(take(lanes, 1)) == 1


SHAPES = {"10 lanes": (10, 400), "1,000 lanes": (1_000, 2), "10,000 lanes": (10_000, 2), "long": (10, 5_000)}
ROUNDS, EACH = 15, 20


def _fresh(names: list[str], first: int) -> Iterator[Outgoing]:
    """Go round the lanes as their turns do, so that none becomes empty and none is new."""
    return (message(name, n) for n in count(first) for name in names)


def _burst(
    client: Redis, lanes: Lanes, relay: Relay, fresh: Iterator[Outgoing]
) -> tuple[float, float, float]:
    """Return what a message costs: commands to take and acknowledge it, to publish it, CPU microseconds."""
    client.config_resetstat()
    before = client.info("cpu")
    assert len(take(lanes, EACH)) == EACH
    taken = _commands(client)
    client.config_resetstat()
    relay.publish([next(fresh) for _ in range(EACH)], [])
    published, after = _commands(client), client.info("cpu")
    spent = sum(after[k] - before[k] for k in ("used_cpu_user_main_thread", "used_cpu_sys_main_thread"))
    return taken / EACH, published / EACH, spent / EACH * 1e6


def _commands(client: Redis) -> int:
    stats = client.info("commandstats")
    return sum(s["calls"] for name, s in stats.items() if "info" not in name and "config" not in name)


def test_a_message_costs_the_same_at_any_number_of_lanes(client: Redis, clock: Clock) -> None:
    loads: dict[str, tuple[Lanes, Relay, Iterator[Outgoing]]] = {}
    for number, (name, (teams, each)) in enumerate(SHAPES.items()):
        lanes = Lanes(client, f"{NS}{number}", clock=clock)
        names = [f"team-{n}" for n in range(teams)]
        relay = Relay(lanes, clock)
        relay.publish([message(t, n) for n in range(each) for t in names], [limit(t) for t in names])
        take(lanes, 1)
        loads[name] = lanes, relay, _fresh(names, each)
    bursts: dict[str, list[tuple[float, float, float]]] = {name: [] for name in SHAPES}
    for _ in range(ROUNDS):  # interleaved, so that a busy machine slows all alike
        for name, load in loads.items():
            bursts[name].append(_burst(client, *load))
    costs = {name: [median(column) for column in zip(*rows, strict=True)] for name, rows in bursts.items()}
    assert len({(taken, published) for taken, published, _ in costs.values()}) == 1, costs
    cpu = [spent for _, _, spent in costs.values()]
    assert max(cpu) <= 1.4 * min(cpu), costs


def test_scores_are_exact(lanes: Lanes, relay: Relay) -> None:
    ids = [2**48 - 1, 2**48 - 2, 2**48 - 3]
    relay.publish([message("a", n, priority=9) for n in ids], [limit("a")])
    assert 9 * STEP + ids[0] < 2**53
    assert take(lanes, 3) == [f"a|{n}" for n in sorted(ids)]
    assert all(a < b for a, b in pairwise(sorted(ids)))
