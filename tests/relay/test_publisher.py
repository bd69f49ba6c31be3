"""The publisher tells the truth about its reign, also to the thread of the health page, also in mid-call."""

from typing import Any

import pytest
from redis import Redis

from broker.client import redis_client
from broker.lanes import Lanes, Limit, Outgoing, Token, TokenMismatch
from relay.publisher import ROWS_PER_CALL, Publisher, RedisAway
from support.processes import Processes
from support.proxy import Proxies
from support.valkey import Valkey

LINK_DELAY_SECONDS = 0.1


class Asked(Lanes):
    """Lanes that ask the publisher in the middle of each call, as the health page may."""

    publisher: Publisher

    def __init__(self, client: Redis) -> None:
        super().__init__(client, "oncommit")
        self.answers: list[bool] = []

    def publish(self, expected: Token, **given: Any) -> Any:
        self.answers.append(self.publisher.reigns)
        done = super().publish(expected, **given)
        self.answers.append(self.publisher.reigns)
        return done


@pytest.fixture
def lanes(valkey: Valkey) -> Asked:
    found = Asked(valkey.client)
    found.publisher = Publisher(found)
    return found


def rows(count: int) -> list[Outgoing]:
    return [Outgoing("previews", f"acme|{n}.1", "acme", 5, n, 0, b"{}") for n in range(1, count + 1)]


def test_it_reigns_while_a_call_is_under_way(lanes: Asked) -> None:
    assert not lanes.publisher.reigns
    lanes.publisher.seize(1)
    lanes.publisher.publish(rows(ROWS_PER_CALL + 1), [Limit("acme", 1, None, 1, None, 1, paused=False)])
    lanes.publisher.publish()
    assert lanes.answers == [True] * 6


def test_it_reigns_no_more_once_a_call_has_failed(lanes: Asked, valkey: Valkey) -> None:
    lanes.publisher.seize(1)
    Lanes(valkey.client, "oncommit").seize(2)
    with pytest.raises(TokenMismatch):
        lanes.publisher.publish(rows(1))
    assert not lanes.publisher.reigns
    lanes.publisher.seize(3)
    valkey.kill()
    with pytest.raises(RedisAway):
        lanes.publisher.publish(rows(1))
    assert not lanes.publisher.reigns
    with pytest.raises(RedisAway, match="no reign"):
        lanes.publisher.publish()


def test_a_frozen_redis_costs_one_time_out_and_not_two(valkey: Valkey) -> None:
    lanes = Asked(redis_client(valkey.url, timeout=0.5))
    publisher = lanes.publisher = Publisher(lanes)
    publisher.seize(1)
    valkey.freeze()
    with pytest.raises(RedisAway) as away:
        publisher.publish(rows(1))
    assert away.value.frozen
    assert len(lanes.answers) == 1, "the WAL waits meanwhile"


def test_a_relay_far_from_its_redis_is_ready_all_the_time(
    processes: Processes, valkey: Valkey, proxies: Proxies
) -> None:
    proxy = proxies.to(valkey.port)
    relay = processes.relay(ONCOMMIT_REDIS_URL=f"redis://127.0.0.1:{proxy.port}/0")
    proxy.slow(LINK_DELAY_SECONDS)  # each way: of the 300 ms between two beats, a call takes 200
    assert [relay.get("/readyz") for _ in range(200)] == [200] * 200
