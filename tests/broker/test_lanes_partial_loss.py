"""Any keys of Redis may vanish, at any moment: what is asked for still runs, and nothing leaks."""

import random

import pytest
from redis import Redis

from broker.lanes import Lanes, Limit, Outgoing, Settled, Token, TokenMismatch, Verb
from support.lane_desk import Q, limit
from support.lane_server import NS, Clock

LANES, CONSUMERS = ("a", "b", "c"), ("x", "y", "z")
LIMITS = [limit("a", max_running=1), limit("b", max_running=2), limit("c", rate_per_second=5)]
LEFT = {f"{NS}:{k}" for k in ("token", "limits", "clock", "queues")} | {
    f"{NS}:{Q}:{k}" for k in ("consumers", "wake", "rate")
}
STEPS = 90
#: Rounds of a second in which all is well again: the dead are buried after 10, and a lane of cap 1 needs
#: one round for each message.
ROUNDS = 120


class World:
    """A database, its relay, and consumers that keep to their rules, over a Redis that forgets."""

    def __init__(self, client: Redis, seed: int) -> None:
        self.client = client
        self.chance = random.Random(seed)
        self.clock = Clock()
        self.lanes = Lanes(client, NS, clock=self.clock)
        self.intents = 0
        self.living: dict[str, Outgoing] = {}
        self.held: dict[str, dict[str, int]] = {c: {} for c in CONSUMERS}
        self.token = Token(0, 0)
        self.seize()

    def seize(self) -> None:
        self.token = Token(self.token.epoch + 1, 0)
        self.lanes.seize(self.token.epoch)
        self.token, _ = self.lanes.publish(self.token, limits=LIMITS)

    def publish(self, rows: list[Outgoing], limits: list[Limit]) -> None:
        try:
            self.token, _ = self.lanes.publish(self.token, messages=rows, limits=limits)
        except TokenMismatch:
            self.seize()
            self.audit()

    def audit(self) -> None:
        gone = self.lanes.missing(Q, {i: m.intent for i, m in self.living.items()})
        self.publish([self.living[i] for i in gone], LIMITS)

    def accept(self) -> None:
        """Commit a new intent; now and then under an id that was used before."""
        self.intents += 1
        number = self.chance.randint(1, self.intents) if self.chance.random() < 0.3 else self.intents
        lane = self.chance.choice(LANES)
        delay_ms = self.chance.choice((0, 0, 300))
        row = Outgoing(
            Q, f"{lane}|{number}", lane, self.chance.choice((0, 5, 9)), self.intents, delay_ms, b""
        )
        self.living[row.message_id] = row
        self.publish([row], [])

    def fetch(self, consumer: str) -> None:
        got = self.lanes.fetch(Q, consumer, self.chance.randint(1, 3))
        for message_id, _ in got.messages:
            self.held[consumer].setdefault(message_id, got.intents[message_id])

    def end(self, consumer: str, verb: Verb) -> None:
        """End one delivery; an ack consumes the very intent that it came from."""
        if not self.held[consumer]:
            return
        message_id = self.chance.choice(sorted(self.held[consumer]))
        intent = self.held[consumer].pop(message_id)
        living = self.living.get(message_id)
        if verb is Verb.ACK and living is not None and living.intent == intent:
            del self.living[message_id]
        self.lanes.settle(Q, consumer, [Settled(message_id, verb, self.chance.choice((0, 500)))])

    def lose_a_key(self) -> None:
        self.client.delete(self.chance.choice(sorted(self.client.keys())))

    def step(self) -> None:
        consumer = self.chance.choice(CONSUMERS)
        match self.chance.randrange(10):
            case 0 | 1 | 2:
                self.accept()
            case 3 | 4:
                self.fetch(consumer)
            case 5 | 6:
                self.end(consumer, self.chance.choice(list(Verb)))
            case 7:
                self.held[consumer].clear()  # killed, and started again under its old name: the worst case
            case 8:
                self.clock.now += self.chance.choice((1, 400, 1_000, 20_000, -5_000))
            case _:
                self.lose_a_key()

    def recover(self) -> None:
        for done in range(ROUNDS):
            self.clock.now += 1_000
            for consumer in CONSUMERS:
                self.lanes.beat(Q, consumer, self.held[consumer])
            self.audit()
            for consumer in CONSUMERS:
                self.fetch(consumer)
                while self.held[consumer]:
                    self.end(consumer, Verb.ACK)
            if done > 15 and not self.living and not self.lanes.stats(Q).messages:
                return


@pytest.mark.parametrize("seed", [13, 1_000, 1_001, 1_014, 1_052, *range(100, 104)])
def test_whatever_keys_are_lost_all_that_is_asked_for_runs_and_nothing_stays(
    client: Redis, seed: int
) -> None:
    world = World(client, seed)
    for _ in range(STEPS):
        world.step()
    world.recover()
    assert world.living == {}
    assert {key.decode() for key in client.scan_iter()} <= LEFT
