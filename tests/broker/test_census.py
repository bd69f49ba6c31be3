"""The census of lanes: what waits, is delayed and runs, for the longest lanes and for the rest."""

import time

from broker import census
from broker.eviction import Eviction
from broker.lanes import Lanes, Limit, Outgoing, Token
from support.lane_desk import open_lanes
from support.lane_server import Clock

Q = "previews"


def put(lanes: Lanes, names: list[str], each: int = 1, *, delay_ms: int = 0, start: int = 0) -> None:
    """Publish `each` messages in each lane, in calls of 500."""
    epoch = time.monotonic_ns()
    lanes.seize(epoch)
    token = Token(epoch, 0)
    rows = [(name, start + i) for name in names for i in range(each)]
    for begin in range(0, len(rows), 500):
        page = rows[begin : begin + 500]
        token, _ = lanes.publish(
            token,
            messages=[Outgoing(Q, f"{name}|{i}", name, 5, i, delay_ms, b"{}") for name, i in page],
            limits=[Limit(name, 1, None, 1, None, 1, paused=False) for name, _ in page],
        )


def test_the_longest_lanes_are_named_and_the_rest_is_other(lanes: Lanes) -> None:
    put(lanes, ["big"], 7)
    put(lanes, [f"small-{i}" for i in range(9)], 2)
    put(lanes, ["late"], 5, delay_ms=60_000)
    put(lanes, ["other"], 9)  # a team of that name stays with the rest
    taken = census.take(lanes, top=2)
    assert taken.waiting == {(Q, "big"): 7, (Q, "other"): 27}
    assert taken.delayed == {(Q, "late"): 5, (Q, "other"): 0}
    assert set(taken.running.values()) == {0}
    assert sum(taken.states.values()) == 11


def test_what_runs_is_counted_where_it_runs(lanes: Lanes, clock: Clock) -> None:
    put(lanes, ["acme", "beta"], 3)
    open_lanes(lanes, clock)
    assert len(lanes.fetch(Q, "c1", 4).messages) == 4
    taken = census.take(lanes)
    assert taken.running == {(Q, "acme"): 2, (Q, "beta"): 2}
    assert taken.waiting == {(Q, "acme"): 1, (Q, "beta"): 1}


def cpu_us(lanes: Lanes) -> float:
    """Return the processor time that Redis' main thread has used, microseconds."""
    used = lanes.client.info("cpu")
    return 1e6 * (used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])


def test_ten_thousand_lanes_cost_redis_little_at_a_time(lanes: Lanes) -> None:
    put(lanes, [f"team-{i}" for i in range(10_000)])
    lanes.client.config_resetstat()
    before = cpu_us(lanes)
    taken = census.take(lanes, top=50)
    spent = cpu_us(lanes) - before
    assert sum(taken.waiting.values()) == 10_000
    assert len(taken.waiting) == 51
    calls = lanes.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls <= 60, "the pages are large enough"
    # Processor time: by the clock, a busy machine would be counted too.
    assert spent / calls < 5_000, "and small enough to hold nobody up"
    assert spent < 200_000


def test_a_policy_that_drops_messages_is_seen(lanes: Lanes) -> None:
    eye = Eviction(lanes)
    assert eye.ok, "as long as nothing is known"
    eye.look()
    assert (eye.ok, eye.policy, eye.detail) == (True, "noeviction", {})
    try:
        lanes.client.config_set("maxmemory-policy", "allkeys-lru")
        eye.look()
        assert not eye.ok
        assert "allkeys-lru" in eye.detail["redis_policy"]
    finally:
        lanes.client.config_set("maxmemory-policy", "noeviction")
    eye.look()
    assert eye.ok
