"""The parts of a worker process: what stands around the actor, built at boot, closed when it has stopped."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg import Connection
from psycopg_pool import ConnectionPool

from actors.child import Renderers
from actors.claiming import Claiming
from actors.ending import Ends
from actors.errors import RendererUnavailable
from actors.finishing import Finishes
from actors.gate import Gate
from actors.heartbeat import Heartbeat
from actors.kept_connection import KeptConnection
from actors.loops import Loops
from actors.probe import Probing
from actors.progress import Progress
from actors.render_log import RenderLog
from actors.render_preview import Previews
from actors.renderer import Limits
from actors.running import Running
from actors.shutdown import Shutdown
from actors.steward import Steward
from broker.eviction import Eviction
from broker.lane_broker import LaneBroker
from db import pool, workers
from db.errors import DatabaseError
from runtime import logs, metrics
from runtime.blobs import BlobStore
from runtime.health import Health
from runtime.settings import Settings

log = logs.get_logger(__name__)

#: The actor whose messages name a job to claim.
ACTOR: Final = "render_preview"
#: Links are tried every second: after so many failures in a row they are down, not slow. Seconds.
LINK_SECONDS: Final = 5.0
#: Why a message may be put back.
DEFERRED: Final = ("conflict", "database", "full", "not_yet", "paused", "refused", "stopping")
#: So many finishes may wait for each thread: more than renders of a millisecond end during one commit, and
#: few enough for what a killed worker costs: an attempt for each, and for the one that each thread holds.
FINISHES_PER_THREAD: Final = 4


@dataclass(frozen=True, slots=True)
class Parts:
    """What a booted process consists of."""

    worker: UUID
    broker: LaneBroker
    database: ConnectionPool[Connection[Any]]
    beats: KeptConnection
    looks: KeptConnection
    ends: KeptConnection
    claims: KeptConnection
    gate: Gate
    running: Running
    renderers: Renderers
    render_log: RenderLog
    claiming: Claiming
    finishes: Finishes
    progress: Progress
    heartbeat: Heartbeat
    loops: Loops
    eviction: Eviction
    shutdown: Shutdown
    previews: Previews
    probing: Probing

    def health(self) -> Health:
        """Return whether the process does what it is for, with what a reader needs to know why not."""
        beat_age = time.monotonic() - self.heartbeat.last_success
        database, redis = beat_age < LINK_SECONDS, self.broker.silence() < LINK_SECONDS
        stopping, trouble = self.gate.stopping, self.progress.trouble
        return Health(
            database and redis and self.eviction.ok and not stopping and not trouble,
            {
                "database": database,
                "redis": redis,
                "stopping": stopping,
                "running": len(self.running.all()),
                "renders": trouble or "ok",
                **self.eviction.detail,
            },
        )

    def close(self) -> None:
        """Take the worker's row away (kept while a claim names it) and close what is open."""
        self.loops.stop()
        try:
            with self.beats.connection() as conn:
                workers.leave(conn, self.worker)
        except DatabaseError as error:
            log.warning("could not say goodbye to the database: %s", error)
        self.beats.close()
        self.looks.close()
        self.ends.close()
        self.claims.close()
        self.renderers.close()
        self.render_log.close()
        self.database.close(timeout=1.0)


def build(s: Settings, worker: UUID, broker: LaneBroker, threads: int, goodbye: Callable[[], None]) -> Parts:
    """Build everything, and begin to beat; the gate lets nothing in before a beat took.

    Args:
        s: what was set.
        worker: this start's name, with which it claims.
        broker: where its messages come from.
        threads: how many jobs it runs at a time.
        goodbye: called by a stop whose grace is over, before the process ends.

    Raises:
        OSError: the render log cannot be opened.

    """
    dsn = s.database_url.get_secret_value()
    # One connection for each thread, and one for quarantines by the consumer.
    database = pool.pool(dsn, "oncommit worker", size=threads + 1)
    beats = KeptConnection(dsn, "oncommit worker heartbeat")
    looks = KeptConnection(dsn, "oncommit worker steward")
    ends = KeptConnection(dsn, "oncommit worker")
    claims = KeptConnection(dsn, "oncommit worker")
    gate, running = Gate(broker), Running()
    limits = Limits(memory_bytes=s.render_memory_mb << 20, output_bytes=s.render_output_bytes)
    renderers = Renderers(limits)
    try:
        renderers.warm_up(threads)
    except RendererUnavailable:
        log.exception("no renderer yet: the first jobs will try again")
    render_log = RenderLog(s.render_log, worker)
    shutdown = Shutdown(gate, running, grace_seconds=s.shutdown_grace_seconds, goodbye=goodbye)
    finishes = Finishes(
        worker, ends, gate, running, most=FINISHES_PER_THREAD * threads, give_up=shutdown.give_up
    )
    ending = Ends(worker, database, gate, s, shutdown.give_up)
    claiming = Claiming(worker, claims, gate, running, actor=ACTOR, give_back=ending.end)
    progress = Progress()
    previews = Previews(
        worker=worker,
        database=database,
        gate=gate,
        running=running,
        renderers=renderers,
        blobs=BlobStore(s.blobs),
        render_log=render_log,
        settings=s,
        finishes=finishes,
        progress=progress,
        ends=ending,
    )
    heartbeat = Heartbeat(worker, beats, gate, running, threads=threads)
    steward = Steward(
        worker, looks, lost_seconds=s.worker_lost_seconds, render_seconds=s.render_timeout_seconds
    )
    loops = Loops()
    loops.start("finishes", finishes.run)
    loops.start("heartbeat", heartbeat.run)
    loops.start("steward", steward.run)
    loops.start("progress", progress.run)
    metrics.count("worker_quarantined_total", 0, outcome="quarantined")  # so that the first one is a rise
    for why in DEFERRED:
        metrics.count("deferrals_total", 0, why=why)
    eviction = Eviction(broker.lanes)
    loops.start("eviction", eviction.run)
    return Parts(
        worker=worker,
        broker=broker,
        database=database,
        beats=beats,
        looks=looks,
        ends=ends,
        claims=claims,
        gate=gate,
        running=running,
        renderers=renderers,
        render_log=render_log,
        claiming=claiming,
        finishes=finishes,
        progress=progress,
        heartbeat=heartbeat,
        loops=loops,
        eviction=eviction,
        shutdown=shutdown,
        previews=previews,
        probing=Probing(worker, database, gate),
    )
