"""The worker process: builds what stands around the actor when Dramatiq boots, and takes it down again.

- before boot: its parts (actors/parts.py); nothing is fetched before the first beat took;
- after boot: the health page;
- before shutdown: the orderly stop begins, see actors/shutdown.py;
- before a worker thread ends: each finish is written, or given up;
- after shutdown: the worker's row goes, connections are closed.
"""

import signal
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import dramatiq
from dramatiq.middleware import CurrentMessage, Middleware
from dramatiq.worker import Worker

from actors.judge import Unreadable, judge
from actors.not_yet import Patience
from actors.parts import ACTOR, Parts, build
from actors.render_preview import AWAY_MS
from actors.shutdown import leaving_within, once_only
from broker.client import redis_client
from broker.delivery import Delivery
from broker.lane_broker import LaneBroker
from broker.settle import Defer
from db import outbox
from db.errors import DatabaseError, translated
from runtime import logs, metrics, tracing
from runtime.dying import die
from runtime.health import Health, HealthServer, serve_health
from runtime.settings import Settings, settings

log = logs.get_logger(__name__)

QUEUE = "previews"
#: A goodbye takes two connection attempts of 5 s at most, one after the other, where the database is away.
GOODBYE_SECONDS = 12.0


class WorkerProcess(Middleware):
    """One start of a worker process, under a name of its own (`id`)."""

    def __init__(self, given: Settings) -> None:
        self.id: UUID = uuid4()
        self._settings = given
        self._parts: Parts | None = None
        self._health: HealthServer | None = None
        self._patience = Patience()

    # Dramatiq's hooks. It logs what a hook raises and goes on; a process half built must not. ------

    def before_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        """Build everything, and begin to beat."""
        if not isinstance(broker, LaneBroker):
            die(f"oncommit's workers need a LaneBroker, not {type(broker).__name__}")
        try:
            once_only(signal.SIGTERM, signal.SIGHUP)
            self._parts = build(self._settings, self.id, broker, worker.worker_threads, self._goodbye)
        except Exception:  # noqa: BLE001 -- see above
            die("the worker cannot start")

    def after_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        """Serve the health page, since there is something to tell."""
        del broker, worker
        parts = self.parts
        try:
            self._health = serve_health(lambda: Health(parts.loops.turning), parts.health)
        except OSError:
            die("the health page finds no port")
        log.info("worker", worker=str(self.id), health=self._health.url)

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        """Begin the orderly stop."""
        del broker, worker
        self.parts.claiming.stop()
        self.parts.shutdown.begin()

    def before_worker_thread_shutdown(self, broker: dramatiq.Broker, thread: object) -> None:
        """Keep the consumer, whose messages wait for it, until every finish is written or given up."""
        del broker, thread
        self.parts.finishes.settle()

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        """Take everything down."""
        del broker, worker
        self.parts.claiming.settle()
        self.parts.shutdown.finish()
        self._goodbye()

    # -----------------------------------------------------------------------------------------------

    @property
    def parts(self) -> Parts:
        """Return what was built at boot.

        Raises:
            RuntimeError: the worker has not booted.

        """
        if self._parts is None:
            raise RuntimeError("the worker has not booted")
        return self._parts

    def _goodbye(self) -> None:
        with leaving_within(GOODBYE_SECONDS):
            self.parts.close()
            if self._health is not None:
                self._health.close()
            tracing.shutdown()  # this process ends without atexit

    def quarantine(self, message_id: str, reason: str) -> bool:
        """Put an intent aside that this version cannot read; True when the message may go.

        Its job is dead then, and can be replayed; if it is being rendered (by another version), or there
        is no such intent, there is nothing to put aside. But an intent may come before it can be seen, and
        its message, gone too early, would be missed until the next audit: so it stays for a minute.

        Raises:
            DatabaseError: the database is away.

        """
        with translated(), self.parts.database.connection() as conn:
            outcome = outbox.quarantine(conn, message_id, reason, f"worker:{self.id}")
        if outcome == "gone" and self._patience.next_ms(message_id) is not None:
            return False
        self._patience.over(message_id)
        metrics.count("worker_quarantined_total", outcome=outcome)
        log.warning("unreadable message", **logs.about_message(message_id), reason=reason, outcome=outcome)
        return True

    def prepare(self, fetched: Sequence[Delivery]) -> None:
        """Claim what a fetch brought, in the consumer's thread."""
        self.parts.claiming.prepare(fetched)

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
                recorded = self.quarantine(message_id, str(reason))
            except DatabaseError as error:
                raise Defer(AWAY_MS, why="database") from error
            if not recorded:
                raise Defer(AWAY_MS, why="not_yet") from None
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
                self.parts.previews.handle(job, dispatch_no, message, self.parts.claiming.take(message_id))

    def probe(self) -> None:
        """Handle the message of a probe."""
        message = CurrentMessage.get_current_message()
        if isinstance(message, Delivery):
            self.parts.probing.handle(message.lane_id, message.message_timestamp)


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
        prepare=process.prepare,
        middleware=[CurrentMessage(), process],
    )

    @dramatiq.actor(actor_name=ACTOR, queue_name=QUEUE, broker=broker)
    def render_preview(*args: Any, **kwargs: Any) -> None:
        process.render_preview(*args, **kwargs)

    @dramatiq.actor(actor_name="probe", queue_name=QUEUE, broker=broker)
    def probe(*_args: Any, **_kwargs: Any) -> None:
        process.probe()

    del render_preview, probe  # the broker has them
    dramatiq.set_broker(broker)
