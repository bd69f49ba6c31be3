"""Real workers: what may be fetched, and how a worker that stops or drains gives back what it has."""

import threading
import time

import dramatiq

from support.lane_bench import DEFAULT as Q
from support.lane_bench import Bench
from support.lane_server import Server
from support.waiting import eventually


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
    for queue in (Q, "other"):
        seen = bench.beats(queue)
        eventually(lambda queue=queue, seen=seen: bench.beats(queue) != seen)
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
    eventually(bench.waits)
    bench.broker.pause_fetching()
    eventually(lambda: not bench.waits())  # a wait that had begun before ends by itself, without a message
    for n in range(5):
        act.send(n)
    eventually(lambda: bench.lanes.stats(Q).waiting == 5)
    seen = bench.beats()
    eventually(lambda: bench.beats() != seen)
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
