"""Real Dramatiq workers over real lanes: how deliveries end, wait, survive an outage, and leave."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import Retry
from dramatiq.middleware import Middleware, SkipMessage
from dramatiq.worker import Worker

from broker.client import redis_client
from broker.lane_broker import LaneBroker
from broker.lanes import Outgoing
from broker.settle import Defer
from support.lane_server import NS, Server
from support.waiting import eventually

Q = "default"


class Bench:
    """A broker with its worker, and what was quarantined."""

    def __init__(
        self, url: str, threads: int = 4, middleware: list[Middleware] | None = None, timeout: float = 5
    ) -> None:
        self.client = redis_client(url, timeout=timeout)
        self.quarantined: list[tuple[str, str]] = []
        self.can_record = True
        self.broker = LaneBroker(
            self.client, namespace=NS, quarantine=self._record, middleware=middleware or []
        )
        self.lanes = self.broker.lanes
        self.threads = threads
        self.worker: Worker | None = None

    def _record(self, message_id: str, reason: str) -> bool:
        if self.can_record:
            self.quarantined.append((message_id, reason))
        return self.can_record

    def actor(self, run: Callable[..., Any], **options: Any) -> "dramatiq.Actor[..., Any]":
        return dramatiq.actor(run, broker=self.broker, actor_name="act", **options)

    def start(self) -> None:
        self.worker = Worker(self.broker, worker_threads=self.threads, worker_timeout=50)
        self.worker.start()

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def raw(self, n: int, body: bytes) -> None:
        self.lanes.send(Outgoing(Q, f"default|{n}", "default", 5, n, 0, body), self.broker._default)

    def empty(self) -> None:
        eventually(lambda: self.broker.do_qsize(Q) == 0, describe=lambda: self.lanes.stats(Q))


@pytest.fixture
def bench(lanes_server: Server) -> Iterator[Bench]:
    bench = Bench(lanes_server.url)
    yield bench
    bench.stop()


@pytest.fixture
def fragile(own_server: Server) -> Iterator[Bench]:
    bench = Bench(own_server.url)
    yield bench
    bench.stop()


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


def test_only_free_threads_hold_messages_and_queues_share_them(bench: Bench) -> None:
    gate = threading.Event()
    act = bench.actor(lambda: gate.wait(20))
    other = dramatiq.actor(lambda: gate.wait(20), broker=bench.broker, actor_name="other", queue_name="other")
    for _ in range(10):
        act.send()
        other.send()
    bench.start()
    eventually(lambda: len(bench.broker.held_ids()) == bench.threads)
    # One more round of both consumers may not take anything.
    time.sleep(0.2)
    running = [bench.lanes.stats(q).running for q in (Q, "other")]
    assert sum(running) == bench.threads
    gate.set()
    bench.empty()
    eventually(lambda: bench.broker.do_qsize("other") == 0)


def test_a_closed_gate_stops_fetches_and_not_beats(bench: Bench) -> None:
    ran: list[int] = []
    act = bench.actor(ran.append)
    bench.start()
    act.send(1)
    bench.empty()
    bench.broker.pause_fetching()
    time.sleep(0.1)  # a wait in Redis that had begun before ends by itself, without a message
    for n in range(5):
        act.send(n)
    eventually(lambda: bench.lanes.stats(Q).waiting == 5)
    seen = bench.client.zrange(f"{NS}:{Q}:consumers", 0, -1, withscores=True)
    eventually(lambda: bench.client.zrange(f"{NS}:{Q}:consumers", 0, -1, withscores=True) != seen)
    assert ran == [1]
    bench.broker.resume_fetching()
    bench.empty()


def test_a_drain_gives_back_what_no_thread_has_begun(bench: Bench) -> None:
    begun = threading.Event()
    gate = threading.Event()
    runs: list[int] = []

    def act(n: int) -> None:
        runs.append(n)
        begun.set()
        gate.wait(20)

    actor = bench.actor(act)
    bench.threads = 1
    bench.start()
    actor.send(0)
    assert begun.wait(10)
    actor.send(1)
    bench.broker.drain()
    gate.set()
    eventually(lambda: (s := bench.lanes.stats(Q)).waiting == 1 and s.running == 0)
    bench.stop()
    assert runs == [0]
    assert bench.lanes.stats(Q).consumers == 0
    bench.start()  # the next worker runs it
    bench.empty()
    assert runs == [0, 1]


def test_a_job_that_outlives_the_stop_is_given_back_at_once(bench: Bench) -> None:
    begun, gate = threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        gate.wait(20)

    bench.actor(act).send()
    bench.start()
    assert begun.wait(10)
    assert bench.worker is not None
    bench.worker.stop(timeout=100)
    stats = bench.lanes.stats(Q)
    assert (stats.waiting, stats.running, stats.consumers) == (1, 0, 0)
    gate.set()
    bench.worker = None


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


def test_a_worker_stops_in_time_without_redis(fragile: Bench, own_server: Server) -> None:
    begun, gate = threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        gate.wait(20)

    fragile.actor(act).send()
    fragile.start()
    assert begun.wait(10)
    own_server.stop()
    gate.set()
    stopping = time.monotonic()
    fragile.stop()
    assert time.monotonic() - stopping < 10


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


def test_a_frozen_redis_costs_a_pause_and_no_message(own_server: Server) -> None:
    ran: list[int] = []
    bench = Bench(own_server.url, timeout=1.5)
    act = bench.actor(ran.append)
    bench.start()
    for n in range(5):
        act.send(n)
    own_server.freeze()
    time.sleep(2.5)  # longer than every time-out: calls fail, and are run late when it thaws
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
