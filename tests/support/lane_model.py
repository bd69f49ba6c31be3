"""What lanes.lua should do to one queue, in plain Python: the model of test_lanes_model.py."""

import math
from dataclasses import dataclass, field

from broker.lanes import Limit, Outgoing, Settled, Verb

DEAD_AFTER, SERVED_STEP, OPEN_AFTER, HOLD = 10_000, 1_100, 1_200, 250
STEP = 2**48
REFUNDING = {Verb.REFUND, Verb.HOLD, Verb.REQUEUE}


def lane_of(message_id: str) -> str:
    return message_id.split("|", maxsplit=1)[0]


@dataclass
class Model:
    """One queue, its limits and its clock."""

    clock: int  # what the server's clock says
    now: int = 0  # script time
    last: int | None = None
    shift: int = 0
    served: int = 0
    open_at: int | None = None
    limits: dict[str, Limit] = field(default_factory=dict)
    bodies: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    following: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)  # id -> due, score, body
    came: dict[str, bool] = field(default_factory=dict)  # lanes to look at when a publish ends
    waiting: dict[str, dict[str, int]] = field(default_factory=dict)  # lane -> id -> score
    delayed: dict[str, int] = field(default_factory=dict)  # id -> due
    held: dict[str, dict[str, int]] = field(default_factory=dict)  # consumer -> id -> score
    consumers: dict[str, int] = field(default_factory=dict)  # -> served time of the last call
    ring: list[str] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    until: dict[str, int] = field(default_factory=dict)  # throttled lanes
    credit: dict[str, int] = field(default_factory=dict)
    full_at: dict[str, float] = field(default_factory=dict)  # when a lane's bucket is full again

    # Helpers ------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.now = self.clock + self.shift
        if self.last is None:
            self.last = self.served = self.now
        if self.now < self.last:
            self.shift += self.last - self.now
            self.now = self.last
        self.served += min(self.now - self.last, SERVED_STEP)
        self.last = self.now

    def holder(self, message_id: str) -> str | None:
        return next((c for c, ids in self.held.items() if message_id in ids), None)

    def running(self, lane: str) -> int:
        return sum(lane_of(i) == lane for ids in self.held.values() for i in ids)

    def alive(self, message_id: str) -> bool:
        if message_id in self.following:
            return self.holder(message_id) is not None
        return message_id in self.bodies and (
            message_id in self.waiting.get(lane_of(message_id), {})
            or message_id in self.delayed
            or self.holder(message_id) is not None
        )

    def intent(self, message_id: str) -> int:
        """Return the intent that a living id stands for."""
        if message_id in self.following:
            return self.following[message_id][1] % STEP
        return self.bodies[message_id][0] % STEP

    def interval(self, lane: str) -> float | None:
        rate = self.limits[lane].rate_per_second
        return None if rate is None else 1000 / rate

    def tokens(self, lane: str) -> float:
        if (step := self.interval(lane)) is None:
            return math.inf
        full_at = max(self.full_at.get(lane, self.now), self.now)
        return math.floor((self.now - full_at) / step + self.limits[lane].burst + 0.001)

    def verdict(self, lane: str) -> str:
        limit = self.limits.get(lane)
        if limit is None:
            return "closed"
        if limit.paused:
            return "paused"
        if limit.max_running is not None and self.running(lane) >= limit.max_running:
            return "full"
        return "ring" if self.tokens(lane) >= 1 else "throttled"

    def move(self, lane: str, to: str | None, until: int | None = None) -> None:
        was = self.state.pop(lane, None)
        if to != "ring" or was != "ring":
            self.credit.pop(lane, None)
        if was == "ring" and to != "ring":
            self.ring.remove(lane)
        if to == "ring" and was != "ring":
            self.ring.append(lane)
        self.until.pop(lane, None)
        if to == "throttled":
            step = self.interval(lane) if until is None else None
            if step is not None:
                until = math.ceil(max(self.full_at[lane], self.now) - (self.limits[lane].burst - 1) * step)
                until = max(until, self.now + 1)
            assert until is not None
            self.until[lane] = until
        if to is not None:
            self.state[lane] = to

    def place(self, lane: str) -> None:
        self.move(lane, self.verdict(lane) if self.waiting.get(lane) else None)

    def enter(self, message_id: str, score: int) -> None:
        lane = lane_of(message_id)
        self.waiting.setdefault(lane, {})[message_id] = score
        if lane not in self.state:
            self.place(lane)

    def unhold(self, consumer: str, message_id: str) -> int:
        score = self.held[consumer].pop(message_id)
        if not self.held[consumer]:
            del self.held[consumer]
        return score

    def give_back(self, consumer: str, message_id: str) -> None:
        score, lane = self.unhold(consumer, message_id), lane_of(message_id)
        if message_id in self.bodies:
            self.waiting.setdefault(lane, {})[message_id] = score
        else:
            self.follow(message_id)

    def follow(self, message_id: str) -> bool:
        """Let the newer intent come; True if it went to its lane."""
        if message_id not in self.following:
            return False
        due, score, body = self.following.pop(message_id)
        self.bodies[message_id] = score, body
        if due > self.now:
            self.delayed[message_id] = due
            return False
        self.waiting.setdefault(lane_of(message_id), {})[message_id] = score
        return True

    # Commands -----------------------------------------------------------------------------------

    def publish(self, messages: list[Outgoing], limits: list[Limit]) -> tuple[int, int, int]:
        for limit in limits:
            self._limit(limit)
        counts = [0, 0, 0]
        for m in messages:
            counts[self._put(m)] += 1
        self.look()
        return counts[0], counts[1], counts[2]

    def send(self, message: Outgoing, default: Limit) -> tuple[int, int, int]:
        return self.publish([message], [] if default.lane in self.limits else [default])

    def _limit(self, limit: Limit) -> None:
        old = self.limits.get(limit.lane)
        if old is not None and old.version >= limit.version:
            return
        self.limits[limit.lane] = limit
        lane = limit.lane
        if lane in self.full_at:
            if limit.rate_per_second is None:
                del self.full_at[lane]
            elif old is not None and old.rate_per_second is not None:
                starts = max(self.full_at[lane] - self.now, 0) * old.rate_per_second / 1000
                self.full_at[lane] = self.now + min(starts, limit.burst) * 1000 / limit.rate_per_second
        if lane != "*":
            self.place(lane)

    def look(self) -> None:
        """Give the lanes that were met a place, in the order in which they were met."""
        for lane, heal in self.came.items():
            if heal or lane not in self.state:
                self.place(lane)
        self.came.clear()

    def _put(self, m: Outgoing) -> int:
        score, lane = m.priority * STEP + m.intent, lane_of(m.message_id)
        owner = self.holder(m.message_id)
        if owner is not None:
            return self._put_in_flight(owner, m, score)
        if m.message_id in self.bodies:
            # Whatever has a body is alive here: the model loses everything or nothing.
            if m.message_id in self.waiting.get(lane, {}):
                self.came[lane] = True
            if m.intent <= self.bodies[m.message_id][0] % STEP:
                return 1
            self.waiting.get(lane, {}).pop(m.message_id, None)
            self.delayed.pop(m.message_id, None)
        self.bodies[m.message_id] = (score, m.body)
        if m.delay_ms:
            self.delayed[m.message_id] = self.now + m.delay_ms
        else:
            self.waiting.setdefault(lane, {})[m.message_id] = score
            self.came.setdefault(lane, False)
        return 0

    def _put_in_flight(self, owner: str, m: Outgoing, score: int) -> int:
        message_id, there = m.message_id, (*self.bodies.get(m.message_id, ()),)
        if message_id in self.following:
            known, same = self.following[message_id][1] % STEP, 1
        else:
            known = (there[0] if there else self.held[owner][message_id]) % STEP
            same = 1 if there else 2
        if known == 0 or (m.intent == known and same == 2):
            self.bodies[message_id] = (score, m.body)
            self.held[owner][message_id] = score
            return 2
        if m.intent <= known:
            return 1
        self.bodies.pop(message_id, None)
        self.following[message_id] = (self.now + m.delay_ms, score, m.body)
        return 0

    def _end(self, consumer: str, settled: Settled) -> bool:
        """Take a message out of flight; True if one came to its lane."""
        message_id, lane = settled.message_id, lane_of(settled.message_id)
        score = self.unhold(consumer, message_id)
        if message_id not in self.bodies:
            return self.follow(message_id)
        if settled.verb is Verb.REQUEUE:
            self.waiting.setdefault(lane, {})[message_id] = score
            return True
        if settled.verb is Verb.ACK:
            del self.bodies[message_id]
        else:
            self.delayed[message_id] = self.now + settled.delay_ms
        return False

    def settle(self, consumer: str, settled: Settled) -> None:
        lane = lane_of(settled.message_id)
        if settled.message_id not in self.held.get(consumer, {}):
            return
        came = self._end(consumer, settled)
        if settled.verb in REFUNDING:
            step = self.interval(lane) if lane in self.limits else None
            if step is not None and lane in self.full_at:
                self.full_at[lane] -= step
            if lane in self.credit:
                self.credit[lane] = min(self.credit[lane] + 1, self.limits[lane].weight)
        if came and lane not in self.state:
            self.place(lane)
            if settled.verb is not Verb.HOLD:
                return
        state = self.state.get(lane)
        if settled.verb is Verb.HOLD:
            if state in {"ring", "full", "throttled"}:
                self.move(lane, "throttled", self.now + HOLD)
        elif state == "full" or (settled.verb in REFUNDING and state == "throttled"):
            self.place(lane)

    def fetch(self, consumer: str, count: int, settled: list[Settled]) -> list[tuple[str, bytes]]:
        self.consumers[consumer] = self.served
        for s in settled:
            self.settle(consumer, s)
        self._due()
        self._bury()
        if self.open_at is not None and self.served >= self.open_at:
            self.open_at = None
        if self.open_at is not None or ("*" in self.limits and self.limits["*"].paused):
            return []
        taken: list[str] = []
        while len(taken) < count and self.ring:
            taken.append(self._take(consumer))
        return [(i, self.bodies[i][1]) for i in taken]

    def _due(self) -> None:
        for due, message_id in sorted((d, i) for i, d in self.delayed.items()):
            if due <= self.now:
                del self.delayed[message_id]
                self.enter(message_id, self.bodies[message_id][0])
        for due, lane in sorted((d, lane) for lane, d in self.until.items()):
            if due <= self.now:
                self.place(lane)
        self.full_at = {lane: at for lane, at in self.full_at.items() if at > self.now}

    def _bury(self) -> None:
        dead = sorted((at, c) for c, at in self.consumers.items() if at < self.served - DEAD_AFTER)
        if dead:
            consumer = dead[0][1]
            for _, message_id in sorted((s, i) for i, s in self.held.get(consumer, {}).items()):
                self.give_back(consumer, message_id)
                self.place(lane_of(message_id))
            del self.consumers[consumer]

    def _take(self, consumer: str) -> str:
        lane = self.ring[0]
        limit = self.limits[lane]
        score, message_id = min((s, i) for i, s in self.waiting[lane].items())
        del self.waiting[lane][message_id]
        self.held.setdefault(consumer, {})[message_id] = score
        if (step := self.interval(lane)) is not None:
            self.full_at[lane] = max(self.full_at.get(lane, self.now), self.now) + step
        credit = self.credit.pop(lane, limit.weight) - 1
        if not self.waiting[lane]:
            self.move(lane, None)
        elif (to := self.verdict(lane)) != "ring":
            self.move(lane, to)
        elif credit > 0:
            self.credit[lane] = credit
        else:
            self.ring.append(self.ring.pop(0))
        return message_id

    def beat(self, consumer: str, ids: dict[str, int]) -> tuple[int, int]:
        self.consumers[consumer] = self.served
        mine = sorted((s, i) for i, s in self.held.get(consumer, {}).items())
        dropped = [i for _, i in mine if i not in ids]
        for message_id in dropped:
            self.give_back(consumer, message_id)
            self.place(lane_of(message_id))
        restored = 0
        for message_id, intent in ids.items():
            score = self.bodies.get(message_id, (intent, b""))[0]
            if self.holder(message_id) is None and (intent in {0, score % STEP}):
                lane = lane_of(message_id)
                self.waiting.get(lane, {}).pop(message_id, None)
                self.delayed.pop(message_id, None)
                self.held.setdefault(consumer, {})[message_id] = score
                self.place(lane)
                restored += 1
        return restored, len(dropped)

    def leave(self, consumer: str) -> None:
        for _, message_id in sorted((s, i) for i, s in self.held.get(consumer, {}).items()):
            self.settle(consumer, Settled(message_id, Verb.REQUEUE))
        self.consumers.pop(consumer, None)

    def purge(self) -> None:
        for lane in list(self.state):
            for message_id in self.waiting.pop(lane, {}):
                del self.bodies[message_id]
            self.place(lane)
        for message_id in self.delayed:
            del self.bodies[message_id]
        self.delayed.clear()
        self.following.clear()
