"""lanes.lua on a server in trouble: full, without its scripts, half forgotten; and the token's rules."""

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from broker.client import redis_client
from broker.lanes import Lanes, Limit, Outgoing, Published, Seized, Token, TokenMismatch
from support.lane_desk import open_lanes
from support.lane_server import NS, Clock, Server

Q = "previews"
OPEN = Limit("a", 1, None, 1, None, 1, paused=False)


def message(n: int, *, delay_ms: int = 0, body: bytes = b"{}") -> Outgoing:
    return Outgoing(Q, f"a|{n}", "a", 5, n, delay_ms, body)


def opened(lanes: Lanes, clock: Clock) -> Token:
    lanes.seize(1)
    open_lanes(lanes, clock)
    token, _ = lanes.publish(Token(1, 0), limits=[OPEN])
    return token


def test_a_full_redis_refuses_to_publish_and_still_acknowledges(
    client: Redis, lanes: Lanes, clock: Clock
) -> None:
    token = opened(lanes, clock)
    token, _ = lanes.publish(token, messages=[message(n) for n in range(3)])
    assert len(lanes.fetch(Q, "c", 1).messages) == 1
    client.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        lanes.publish(token, messages=[message(9)])
    lanes.ack(Q, "c", ["a|0"])
    assert [i for i, _ in lanes.fetch(Q, "c", 1).messages] == ["a|1"]
    lanes.defer(Q, "c", "a|1", 10)
    lanes.beat(Q, "c", {})
    client.config_set("maxmemory", 0)
    assert lanes.publish(token, messages=[message(9)])[1] == Published(1, 0, 0)
    assert lanes.missing(Q, {f"a|{n}": n for n in (0, 1, 2, 9)}) == ["a|0"]


def test_scripts_that_were_flushed_are_loaded_again(client: Redis, lanes: Lanes, clock: Clock) -> None:
    token = opened(lanes, clock)
    client.script_flush()
    token, counts = lanes.publish(token, messages=[message(0)])
    assert counts == Published(1, 0, 0)
    client.script_flush()
    assert len(lanes.fetch(Q, "c", 1).messages) == 1


def test_a_lost_reply_is_found_out_and_nothing_is_done_twice(lanes: Lanes, clock: Clock) -> None:
    before = opened(lanes, clock)
    after, counts = lanes.publish(before, messages=[message(0)], position={"lsn": "0/10"})
    assert counts == Published(1, 0, 0)
    lanes.fetch(Q, "c", 1)
    lanes.ack(Q, "c", ["a|0"])
    again = lanes.publish(before, messages=[message(0)], position={"lsn": "0/10"})
    assert again == (after, Published(0, 0, 0))
    assert lanes.missing(Q, {"a|0": 0}) == ["a|0"]


def test_a_mismatch_touches_nothing(client: Redis, lanes: Lanes, clock: Clock) -> None:
    token = opened(lanes, clock)
    for wrong in (Token(1, token.seq + 1), Token(2, token.seq), Token(0, token.seq)):
        with pytest.raises(TokenMismatch) as caught:
            lanes.publish(wrong, messages=[message(0)], limits=[OPEN], position={"lsn": "9"})
        assert caught.value.stored == token
    assert lanes.position() == {}
    assert not client.exists(f"{NS}:{Q}:messages")


def test_only_a_higher_epoch_takes_over_and_finds_the_position(lanes: Lanes, clock: Clock) -> None:
    token = opened(lanes, clock)
    lanes.publish(token, position={"7/1/slot": "0/2A"})
    with pytest.raises(TokenMismatch) as caught:
        lanes.seize(1)
    assert caught.value.stored == Token(1, token.seq + 1)
    assert lanes.seize(2) == Seized(lost=False, position={"7/1/slot": "0/2A"})
    with pytest.raises(TokenMismatch):
        lanes.publish(token)


def test_the_same_id_again_is_no_op_while_alive_and_new_after_its_ack(lanes: Lanes, clock: Clock) -> None:
    token = opened(lanes, clock)
    for state in ("waiting", "held", "deferred", "waiting again"):
        if state == "held":
            assert len(lanes.fetch(Q, "c", 1).messages) == 1
        elif state == "deferred":
            lanes.defer(Q, "c", "a|0", 100)
        elif state == "waiting again":
            clock.now += 100
            lanes.fetch(Q, "c", 1)
            lanes.requeue(Q, "c", ["a|0"])
        token, counts = lanes.publish(token, messages=[message(0)])
        assert counts == (Published(1, 0, 0) if state == "waiting" else Published(0, 1, 0)), state
    assert len(lanes.fetch(Q, "c", 5).messages) == 1
    lanes.ack(Q, "c", ["a|0"])
    assert lanes.publish(token, messages=[message(0)])[1] == Published(1, 0, 0)


@pytest.mark.parametrize("key", ["lane:a", "ring", "where", "messages", "holder", "held:c", "delayed"])
def test_whatever_key_is_lost_the_audit_brings_every_message_back(
    client: Redis, lanes: Lanes, clock: Clock, key: str
) -> None:
    token = opened(lanes, clock)
    everything = [message(n) for n in range(4)] + [message(9, delay_ms=500)]
    token, _ = lanes.publish(token, messages=everything)
    assert len(lanes.fetch(Q, "c", 1).messages) == 1
    client.delete(f"{NS}:{Q}:{key}")
    gone = set(lanes.missing(Q, {m.message_id: m.intent for m in everything}))
    lanes.publish(token, messages=[m for m in everything if m.message_id in gone])
    lanes.leave(Q, "c")
    clock.now += 500
    assert {i for i, _ in lanes.fetch(Q, "d", 9).messages} == {m.message_id for m in everything}


@pytest.mark.parametrize("key", ["consumers", "held:dead"])
def test_a_lane_is_not_full_of_a_message_that_nobody_holds(
    client: Redis, lanes: Lanes, clock: Clock, key: str
) -> None:
    """Part of Redis was lost together with the consumer: finding out opens the lane, at once."""
    lanes.seize(1)
    open_lanes(lanes, clock)
    capped = Limit("a", 1, 1, 1, None, 1, paused=False)
    token, _ = lanes.publish(Token(1, 0), messages=[message(0), message(1)], limits=[capped])
    assert len(lanes.fetch(Q, "dead", 1).messages) == 1
    lanes.fetch(Q, "c", 1)
    client.delete(f"{NS}:{Q}:{key}")
    lanes.publish(token, messages=[message(0)])
    assert lanes.stats(Q).lanes[0].state == "ring"
    assert len(lanes.fetch(Q, "c", 1).messages) == 1


def test_a_consumer_settles_only_what_it_holds(lanes: Lanes, clock: Clock) -> None:
    token = opened(lanes, clock)
    lanes.publish(token, messages=[message(0)])
    lanes.fetch(Q, "c", 1)
    lanes.ack(Q, "thief", ["a|0"])
    lanes.requeue(Q, "thief", ["a|0"])
    lanes.defer(Q, "thief", "a|0", 10)
    assert lanes.fetch(Q, "thief", 1).messages == []
    assert lanes.beat(Q, "thief", {"a|0": 0}) == (0, 0)
    assert lanes.stats(Q).running == 1


def test_a_message_whose_fetch_reply_was_lost_comes_back_with_the_next_beat(
    lanes: Lanes, clock: Clock
) -> None:
    token = opened(lanes, clock)
    lanes.publish(token, messages=[message(0), message(1)])
    lanes.fetch(Q, "c", 1)
    lanes.fetch(Q, "c", 1)
    assert lanes.beat(Q, "c", {"a|0": 0}) == (0, 1)
    assert [i for i, _ in lanes.fetch(Q, "c", 5).messages] == ["a|1"]


def test_stats_tell_what_is_where(lanes: Lanes, clock: Clock) -> None:
    token = opened(lanes, clock)
    lanes.publish(token, messages=[message(n) for n in range(5)] + [message(9, delay_ms=300)])
    lanes.fetch(Q, "c", 2)
    stats = lanes.stats(Q)
    assert (stats.messages, stats.waiting, stats.delayed, stats.running) == (6, 3, 1, 2)
    assert (stats.lanes_waiting, stats.consumers, stats.next_due_ms) == (1, 1, 300)
    assert [(s.lane, s.waiting, s.running, s.state) for s in stats.lanes] == [("a", 3, 2, "ring")]


def test_a_restart_with_another_run_counts_as_a_loss(own_server: Server) -> None:
    own_server.stop()
    own_server.persist = True
    own_server.start()
    client = redis_client(own_server.url)
    lanes = Lanes(client, NS)
    assert lanes.seize(1).lost
    assert not lanes.seize(2).lost
    own_server.stop()
    own_server.start()
    assert lanes.seize(3).lost
    assert 0 < lanes.fetch(Q, "c", 1).wait_ms <= 1_000
    client.close()


def test_the_eviction_policy_can_be_seen(client: Redis, lanes: Lanes) -> None:
    assert lanes.eviction_policy() == "noeviction"
    client.config_set("maxmemory-policy", "allkeys-lru")
    assert lanes.eviction_policy() == "allkeys-lru"
    client.config_set("maxmemory-policy", "noeviction")


def test_ten_thousand_rows_in_one_call_do_not_overflow_the_scripts_stack(lanes: Lanes, clock: Clock) -> None:
    token = opened(lanes, clock)
    _, counts = lanes.publish(token, messages=[message(n) for n in range(10_000)])
    assert counts == Published(10_000, 0, 0)
    assert len(lanes.fetch(Q, "c", 2_000).messages) == 2_000
