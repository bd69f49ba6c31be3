"""What this process runs: each dispatch once, with a lock that decides between ending and being stopped."""

import threading
from dataclasses import dataclass, field
from uuid import UUID

from actors.child import RendererChild
from actors.errors import RenderStopped, Stop
from db.claims import Claim


@dataclass(slots=True, eq=False)
class Run:
    """One dispatch in the hands of this process, from before its claim until its end is written.

    A stop (cancel, shutdown, lost claim) takes effect until the ending has begun; a finish that has
    begun wins over a release, so what was rendered is never thrown away for a deploy.
    """

    job: UUID
    dispatch_no: int
    claim: Claim | None = None
    stopped: Stop | None = None
    ending: bool = False
    _child: RendererChild | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lend(self, child: RendererChild) -> None:
        """Let `stop` reach the child that is about to render.

        Raises:
            RenderStopped: the stop came first.

        """
        with self._lock:
            if self.stopped is not None:
                raise RenderStopped(self.stopped)
            self._child = child

    def take_back(self) -> None:
        """Keep a later stop from the child, which has answered or is gone."""
        with self._lock:
            self._child = None

    def begin_ending(self, *, rendered: bool) -> None:
        """From here on the end is being written and no stop takes effect.

        Raises:
            RenderStopped: it was told to stop before; a finished render ends well all the same, unless
                it was cancelled or the claim is gone.

        """
        with self._lock:
            self._child = None
            self.ending = True
            if self.stopped is not None and not (rendered and self.stopped is Stop.SHUTDOWN):
                raise RenderStopped(self.stopped)

    def stop(self, why: Stop) -> bool:
        """Tell the render to stop and kill its child; False when its ending has begun."""
        with self._lock:
            if self.ending:
                return False
            self.stopped = self.stopped or why
            if self._child is not None:
                self._child.kill()
            return True


class Running:
    """Every run of this process."""

    def __init__(self) -> None:
        self._runs: dict[tuple[UUID, int], Run] = {}
        self._lock = threading.Lock()
        self._stopping: Stop | None = None

    def enter(self, job: UUID, dispatch_no: int) -> Run | None:
        """Begin a run; None when this very process has it already: a message that came twice."""
        with self._lock:
            if (job, dispatch_no) in self._runs:
                return None
            run = Run(job, dispatch_no, stopped=self._stopping)
            self._runs[job, dispatch_no] = run
            return run

    def leave(self, run: Run) -> None:
        """Forget the run: its end is written, or it never held a claim."""
        with self._lock:
            self._runs.pop((run.job, run.dispatch_no), None)

    def all(self) -> list[Run]:
        """Return the runs of this moment."""
        with self._lock:
            return list(self._runs.values())

    def stop_all(self, why: Stop) -> int:
        """Stop every run, also those that still begin; return how many were stopped."""
        with self._lock:
            self._stopping = why
            runs = list(self._runs.values())
        return sum(run.stop(why) for run in runs)
