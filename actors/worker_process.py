"""The worker process: builds what stands around the actor when Dramatiq boots, and takes it down again.

- before boot: database, renderer children, heartbeat; nothing is fetched before the first beat took;
- after boot: the health page;
- before shutdown: the orderly stop begins, see actors/shutdown.py;
- before a worker thread ends: each finish is written, or given up;
- after shutdown: the worker's row goes, connections are closed.
"""

import signal
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import dramatiq
from dramatiq.middleware import CurrentMessage, Middleware
from dramatiq.worker import Worker
from psycopg import Connection
from psycopg_pool import ConnectionPool

from actors.child import Renderers
from actors.errors import RendererUnavailable
from actors.finishing import Finishes
from actors.gate import Gate
from actors.heartbeat import Heartbeat
from actors.judge import Unreadable, judge
from actors.kept_connection import KeptConnection
from actors.loops import Loops, die
from actors.probe import Probing
from actors.progress import Progress
from actors.render_log import RenderLog
from actors.render_preview import AWAY_MS, Previews
from actors.renderer import Limits
from actors.running import Running
from actors.shutdown import Shutdown, leaving_within, once_only
from actors.steward import Steward
from broker.client import redis_client
from broker.delivery import Delivery
from broker.eviction import Eviction
from broker.lane_broker import LaneBroker
from broker.settle import Defer
from db import outbox, pool, workers
from db.errors import DatabaseError, translated
from runtime import logs, metrics, tracing
from runtime.blobs import BlobStore
from runtime.health import Health, HealthServer, serve_health
from runtime.settings import Settings, settings

log = logs.get_logger(__name__)

QUEUE = "previews"
#: Links are tried every second: after so many failures in a row they are down, not slow. Seconds.
LINK_SECONDS = 5.0
#: So many finishes may wait for each thread: more than renders of a millisecond end during one commit, and
#: few enough for what a killed worker costs: an attempt for each, and for the one that each thread holds.
FINISHES_PER_THREAD = 4
#: A goodbye takes two connection attempts of 5 s at most, one after the other, where the database is away.
GOODBYE_SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a booted process consists of."""

    database: ConnectionPool[Connection[Any]]
    beats: KeptConnection
    looks: KeptConnection
    ends: KeptConnection
    gate: Gate
    running: Running
    renderers: Renderers
    render_log: RenderLog
    finishes: Finishes
    progress: Progress
    heartbeat: Heartbeat
    loops: Loops
    eviction: Eviction
    shutdown: Shutdown
    previews: Previews
    probing: Probing


class WorkerProcess(Middleware):
    """One start of a worker process, under a name of its own (`id`)."""

    def __init__(self, given: Settings) -> None:
        self.id: UUID = uuid4()
        self._settings = given
        self._dsn = given.database_url.get_secret_value()
        self._parts: _Parts | None = None
        self._health: HealthServer | None = None

    # Dramatiq's hooks. It logs what a hook raises and goes on; a process half built must not. ------

    def before_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        """Build everything, and begin to beat."""
        if not isinstance(broker, LaneBroker):
            die(f"oncommit's workers need a LaneBroker, not {type(broker).__name__}")
        try:
            once_only(signal.SIGTERM, signal.SIGHUP)
            self._parts = self._build(broker, worker.worker_threads)
        except Exception as error:  # noqa: BLE001 -- see above
            die("the worker cannot start", error=error)

    def after_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        """Serve the health page, since there is something to tell."""
        del worker
        parts = self.parts
        try:
            self._health = serve_health(lambda: Health(parts.loops.turning), lambda: _ready(parts, broker))
        except OSError as error:
            die("the health page finds no port", error=error)
        log.info("worker", worker=str(self.id), health=self._health.url)

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        """Begin the orderly stop."""
        del broker, worker
        self.parts.shutdown.begin()

    def before_worker_thread_shutdown(self, broker: dramatiq.Broker, thread: object) -> None:
        """Keep the consumer, whose messages wait for it, until every finish is written or given up."""
        del broker, thread
        self.parts.finishes.settle()

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        """Take everything down."""
        del broker, worker
        self.parts.shutdown.finish()
        self._goodbye()

    # -----------------------------------------------------------------------------------------------

    @property
    def parts(self) -> _Parts:
        """Return what was built at boot.

        Raises:
            RuntimeError: the worker has not booted.

        """
        if self._parts is None:
            raise RuntimeError("the worker has not booted")
        return self._parts

    def _build(self, broker: LaneBroker, threads: int) -> _Parts:
        s = self._settings
        # One connection for each thread, and one for quarantines by the consumer.
        database = pool.pool(self._dsn, "oncommit worker", size=threads + 1)
        beats = KeptConnection(self._dsn, "oncommit worker heartbeat")
        looks = KeptConnection(self._dsn, "oncommit worker steward")
        ends = KeptConnection(self._dsn, "oncommit worker")
        gate, running = Gate(broker), Running()
        limits = Limits(memory_bytes=s.render_memory_mb << 20, output_bytes=s.render_output_bytes)
        renderers = Renderers(limits)
        try:
            renderers.warm_up(threads)
        except RendererUnavailable:
            log.exception("no renderer yet: the first jobs will try again")
        render_log = RenderLog(s.render_log, self.id)
        shutdown = Shutdown(gate, running, grace_seconds=s.shutdown_grace_seconds, goodbye=self._goodbye)
        finishes = Finishes(
            self.id, ends, gate, running, most=FINISHES_PER_THREAD * threads, give_up=shutdown.give_up
        )
        progress = Progress()
        previews = Previews(
            worker=self.id,
            database=database,
            gate=gate,
            running=running,
            renderers=renderers,
            blobs=BlobStore(s.blobs),
            render_log=render_log,
            settings=s,
            finishes=finishes,
            progress=progress,
            give_up=shutdown.give_up,
        )
        heartbeat = Heartbeat(self.id, beats, gate, running, threads=threads)
        steward = Steward(
            self.id, looks, lost_seconds=s.worker_lost_seconds, render_seconds=s.render_timeout_seconds
        )
        loops = Loops()
        loops.start("finishes", finishes.run)
        loops.start("heartbeat", heartbeat.run)
        loops.start("steward", steward.run)
        metrics.count("worker_quarantined_total", 0, outcome="quarantined")  # so that the first one is a rise
        eviction = Eviction(broker.lanes)
        loops.start("eviction", eviction.run)
        return _Parts(
            database=database,
            beats=beats,
            looks=looks,
            ends=ends,
            gate=gate,
            running=running,
            renderers=renderers,
            render_log=render_log,
            finishes=finishes,
            progress=progress,
            heartbeat=heartbeat,
            loops=loops,
            eviction=eviction,
            shutdown=shutdown,
            previews=previews,
            probing=Probing(self.id, database, gate),
        )

    def _goodbye(self) -> None:
        """Take the worker's row away (kept while a claim names it) and close what is open."""
        parts = self.parts
        with leaving_within(GOODBYE_SECONDS):
            parts.loops.stop()
            try:
                with parts.beats.connection() as conn:
                    workers.leave(conn, self.id)
            except DatabaseError as error:
                log.warning("could not say goodbye to the database: %s", error)
            parts.beats.close()
            parts.looks.close()
            parts.ends.close()
            parts.renderers.close()
            parts.render_log.close()
            parts.database.close(timeout=1.0)
            if self._health is not None:
                self._health.close()
            tracing.shutdown()  # this process ends without atexit

    def quarantine(self, message_id: str, reason: str) -> bool:
        """Put an intent aside that this version cannot read; True when the message may go.

        Its job is dead then, and can be replayed; if it is being rendered (by another version), or there
        is no such intent, there is nothing to put aside.

        Raises:
            DatabaseError: the database is away.

        """
        with translated(), self.parts.database.connection() as conn:
            outcome = outbox.quarantine(conn, message_id, reason, f"worker:{self.id}")
        metrics.count("worker_quarantined_total", outcome=outcome)
        log.warning("unreadable message", **logs.about_message(message_id), reason=reason, outcome=outcome)
        return True

    def render_preview(self, *args: Any, **kwargs: Any) -> None:
        """Handle one message; takes any arguments, so that wrong ones are judged and not raised for ever."""
        message = CurrentMessage.get_current_message()
        if not isinstance(message, Delivery):
            raise TypeError("render_preview runs under a LaneBroker only")
        message_id = message.lane_id
        try:
            job, dispatch_no = judge(message_id, args, kwargs)
        except Unreadable as reason:
            try:
                self.quarantine(message_id, str(reason))
            except DatabaseError as error:
                raise Defer(AWAY_MS, why="database") from error
        else:
            team = message_id.partition("|")[0]
            parent = message.options.get("traceparent")
            with (
                logs.about(team=team),
                tracing.span(
                    "preview",
                    parent if isinstance(parent, str) else None,
                    job=str(job),
                    team=team,
                    dispatch=dispatch_no,
                ),
            ):
                self.parts.previews.handle(job, dispatch_no, message)

    def probe(self) -> None:
        """Handle the message of a probe."""
        message = CurrentMessage.get_current_message()
        if isinstance(message, Delivery):
            self.parts.probing.handle(message.lane_id, message.message_timestamp)


def _ready(parts: _Parts, broker: dramatiq.Broker) -> Health:
    beat_age = time.monotonic() - parts.heartbeat.last_success
    silence = broker.silence() if isinstance(broker, LaneBroker) else float("inf")
    database, redis, stopping = beat_age < LINK_SECONDS, silence < LINK_SECONDS, parts.gate.stopping
    trouble = parts.progress.trouble
    return Health(
        database and redis and parts.eviction.ok and not stopping and not trouble,
        {
            "database": database,
            "redis": redis,
            "stopping": stopping,
            "running": len(parts.running.all()),
            "renders": trouble or "ok",
            **parts.eviction.detail,
        },
    )


def set_up() -> None:
    """Build the broker and declare the actor; `dramatiq actors:setup` calls this in each worker process.

    Raises:
        SettingsError: a variable is wrong.

    """
    given = settings()
    logs.configure("worker", given.log_level)
    tracing.configure("worker", given.traces)
    process = WorkerProcess(given)
    broker = LaneBroker(
        redis_client(given.redis_url.get_secret_value()),
        namespace=given.namespace,
        quarantine=process.quarantine,
        middleware=[CurrentMessage(), process],
    )

    @dramatiq.actor(actor_name="render_preview", queue_name=QUEUE, broker=broker)
    def render_preview(*args: Any, **kwargs: Any) -> None:
        process.render_preview(*args, **kwargs)

    @dramatiq.actor(actor_name="probe", queue_name=QUEUE, broker=broker)
    def probe(*_args: Any, **_kwargs: Any) -> None:
        process.probe()

    del render_preview, probe  # the broker has them
    dramatiq.set_broker(broker)
