"""A consumer's tie to Redis, where the two disagree."""

import time

from redis import Redis

from broker.lanes import Lanes, Limit, Outgoing, Settled, Token, Verb
from broker.link import Link, Parked
from broker.slots import Gate, Slots
from support.waiting import eventually

QUEUE, LANE, ID = "jobs", "a", "a|1"


def filled(client: Redis, ids: list[str]) -> Lanes:
    """Publish these messages, in their order."""
    lanes = Lanes(client, "oncommit")
    lanes.seize(1)
    client.hdel("oncommit:clock", "open_at")
    lanes.publish(
        Token(1, 0),
        messages=[Outgoing(QUEUE, name, LANE, 5, n, 0, b"{}") for n, name in enumerate(ids, 1)],
        limits=[Limit(LANE, 1, None, 1, None, 1, paused=False)],
    )
    return lanes


def test_a_kept_message_frees_its_thread_and_stays_in_flight_until_its_end(client: Redis) -> None:
    lanes = filled(client, [ID, "a|2"])
    slots = Slots(1)
    link = Link(lanes, QUEUE, slots, Gate())
    assert slots.take(1.0) == 1
    assert len(link.fetch(1).messages) == 1
    link.free()
    assert slots.take(0.0) == 1, "the thread goes on to the next"
    assert len(link.fetch(1).messages) == 1
    assert link.held_ids() == {ID, "a|2"}
    assert lanes.stats(QUEUE).running == 2, "the team's slots are taken"
    # The only thread is busy: no fetch is near that could say it, and the next beat is up to a second away.
    with link.parked(Parked.FOR_A_SLOT):
        begun = time.monotonic()
        link.end(Settled(ID), frees=False)
        eventually(lambda: lanes.stats(QUEUE).running == 1, timeout=0.5)
        assert time.monotonic() - begun < 0.5
        assert slots.take(0.0) == 0, "its slot was given once"
    link.end(Settled("a|2"))
    assert slots.take(0.0) == 1
    slots.give(1)
    link.leave()
    assert client.hlen(f"oncommit:{QUEUE}:messages") == 0


def test_a_kept_message_that_nobody_acknowledged_goes_back_when_the_process_drains(client: Redis) -> None:
    lanes = filled(client, [ID])
    slots, gate = Slots(1), Gate()
    link = Link(lanes, QUEUE, slots, gate)
    assert slots.take(1.0) == 1
    link.fetch(1)
    link.free()
    gate.drain()
    link.leave()
    stats = lanes.stats(QUEUE)
    assert (stats.waiting, stats.running, stats.consumers) == (1, 0, 0)


def test_what_runs_here_is_not_delivered_here_again_and_no_slot_is_lost(client: Redis) -> None:
    lanes = filled(client, [ID])
    slots = Slots(2)
    link = Link(lanes, QUEUE, slots, Gate())
    assert slots.take(1.0) == 2
    first = link.fetch(2)
    slots.give(2 - len(first.messages))
    assert [message_id for message_id, _ in first.messages] == [ID]
    # Redis takes this consumer for dead, as after a freeze, and gives its message back before the next beat.
    lanes.settle(QUEUE, link.consumer, [Settled(ID, Verb.REQUEUE)])
    assert slots.take(1.0) == 1
    again = link.fetch(1)
    slots.give(1 - len(again.messages))
    assert again.messages == []
    assert link.held_ids() == {ID}
    link.end(Settled(ID))
    assert slots.take(1.0) == 2
    slots.give(2)
    link.leave()
    assert client.hlen(f"oncommit:{QUEUE}:messages") == 0
