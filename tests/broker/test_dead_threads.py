"""A process in which a thread has died ends at once, with a code that its supervisor sees."""

import subprocess
import sys

import pytest

from support.lane_server import Server

PROGRAM = """
import signal, sys
import dramatiq
from dramatiq.worker import Worker
from broker.client import redis_client
from broker.lane_broker import LaneBroker

broker = LaneBroker(redis_client(sys.argv[1]), namespace="t", quarantine=lambda i, r: True)
worker = Worker(broker, worker_threads=2, worker_timeout=50)

@dramatiq.actor(broker=broker)
def act(): ...

def bug(*args, **kwargs):
    raise KeyError("a bug")

{break_it}
worker.start()
act.send()
signal.pause()
"""

FAULTS = {
    "consumer": "broker.lanes.fetch = bug",
    "keeper": "broker.lanes.beat = bug",
    "worker thread": "from dramatiq.worker import ConsumerThread; ConsumerThread.post_process_message = bug",
    "decoder": "import broker.lane_broker as m; m.decode = bug",
}


@pytest.mark.parametrize("thread", FAULTS)
def test_a_dead_thread_ends_the_process(lanes_server: Server, thread: str) -> None:
    program = PROGRAM.format(break_it=FAULTS[thread])
    done = subprocess.run(
        [sys.executable, "-c", program, lanes_server.url],
        capture_output=True,
        text=True,
        timeout=60,  # of a busy machine: it ends at once
        check=False,
    )
    assert done.returncode == 70, done.stderr
    assert "ending this process" in done.stderr
