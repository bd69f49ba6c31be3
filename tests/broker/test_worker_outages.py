"""Real workers whose Redis goes away, comes back empty, freezes, or cuts their connections."""

import threading

import pytest

from support.lane_bench import DEFAULT as Q
from support.lane_bench import Bench
from support.lane_server import NS, Server
from support.waiting import eventually


def test_redis_may_go_and_come_back_empty_while_a_job_runs(fragile: Bench, own_server: Server) -> None:
    begun, gate = threading.Event(), threading.Event()
    ran: list[str] = []

    def act(name: str) -> None:
        if name == "long":
            begun.set()
            gate.wait(20)
        ran.append(name)

    actor = fragile.actor(act)
    fragile.start()
    actor.send("long")
    assert begun.wait(10)
    own_server.stop()
    gate.set()
    eventually(lambda: ran == ["long"])
    eventually(lambda: fragile.broker.held_ids() == frozenset(), timeout=1)  # its thread is free at once
    eventually(lambda: fragile.broker.silence() > 1.5, describe="silence is seen")
    own_server.start()
    actor.send("next")
    fragile.empty()
    assert ran == ["long", "next"]
    eventually(lambda: fragile.broker.silence() < 1.5)


def test_a_flushed_redis_learns_what_is_running(bench: Bench) -> None:
    begun, gate = threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        gate.wait(20)

    bench.actor(act).send()
    bench.start()
    assert begun.wait(10)
    held = bench.broker.held_ids()
    bench.client.flushall()
    eventually(lambda: bench.client.hkeys(f"{NS}:{Q}:holder") == [i.encode() for i in held], timeout=3)
    gate.set()
    eventually(lambda: not bench.client.exists(f"{NS}:{Q}:holder"), timeout=3)


def test_a_frozen_redis_costs_a_pause_and_no_message(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    bench = Bench(own_server.url, timeout=1.5)
    act = bench.actor(ran.append)
    bench.start()
    for n in range(5):
        act.send(n)
    own_server.freeze()
    # Calls fail, and are run late when it thaws.
    eventually(lambda: "Redis does not serve default" in caplog.text)
    own_server.thaw()
    for n in range(5, 10):
        act.send(n)
    bench.empty()
    assert sorted(set(ran)) == list(range(10))
    bench.stop()


def test_killed_connections_are_made_again(bench: Bench) -> None:
    ran: list[int] = []
    act = bench.actor(ran.append)
    bench.start()
    for n in range(5):
        act.send(n)
        for entry in bench.client.client_list():
            if entry["cmd"] == "blpop":
                bench.client.client_kill_filter(_id=entry["id"])
    bench.empty()
    assert sorted(ran) == list(range(5))
