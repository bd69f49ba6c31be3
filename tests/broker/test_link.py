"""A consumer's tie to Redis, where the two disagree."""

from redis import Redis

from broker.lanes import Lanes, Limit, Outgoing, Settled, Token, Verb
from broker.link import Link
from broker.slots import Gate, Slots

QUEUE, LANE, ID = "jobs", "a", "a|1"


def test_what_runs_here_is_not_delivered_here_again_and_no_slot_is_lost(client: Redis) -> None:
    lanes = Lanes(client, "oncommit")
    lanes.seize(1)
    client.hdel("oncommit:clock", "open_at")
    lanes.publish(
        Token(1, 0),
        messages=[Outgoing(QUEUE, ID, LANE, 5, 1, 0, b"{}")],
        limits=[Limit(LANE, 1, None, 1, None, 1, paused=False)],
    )
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
