"""Real Dramatiq workers over real lanes: how deliveries end and wait, and what cannot run."""

import logging
import sys
import threading
import time
from statistics import median
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import Retry
from dramatiq.middleware import Middleware, SkipMessage

from broker.settle import Defer
from support.lane_bench import DEFAULT as Q
from support.lane_bench import Bench
from support.lane_server import NS, Server
from support.waiting import eventually


def test_messages_run_once_and_leave_nothing_behind(bench: Bench) -> None:
    ran: list[int] = []
    act = bench.actor(ran.append)
    bench.start()
    for n in range(100):
        act.send(n)
    act.send_with_options(args=(100,), delay=150)
    bench.empty()
    assert sorted(ran) == list(range(101))
    bench.stop()
    assert {k.decode() for k in bench.client.scan_iter()} == {
        f"{NS}:{k}" for k in ("clock", "limits", "queues")
    }


def test_a_delayed_message_waits_in_redis_and_not_in_a_worker(bench: Bench) -> None:
    begun: list[float] = []
    act = bench.actor(lambda: begun.append(time.monotonic()))
    bench.start()
    sent = time.monotonic()
    act.send_with_options(delay=300)
    eventually(lambda: bench.lanes.stats(Q).delayed == 1)
    assert bench.broker.held_ids() == frozenset()
    bench.empty()
    assert 0.29 <= begun[0] - sent < 2


def test_an_exception_brings_the_message_back_after_a_second(bench: Bench) -> None:
    begun: list[float] = []

    def act() -> None:
        begun.append(time.monotonic())
        if len(begun) == 1:
            raise ValueError("broken")

    bench.actor(act).send()
    bench.start()
    bench.empty()
    assert len(begun) == 2
    assert 0.95 <= begun[1] - begun[0] < 3


@pytest.mark.parametrize("quiet", [Defer(120, "not yet"), Defer(120, "paused"), Retry("again", delay=120)])
def test_a_deferred_message_comes_back_when_it_asked_to_and_is_no_error(
    bench: Bench, caplog: pytest.LogCaptureFixture, quiet: Exception
) -> None:
    begun: list[float] = []

    def act() -> None:
        begun.append(time.monotonic())
        if len(begun) == 1:
            raise quiet

    bench.actor(act).send()
    with caplog.at_level(logging.WARNING):
        bench.start()
        bench.empty()
    assert 0.11 <= begun[1] - begun[0] < 2
    assert caplog.records == []


def test_even_an_exit_in_an_actor_is_no_ack(bench: Bench) -> None:
    runs: list[int] = []

    def act() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise SystemExit(1)

    bench.actor(act).send()
    bench.start()
    bench.empty()
    assert len(runs) == 2


def test_a_skip_is_an_ack_and_a_defer_in_a_middleware_is_not(lanes_server: Server) -> None:
    class Doorman(Middleware):
        seen = 0

        def before_process_message(self, _broker: dramatiq.Broker, message: Any) -> None:
            self.seen += 1
            if message.args[0] == "skip":
                raise SkipMessage
            if self.seen <= 2:
                raise Defer(20)

    ran: list[str] = []
    doorman = Doorman()
    bench = Bench(lanes_server.url, threads=1, middleware=[doorman])
    act = bench.actor(ran.append)
    act.send("skip")
    act.send("run")
    bench.start()
    bench.empty()
    bench.stop()
    assert ran == ["run"]
    assert doorman.seen == 3


GOOD = (
    b'{"queue_name":"default","actor_name":"act","args":[%d],"kwargs":{},"options":{},'
    b'"message_id":"%d","message_timestamp":1}'
)
BAD = {
    "undecodable body": b"\xff{",
    "undecodable body: options is NoneType": GOOD.replace(b'"options":{}', b'"options":null') % (1, 1),
    "unknown actor 'gone'": GOOD.replace(b'"act"', b'"gone"') % (1, 1),
    "wrong queue 'other': it came by 'default'": GOOD.replace(b'"default"', b'"other"') % (1, 1),
    "unsupported version 2: this worker knows 1": GOOD.replace(b"{},", b'{"version":2},', 2).replace(
        b'"kwargs":{"version":2}', b'"kwargs":{}'
    )
    % (1, 1),
}


def test_what_cannot_run_is_quarantined_alone(bench: Bench) -> None:
    ran: list[int] = []
    bench.actor(ran.append)
    bodies = list(BAD.values())
    for n in range(20):
        bench.raw(n, bodies[n // 4] if n % 4 == 0 else GOOD % (n, n))
    bench.start()
    bench.empty()
    assert sorted(ran) == [n for n in range(20) if n % 4]
    assert bench.quarantined == [(f"default|{4 * n}", reason) for n, reason in enumerate(BAD)]


def test_a_quarantine_that_cannot_be_recorded_comes_again(bench: Bench) -> None:
    bench.can_record = False
    bench.actor(print)
    bench.raw(0, b"?")
    bench.start()
    stats = eventually(lambda: (s := bench.lanes.stats(Q)).delayed == 1 and s)
    assert stats.next_due_ms is not None
    assert 3_000 < stats.next_due_ms <= 5_000


def test_an_eta_in_a_body_is_not_kept_in_a_workers_memory(bench: Bench) -> None:
    ran: list[int] = []
    bench.actor(ran.append)
    bench.raw(7, (GOOD % (7, 7)).replace(b'"options":{}', b'"options":{"eta":99999999999999}'))
    bench.start()
    bench.empty()
    assert ran == [7]


def test_an_idle_worker_picks_up_at_once(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    picked = threading.Event()
    sent = 0.0
    delays: list[float] = []

    def act() -> None:
        delays.append(time.perf_counter() - sent)
        picked.set()

    actor = bench.actor(act)
    bench.start()
    for _ in range(60):
        # Idle means: the consumer waits in Redis, on its wake list.
        eventually(lambda: any(c["cmd"] == "blpop" for c in bench.client.client_list()), every=0.002)
        picked.clear()
        sent = time.perf_counter()
        actor.send()
        assert picked.wait(5)
    p50, worst = median(delays) * 1e3, max(delays) * 1e3
    with capsys.disabled():
        sys.stdout.write(f"\nidle pick-up, send() to actor: p50 {p50:.1f} ms, max {worst:.1f} ms\n")
    assert p50 < 50
