"""Short words for the script's tests: a relay that publishes in slices, messages, limits, one busy worker."""

from broker.lanes import Lanes, Limit, Outgoing, Settled, Token
from support.lane_server import Clock

Q = "previews"


def limit(lane: str, version: int = 1, **changed: object) -> Limit:
    plain = {"max_running": None, "weight": 1, "rate_per_second": None, "burst": 1, "paused": False}
    return Limit(lane, version, **{**plain, **changed})  # type: ignore[arg-type]


def message(lane: str, n: int, *, priority: int = 5, delay_ms: int = 0) -> Outgoing:
    return Outgoing(Q, f"{lane}|{n}", lane, priority, n, delay_ms, b"{}")


def open_lanes(lanes: Lanes, clock: Clock) -> None:
    """Let the time pass, and be served, after which lanes open: a long silence alone opens none."""
    for _ in range(2):
        clock.now += 600
        lanes.stats(Q)


class Relay:
    """Publishes in slices, as the relay does."""

    def __init__(self, lanes: Lanes, clock: Clock) -> None:
        self.lanes = lanes
        lanes.seize(1)
        open_lanes(lanes, clock)
        self.token = Token(1, 0)

    def publish(self, messages: list[Outgoing], limits: list[Limit]) -> None:
        for at in range(0, max(len(messages), len(limits)), 500):
            self.token, _ = self.lanes.publish(
                self.token, messages=messages[at : at + 500], limits=limits[at : at + 500]
            )


def take(lanes: Lanes, count: int, consumer: str = "c") -> list[str]:
    """Fetch one message at a time, as a busy worker does, acknowledging each with the next fetch."""
    taken: list[str] = []
    done: list[Settled] = []
    for _ in range(count):
        got = lanes.fetch(Q, consumer, 1, done).messages
        done = [Settled(i) for i, _ in got]
        taken += [i for i, _ in got]
    lanes.settle(Q, consumer, done)
    return taken


def lanes_of(ids: list[str]) -> list[str]:
    return [i.split("|")[0] for i in ids]
