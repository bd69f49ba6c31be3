"""Faults of workers and of the portal: killed, frozen past the lease, stopped while they work."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from ..armed import Armed
from ..fault import Fault
from ..settings import LOST_SECONDS

WORKERS = frozenset({"workers"})
CLOCK = Path(__file__).parents[1] / "wrong_clock"
WORKER_PIDS = "SELECT pid FROM workers WHERE heartbeat_at > clock_timestamp() - interval '3 s'"


class WorkerKilled(Fault):
    """SIGKILL of a worker and everything it started."""

    name = "worker-killed"
    touches = WORKERS
    interrupts = True
    hold_seconds = (0.0, 1.0)

    def inject(self) -> None:
        self.rng.choice(self.world.of("worker")).kill()


class WorkerProcessKilled(Fault):
    """SIGKILL of the worker process only, as the kernel does when memory is short."""

    name = "worker-process-killed"
    touches = WORKERS | {"pause"}  # it asks PostgreSQL who they are, which must not be away then
    interrupts = True
    hold_seconds = (0.0, 1.0)

    def inject(self) -> None:
        for worker in self.world.of("worker"):
            worker.expected = True
        pids = sorted(pid for (pid,) in self.world.admin.execute(WORKER_PIDS).fetchall())
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self.rng.choice(pids), signal.SIGKILL)


class WorkerFrozen(Fault):
    """SIGSTOP until others have taken its jobs; then it wakes up, and goes on with them."""

    name = "worker-frozen"
    touches = WORKERS
    interrupts = True
    hold_seconds = (LOST_SECONDS + 1, LOST_SECONDS + 4)

    def inject(self) -> None:
        self._frozen = self.rng.choice(self.world.of("worker"))
        self._frozen.running.freeze()

    def heal(self) -> None:
        self._frozen.running.thaw()


class WorkerStopped(Fault):
    """SIGTERM with a grace shorter than some renders."""

    name = "worker-stopped"
    touches = WORKERS
    interrupts = True

    def inject(self) -> None:
        self.rng.choice(self.world.of("worker")).signal(signal.SIGTERM)


class WorkersStopped(Fault):
    """SIGTERM to every worker, as a deployment in a hurry does."""

    name = "workers-stopped"
    touches = WORKERS
    interrupts = True

    def inject(self) -> None:
        for worker in self.world.of("worker"):
            worker.signal(signal.SIGTERM)


class WorkerStoppedWithoutRedis(Fault):
    """SIGTERM to a worker while Redis is gone."""

    name = "worker-stopped-without-redis"
    touches = frozenset({"workers", "redis"})
    interrupts = True
    hold_seconds = (2.0, 5.0)

    def inject(self) -> None:
        self.world.valkey.kill()
        self.rng.choice(self.world.of("worker")).signal(signal.SIGTERM)

    def heal(self) -> None:
        self.world.valkey.start(empty=True)


class PortalKilled(Fault):
    """SIGKILL of the portal."""

    name = "portal-killed"
    touches = frozenset({"portal"})
    hold_seconds = (0.0, 1.0)

    def inject(self) -> None:
        self.world.portal.kill()


class PortalStopped(Fault):
    """SIGTERM of the portal."""

    name = "portal-stopped"
    touches = frozenset({"portal"})
    hold_seconds = (0.0, 1.0)

    def inject(self) -> None:
        self.world.portal.signal(signal.SIGTERM)


class PortalKilledAfterCommit(Fault):
    """The portal dies between the commit and the answer: the client has to find out."""

    name = "portal-killed-after-commit"
    touches = frozenset({"portal"})
    _armed: Armed | None = None

    def inject(self) -> None:
        self._armed = Armed(self.world.portal, "accept.after_commit", self.rng.randint(1, 3))

    def heal(self) -> None:
        """Wait until it has died of that."""
        if self._armed is not None:
            self._armed.tell(self.world.history, self.name)


class ClocksWrong(Fault):
    """The clocks of the portal and of the relay that will reign are an hour fast."""

    name = "clocks-wrong"
    touches = frozenset({"portal", "relay"})

    def inject(self) -> None:
        self._reigned = self.world.active_relay()
        self._wrong = [self.world.portal, self.world.standby_relay()]
        for member in self._wrong:
            path = member.running.process.command.env["PYTHONPATH"]
            member.restart_with(PYTHONPATH=f"{CLOCK}{os.pathsep}{path}")
        self._wrong[0].running.wait_ready()
        self._reigned.kill()

    def heal(self) -> None:
        for member in self._wrong:
            member.kill()


class WorkerClockWrong(Fault):
    """The clock of a worker is an hour fast; its lines of the render log are set right when they are read."""

    name = "worker-clock-wrong"
    touches = WORKERS
    interrupts = True  # it is killed to be started with the other clock

    def inject(self) -> None:
        self._worker = self.rng.choice(self.world.of("worker"))
        path = self._worker.running.process.command.env["PYTHONPATH"]
        self._worker.restart_with(PYTHONPATH=f"{CLOCK}{os.pathsep}{path}")

    def heal(self) -> None:
        self._worker.kill()


class TeamPaused(Fault):
    """An operator pauses a team."""

    name = "team-paused"
    touches = frozenset({"pause"})
    hold_seconds = (1.0, 6.0)

    def inject(self) -> None:
        self.world.pause("paused", paused=True)

    def heal(self) -> None:
        self.world.pause("paused", paused=False)


FAULTS: tuple[type[Fault], ...] = (
    WorkerKilled,
    WorkerProcessKilled,
    WorkerFrozen,
    WorkerStopped,
    WorkersStopped,
    WorkerStoppedWithoutRedis,
    PortalKilled,
    PortalStopped,
    PortalKilledAfterCommit,
    ClocksWrong,
    WorkerClockWrong,
    TeamPaused,
)
