"""Redis lost, away, back: what is measured about it."""

import random
import threading
import time

from benchmarks.bounds.stage import Measured, Stage, seconds_until
from tests.chaos.faults import FAULTS

PAUSE_ALL = "SELECT pause_lane('*', true, 'bounds', 'WAL while nothing may run')"
LAG = "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
NOISE = "SELECT pg_logical_emit_message(false, 'bounds', repeat(md5(random()::text), 32768))"  # 1 MB
MB = 1 << 20
RETAINED_MB = 16


def loss(stage: Stage) -> Measured:
    """Redis loses everything on an idle system, and then what came after a copy: until all is back."""
    stage.pause()
    stage.start(workers=0)
    stage.intents(10)
    seconds_until(lambda: stage.in_redis() == 10, 20)
    stage.world.valkey.client.flushall()
    lost = seconds_until(lambda: stage.in_redis() == 10, 30)
    fault = FAULTS["redis-turned-back"](stage.world, random.Random(0))
    fault.inject()  # keeps a copy
    stage.intents(10)
    seconds_until(lambda: stage.in_redis() == 20, 20)
    fault.heal()  # puts it back, and returns once Redis serves
    return {"lost": lost, "partly-lost": seconds_until(lambda: stage.in_redis() == 20, 30)}


def hundred_thousand(stage: Stage) -> Measured:
    """100,000 living intents are published, lost, and back again, while single jobs keep flowing."""
    stage.pause()
    stage.start()
    stage.intents(100_000)
    seconds_until(lambda: stage.in_redis() >= 100_000, 120)
    stage.world.valkey.client.flushall()
    flowing = Flowing(stage)
    back = seconds_until(lambda: stage.in_redis() >= 100_000, 120)
    return {
        "back": back,
        "flowing": flowing.stop(),
        "memory": stage.peak_mb(),  # the most it ever had, so last: the resync is in it
    }


class Flowing:
    """Commits a job each half second, from a thread, and keeps the longest time until one starts."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._slowest = 0.0
        self._error: Exception | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                [job] = self._stage.accept("heavy")
                took = seconds_until(lambda job=job: self._stage.started(job), 60)
                self._slowest = max(self._slowest, took)
                self._stopped.wait(0.5)
        except Exception as error:  # noqa: BLE001 -- raised where it is waited for
            self._error = error

    def stop(self) -> float:
        """Stop, and return the longest time, seconds."""
        self._stopped.set()
        self._thread.join(90)
        if self._error is not None:
            raise self._error
        return self._slowest


def redis_down(stage: Stage) -> Measured:
    """Redis is away while 1 GB is written; then it is back, and then PostgreSQL is stopped without it."""
    stage.start()
    slot, world = stage.world.database.slot, stage.world
    world.valkey.kill()
    jobs, most = stage.accept(count=100), 0.0
    for n in range(1024):
        stage.admin.execute(NOISE)
        if n % 64 == 0:
            jobs += stage.accept()
        if n % 4 == 0:
            most = max(most, stage.number(LAG, slot))
    accepted = time.monotonic()
    stage.accept()
    accepted = time.monotonic() - accepted

    shrunk = seconds_until(lambda: stage.retained_mb() < RETAINED_MB, 120)
    world.valkey.start(empty=True)
    started = seconds_until(lambda: any(stage.started(job) for job in jobs), 30)
    world.valkey.kill()
    stage.accept(count=100)
    began = time.monotonic()
    world.server.stop()
    stopped = time.monotonic() - began
    world.server.start()
    world.valkey.start(empty=True)
    return {
        "unconfirmed": most / MB,
        "accepting": accepted,
        "shrunk": shrunk,
        "first": started,
        "stopped": stopped,
    }


def frozen_wal(stage: Stage) -> Measured:
    """Redis does not answer while 1 GB is written: trying it again must not hold up the WAL."""
    stage.start(workers=0)
    stage.world.valkey.freeze()
    stage.world.of("relay")[0].running.wait_log("relay.redis_away")
    most = _most_unconfirmed(stage)
    stage.world.valkey.thaw()
    return {"unconfirmed": most / MB}


def paused_wal(stage: Stage) -> Measured:
    """Everything is paused while 1 GB is written: what waits in closed lanes holds up no WAL."""
    stage.start(workers=0)
    stage.admin.execute(PAUSE_ALL)
    stage.accept(count=100)
    return {"unconfirmed": _most_unconfirmed(stage) / MB}


def _most_unconfirmed(stage: Stage) -> float:
    """Write 1 GB; return the most WAL, bytes, that the slot had not confirmed meanwhile."""
    most = 0.0
    for n in range(1024):
        stage.admin.execute(NOISE)
        if n % 4 == 0:
            most = max(most, stage.number(LAG, stage.world.database.slot))
    return most
