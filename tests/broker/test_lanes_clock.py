"""The server's clock steps, back or forward: what waits goes on, and nobody is taken for dead."""

import time

import pytest
from redis import Redis

from broker.lanes import Lanes, Settled, Token, Verb
from support.lane_desk import Q, Relay, lanes_of, limit, message, open_lanes
from support.lane_server import NS, Clock
from support.waiting import eventually

HOUR = 3_600_000


@pytest.fixture
def relay(lanes: Lanes, clock: Clock) -> Relay:
    return Relay(lanes, clock)


def fetched(lanes: Lanes, consumer: str = "c", count: int = 9) -> list[str]:
    return [i for i, _ in lanes.fetch(Q, consumer, count).messages]


@pytest.mark.parametrize("step", [-HOUR, -1, 0])
def test_a_step_back_costs_a_delayed_message_nothing(
    lanes: Lanes, relay: Relay, clock: Clock, step: int
) -> None:
    relay.publish([message("a", 1, delay_ms=500)], [limit("a")])
    clock.now += step
    assert lanes.fetch(Q, "c", 1).wait_ms == pytest.approx(500, abs=1)
    clock.now += 499
    assert fetched(lanes) == []
    clock.now += 2
    assert fetched(lanes) == ["a|1"]


def test_a_step_back_costs_a_throttled_lane_and_a_held_one_nothing(
    lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    relay.publish(
        [message(t, n) for t in "ab" for n in range(3)], [limit("a", rate_per_second=1), limit("b")]
    )
    assert fetched(lanes, count=1) == ["a|0"]
    lanes.settle(Q, "c", [Settled(i, Verb.HOLD, 0) for i in fetched(lanes, count=1)])
    clock.now -= HOUR
    assert fetched(lanes) == []
    clock.now += 250
    assert lanes_of(fetched(lanes)) == ["b", "b", "b"]
    clock.now += 749
    assert fetched(lanes) == []
    clock.now += 1
    assert fetched(lanes) == ["a|1"]


def test_a_step_back_after_a_loss_keeps_lanes_closed_for_a_beat_only(
    client: Redis, lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    client.flushall()
    assert lanes.seize(2).lost
    relay.token = Token(2, 0)
    relay.publish([message("a", 1)], [limit("a")])
    clock.now -= HOUR
    assert fetched(lanes) == []
    open_lanes(lanes, clock)
    assert fetched(lanes) == ["a|1"]


def test_one_long_silence_after_a_loss_opens_no_lane(lanes: Lanes, clock: Clock) -> None:
    """Redis was frozen, or its clock stepped forward: the consumers could not say what they hold."""
    lanes.seize(1)
    lanes.publish(
        Token(1, 0), messages=[message("a", 1), message("a", 2)], limits=[limit("a", max_running=1)]
    )
    clock.now += HOUR
    assert fetched(lanes, "other") == []
    assert lanes.beat(Q, "c", {"a|1": 1}) == (1, 0)
    open_lanes(lanes, clock)
    assert fetched(lanes, "other") == []


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_step_takes_nobody_for_dead_and_the_dead_still_come_to_light(
    lanes: Lanes, relay: Relay, clock: Clock, step: int
) -> None:
    relay.publish([message("a", 1)], [limit("a")])
    assert fetched(lanes, "killed") == ["a|1"]
    clock.now += step
    for _ in range(8):
        assert fetched(lanes, "alive") == []
        clock.now += 1_000
    for _ in range(4):
        got = fetched(lanes, "alive")
        clock.now += 1_000
        if got:
            break
    assert got == ["a|1"]


def test_a_step_forward_that_is_put_right_again_stalls_nothing(
    lanes: Lanes, relay: Relay, clock: Clock
) -> None:
    """What is delayed comes early, once; what comes while the clock is wrong is on time."""
    relay.publish([message("a", 1, delay_ms=60_000)], [limit("a", rate_per_second=1)])
    clock.now += HOUR
    assert fetched(lanes) == ["a|1"]
    relay.publish([message("a", 2, delay_ms=1_500)], [])
    clock.now -= HOUR
    assert lanes.fetch(Q, "c", 1).wait_ms == 1_000
    clock.now += 1_500
    assert fetched(lanes) == ["a|2"]


def test_the_step_of_a_real_clock_is_made_good(client: Redis) -> None:
    """Before the step the server's clock was an hour ahead; now it is its own."""
    ahead = Lanes(client, NS, clock=lambda: time.time_ns() // 1_000_000 + HOUR)
    ahead.seize(1)
    client.hdel(f"{NS}:clock", "open_at")
    ahead.publish(Token(1, 0), messages=[message("a", 1, delay_ms=300)], limits=[limit("a")])
    lanes = Lanes(client, NS)
    assert lanes.fetch(Q, "c", 1).wait_ms <= 300
    assert eventually(lambda: fetched(lanes), timeout=5) == ["a|1"]
    record = {k.decode(): int(v) for k, v in client.hgetall(f"{NS}:clock").items()}
    assert record["shift"] == pytest.approx(HOUR, abs=5_000)
    assert record["served"] <= record["last"]
