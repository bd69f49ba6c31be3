"""lanes.lua against a plain Python model: whatever happens in whatever order, both agree."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from redis import Redis
from redis.exceptions import OutOfMemoryError

from broker.lanes import Lanes, Limit, Outgoing, Published, Settled, Token, TokenMismatch, Verb
from support.lane_model import Model, lane_of
from support.lane_server import NS, Clock

Q = "previews"
LANES = ("ant", "bee", "cat")
IDS = tuple(f"{lane}|{n}" for lane in LANES for n in range(4))
CONSUMERS = ("c1", "c2")
BASELINE = {f"{NS}:{name}".encode() for name in ("token", "limits", "clock", "queues")}

# An id may be used again: then its intent is a newer one. Numbers begin at 1, as in the database.
rows = st.builds(
    lambda message_id, again, priority, delay: Outgoing(
        Q, message_id, lane_of(message_id), priority, IDS.index(message_id) + 1 + len(IDS) * again, delay,
        f"{message_id} {again}".encode(),
    ),
    st.sampled_from(IDS), st.sampled_from((0, 0, 0, 1, 2)), st.sampled_from((0, 5, 9)),
    st.sampled_from((0, 0, 0, 40, 900)),
)  # fmt: skip
limits = st.builds(
    Limit,
    lane=st.sampled_from((*LANES, "*")),
    version=st.just(0),
    max_running=st.sampled_from((None, None, 1, 2)),
    weight=st.integers(1, 3),
    rate_per_second=st.sampled_from((None, None, 0.5, 20.0)),
    burst=st.integers(1, 3),
    paused=st.sampled_from((False, False, False, True)),
)
endings = st.builds(
    Settled, st.sampled_from(IDS), st.sampled_from(list(Verb)), st.sampled_from((0, 30, 2_000))
)


def machine(client: Redis) -> type[RuleBasedStateMachine]:  # noqa: C901 -- one class, not one thought
    """Return the machine over this client: hypothesis makes one instance for each example."""

    class LanesMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            client.config_set("maxmemory", 0)
            self.full = self.refused = False
            self.clock = Clock()
            self.lanes = Lanes(client, NS, clock=self._server_clock)
            self.model = Model(self.clock.now)
            self.versions = 0
            self.epoch = 0
            self.flushed = True
            self.token = Token(0, 0)
            self.seize()

        def _server_clock(self) -> int:
            """Tell the time to a command that is on its way; each is one tick, unless it is refused."""
            if not self.refused:
                self.model.clock = self.clock.now
                self.model.tick()
            return self.clock.now

        @rule()
        def seize(self) -> None:
            lost, self.flushed = self.flushed, False
            self.epoch += 1
            assert self.lanes.seize(self.epoch).lost == lost
            if lost:
                self.model.open_at = self.model.served + 1_200
            self.token = Token(self.epoch, 0)

        @rule(messages=st.lists(rows, max_size=6))
        def publish(self, messages: list[Outgoing]) -> None:
            self._publish(messages, [])

        @rule(limit=limits, age=st.sampled_from((0, 0, 0, 1, 2)))
        def limit(self, limit: Limit, age: int) -> None:
            self.versions += 1
            self._publish([], [replace(limit, version=max(self.versions - age, 1))])

        @rule(full=st.booleans())
        def redis_is_full_or_has_room_again(self, full: bool) -> None:
            client.config_set("maxmemory", 1 if full else 0)
            self.full = full

        @rule(row=rows)
        def send(self, row: Outgoing) -> None:
            default = Limit(row.lane, 0, None, 1, None, 1, paused=False)
            if self.full:
                self._no_room(lambda: self.lanes.send(row, default))
                return
            assert self.lanes.send(row, default) == Published(*self.model.send(row, default))

        def _no_room(self, call: Callable[[], object]) -> None:
            self.refused = True
            with pytest.raises(OutOfMemoryError):
                call()
            self.refused = False

        def _publish(self, messages: list[Outgoing], limits: list[Limit]) -> None:
            if self.full:
                self._no_room(lambda: self.lanes.publish(self.token, messages=messages, limits=limits))
                return
            if self.flushed:  # the relay finds out, and takes over again
                self._refused(messages, limits)
                self.seize()
            expected = self.token
            self.token, counts = self.lanes.publish(expected, messages=messages, limits=limits)
            new, duplicate, revived = self.model.publish(messages, limits)
            assert counts == Published(new, duplicate, revived)
            assert self.token == Token(expected.epoch, expected.seq + 1)

        def _refused(self, messages: list[Outgoing], limits: list[Limit]) -> None:
            with pytest.raises(TokenMismatch) as caught:
                self.lanes.publish(self.token, messages=messages, limits=limits)
            assert caught.value.stored is None

        @rule(messages=st.lists(rows, max_size=3))
        def publish_again_after_a_lost_reply(self, messages: list[Outgoing]) -> None:
            before = self.token
            self._publish(messages, [])
            if self.full or self.token.epoch != before.epoch:
                return
            assert self.lanes.publish(before, messages=messages) == (self.token, Published(0, 0, 0))

        @rule(messages=st.lists(rows, max_size=3), back=st.integers(2, 3))
        def publish_of_a_stale_relay(self, messages: list[Outgoing], back: int) -> None:
            if self.flushed or self.full:
                return
            with pytest.raises(TokenMismatch) as caught:
                self.lanes.publish(Token(self.token.epoch, self.token.seq - back), messages=messages)
            assert caught.value.stored == self.token

        @rule(
            consumer=st.sampled_from(CONSUMERS), count=st.integers(1, 5), done=st.lists(endings, max_size=4)
        )
        def fetch(self, consumer: str, count: int, done: list[Settled]) -> None:
            got = self.lanes.fetch(Q, consumer, count, done)
            assert got.messages == self.model.fetch(consumer, count, done)
            assert 0 <= got.wait_ms <= 1_000
            for lane in {lane_of(message_id) for message_id, _ in got.messages}:
                cap = self.model.limits[lane].max_running
                assert cap is None or self.model.running(lane) <= cap

        @rule(consumer=st.sampled_from(CONSUMERS), done=st.lists(endings, max_size=4))
        def settle(self, consumer: str, done: list[Settled]) -> None:
            self.lanes.settle(Q, consumer, done)
            self.model.consumers[consumer] = self.model.served
            for ending in done:
                self.model.settle(consumer, ending)

        @rule(consumer=st.sampled_from(CONSUMERS))
        def beat(self, consumer: str) -> None:
            held = self.model.held.get(consumer, {})
            self._beat(consumer, {i: score % 2**48 for i, score in held.items()})

        @rule(
            consumer=st.sampled_from(CONSUMERS),
            ids=st.lists(st.sampled_from(IDS), max_size=4, unique=True),
            again=st.sampled_from((None, 0, 0, 1)),
        )
        def beat_after_something_was_lost(self, consumer: str, ids: list[str], again: int | None) -> None:
            def intent(i: str) -> int:
                return 0 if again is None else IDS.index(i) + 1 + len(IDS) * again

            self._beat(consumer, {i: intent(i) for i in ids})

        def _beat(self, consumer: str, ids: dict[str, int]) -> None:
            assert self.lanes.beat(Q, consumer, ids) == self.model.beat(consumer, ids)

        @rule(consumer=st.sampled_from(CONSUMERS))
        def leave(self, consumer: str) -> None:
            self.lanes.leave(Q, consumer)
            self.model.leave(consumer)

        @rule(ms=st.sampled_from((1, 25, 300, 1_200, 4_000)))
        def time_passes(self, ms: int) -> None:
            self.clock.now += ms

        @rule(ms=st.sampled_from((-3_600_000, -700, -1, 3_600_000)))
        def the_servers_clock_steps(self, ms: int) -> None:
            self.clock.now += ms

        @rule()
        def nobody_but_the_relay_calls_for_a_while(self) -> None:
            for _ in range(12):
                self.time_passes(1_000)
                self._publish([], [])

        @rule(again=st.sampled_from((0, 0, 1)))
        def missing(self, again: int) -> None:
            asked = {i: IDS.index(i) + 1 + len(IDS) * again for i in IDS}
            assert self.lanes.missing(Q, asked) == [
                i for i, n in asked.items() if not self.model.alive(i) or self.model.intent(i) < n
            ]
            for message_id in IDS:
                if message_id in self.model.waiting.get(lane_of(message_id), {}):
                    self.model.place(lane_of(message_id))

        @rule()
        def purge(self) -> None:
            self.lanes.purge(Q)
            self.model.purge()

        @rule()
        def flush(self) -> None:
            client.flushall()
            self.flushed = True
            self.model = Model(self.clock.now)

        @invariant()
        def redis_holds_what_the_model_holds(self) -> None:
            m = self.model
            p = f"{NS}:{Q}:"
            running: dict[str, set[str]] = {}
            for ids in m.held.values():
                for i in ids:
                    running.setdefault(lane_of(i), set()).add(i)
            lanes, consumers = list(LANES), list(CONSUMERS)
            read = client.pipeline(transaction=False)
            for key in ("messages", "holder", "where", "following"):
                read.hgetall(p + key)
            for key in ("delayed", "throttled", "consumers", *(f"lane:{n}" for n in lanes)):
                read.zrange(p + key, 0, -1, withscores=True)
            for consumer in consumers:
                read.zrange(f"{p}held:{consumer}", 0, -1, withscores=True)
            for lane in lanes:
                read.smembers(f"{p}running:{lane}")
            read.zrange(p + "ring", 0, -1)
            read.llen(p + "wake")
            got = iter(read.execute())
            assert _texts(next(got)) == {
                i: f"{score} {body.decode()}" for i, (score, body) in m.bodies.items()
            }
            assert _texts(next(got)) == {i: c for c, ids in m.held.items() for i in ids}
            assert _texts(next(got)) == {
                lane: f"ring {m.credit[lane]}" if lane in m.credit else state
                for lane, state in m.state.items()
            }
            assert _texts(next(got)) == {
                i: f"{due} {score} {body.decode()}" for i, (due, score, body) in m.following.items()
            }
            assert _scores(next(got)) == m.delayed
            assert _scores(next(got)) == m.until
            assert _scores(next(got)) == m.consumers
            for lane in lanes:
                assert _scores(next(got)) == m.waiting.get(lane, {})
            for consumer in consumers:
                assert _scores(next(got)) == m.held.get(consumer, {})
            for lane in lanes:
                assert {i.decode() for i in next(got)} == running.get(lane, set())
            assert [lane.decode() for lane in next(got)] == m.ring
            assert next(got) <= len(m.consumers)

        @invariant()
        def finished_work_leaves_no_key(self) -> None:
            if self.model.bodies or self.model.held:
                return
            left = set(client.keys()) - BASELINE
            assert left <= {f"{NS}:{Q}:{k}".encode() for k in ("consumers", "wake", "rate")}

    return LanesMachine


def _texts(answer: dict[bytes, bytes]) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in answer.items()}


def _scores(answer: list[tuple[bytes, float]]) -> dict[str, int]:
    return {k.decode(): int(v) for k, v in answer}


def test_the_script_and_the_model_agree(client: Redis) -> None:
    run_state_machine_as_test(
        machine(client),
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
