"""A message id that is used again while its old message is alive in Redis: the newer intent counts."""

import pytest
from redis import Redis

from broker.lanes import Lanes, Outgoing, Published, Settled, Token, Verb
from support.lane_desk import Q, Relay, limit, message
from support.lane_server import NS, Clock

ID = "a|1"


@pytest.fixture
def relay(lanes: Lanes, clock: Clock) -> Relay:
    relay = Relay(lanes, clock)
    relay.publish([], [limit("a", max_running=1)])
    return relay


def intent(number: int, *, delay_ms: int = 0, priority: int = 5) -> Outgoing:
    return Outgoing(Q, ID, "a", priority, number, delay_ms, f"body {number}".encode())


def put(relay: Relay, *rows: Outgoing) -> Published:
    relay.token, done = relay.lanes.publish(relay.token, messages=rows)
    return done


def bodies(lanes: Lanes, consumer: str = "c") -> list[tuple[int, bytes]]:
    got = lanes.fetch(Q, consumer, 9)
    return [(got.intents[i], body) for i, body in got.messages]


@pytest.mark.parametrize("old", [0, 60_000])
@pytest.mark.parametrize("new", [0, 500])
def test_one_that_waits_is_replaced_with_its_time_and_place(
    lanes: Lanes, relay: Relay, clock: Clock, old: int, new: int
) -> None:
    put(relay, intent(5, delay_ms=old), message("a", 7))
    assert put(relay, intent(9, delay_ms=new, priority=9)) == Published(1, 0, 0)
    clock.now += new
    assert bodies(lanes) == [(7, b"{}")]  # by its priority the newer one is last
    lanes.ack(Q, "c", ["a|7"])
    assert bodies(lanes) == [(9, b"body 9")]
    lanes.ack(Q, "c", [ID])
    stats = lanes.stats(Q)
    assert (stats.messages, stats.delayed, stats.lanes_waiting) == (0, 0, 0)


def test_a_lane_that_a_delay_empties_takes_the_next_message_of_the_same_call(
    lanes: Lanes, relay: Relay
) -> None:
    put(relay, intent(5))
    put(relay, intent(9, delay_ms=60_000), message("a", 3))
    assert bodies(lanes) == [(3, b"{}")]
    put(relay, Outgoing(Q, "b|1", "b", 5, 10, 0, b""), Outgoing(Q, "b|1", "b", 5, 11, 60_000, b""))
    assert lanes.stats(Q).lanes_waiting == 0


def test_an_older_one_and_the_same_one_change_nothing(lanes: Lanes, relay: Relay) -> None:
    put(relay, intent(9))
    assert put(relay, intent(9), intent(5)) == Published(0, 2, 0)
    assert bodies(lanes) == [(9, b"body 9")]
    assert put(relay, intent(9), intent(5)) == Published(0, 2, 0)


@pytest.mark.parametrize("delay_ms", [0, 400])
@pytest.mark.parametrize("verb", list(Verb))
def test_one_in_flight_goes_on_and_the_newer_one_comes_after_it(
    lanes: Lanes, relay: Relay, clock: Clock, verb: Verb, delay_ms: int
) -> None:
    put(relay, intent(5))
    assert bodies(lanes) == [(5, b"body 5")]
    assert put(relay, intent(9, delay_ms=delay_ms)) == Published(1, 0, 0)
    assert put(relay, intent(9), intent(5)) == Published(0, 2, 0)
    assert lanes.missing(Q, {ID: 9}) == []
    assert bodies(lanes, "other") == [], "one at a time"
    assert lanes.stats(Q).messages == 1
    lanes.settle(Q, "c", [Settled(ID, verb, 30_000)])
    assert lanes.missing(Q, {ID: 9}) == []
    clock.now += 400  # also the time for which a held lane is left alone
    assert bodies(lanes, "other") == [(9, b"body 9")]
    lanes.ack(Q, "other", [ID])
    assert lanes.stats(Q).messages == 0


@pytest.mark.parametrize("way", ["dies", "leaves", "never knew"])
def test_one_in_flight_that_is_given_back_gives_way_to_the_newer_one(
    lanes: Lanes, relay: Relay, clock: Clock, way: str
) -> None:
    put(relay, intent(5))
    assert len(bodies(lanes, "gone")) == 1
    put(relay, intent(9))
    if way == "leaves":
        lanes.leave(Q, "gone")
    elif way == "never knew":
        lanes.beat(Q, "gone", {})
    else:
        for _ in range(12):
            clock.now += 1_000
            put(relay)
    assert bodies(lanes, "c") == [(9, b"body 9")]


def test_a_waker_does_not_take_the_newer_intent_for_its_own(lanes: Lanes, relay: Relay, clock: Clock) -> None:
    """Frozen, taken for dead; its message was run elsewhere; its id is used again; now it wakes."""
    put(relay, intent(5))
    assert len(bodies(lanes, "frozen")) == 1
    for _ in range(12):
        clock.now += 1_000
        put(relay)
    assert len(bodies(lanes, "c")) == 1
    lanes.ack(Q, "c", [ID])
    put(relay, intent(9))
    assert lanes.beat(Q, "frozen", {ID: 5}) == (0, 0)
    lanes.ack(Q, "frozen", [ID])
    assert bodies(lanes, "c") == [(9, b"body 9")]


def test_after_a_loss_the_mark_of_the_old_one_does_not_swallow_the_newer_one(
    client: Redis, lanes: Lanes, relay: Relay
) -> None:
    put(relay, intent(5))
    assert len(bodies(lanes)) == 1
    client.flushall()
    lanes.seize(2)
    relay.token = Token(2, 0)
    assert lanes.beat(Q, "c", {ID: 5}) == (1, 0)
    relay.publish([], [limit("a")])
    assert put(relay, intent(9)) == Published(1, 0, 0)
    lanes.ack(Q, "c", [ID])
    client.hdel(f"{NS}:clock", "open_at")
    assert bodies(lanes) == [(9, b"body 9")]


def test_the_audit_tells_an_older_intent_from_the_one_that_it_asks_for(lanes: Lanes, relay: Relay) -> None:
    """The newer one was published while Redis was away, and Redis came back with the old one."""
    put(relay, intent(5))
    assert lanes.missing(Q, {ID: 5}) == []
    assert lanes.missing(Q, {ID: 9}) == [ID]
    assert len(bodies(lanes)) == 1
    assert lanes.missing(Q, {ID: 9}) == [ID]
    put(relay, intent(9))
    assert lanes.missing(Q, {ID: 9}) == lanes.missing(Q, {ID: 5}) == []


def test_a_purge_drops_what_follows(client: Redis, lanes: Lanes, relay: Relay) -> None:
    put(relay, intent(5))
    assert len(bodies(lanes)) == 1
    put(relay, intent(9))
    assert lanes.purge(Q) == 1
    lanes.ack(Q, "c", [ID])
    assert lanes.stats(Q).messages == 0
    assert not client.exists(f"{NS}:{Q}:following")
