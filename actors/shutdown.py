"""Orderly stop: put back what is not begun, give what runs its grace, release the rest, say goodbye.

1. SIGTERM: fetching stops, prefetched messages go back;
2. renders have `shutdown_grace_seconds` to end;
3. children are killed, claims released, which spends nothing;
4. ends that the database does not take are given up after LAST_SECONDS more;
5. the process leaves, whatever still holds a thread.
"""

import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event, Lock, Thread, Timer
from types import FrameType
from typing import Any

from actors.errors import Stop
from actors.gate import Gate
from actors.running import Running
from runtime.dying import BROKEN
from runtime.logs import get_logger

log = get_logger(__name__)

#: Writing an end takes milliseconds; a database that does not take it in 5 s is away. Its claims are
#: rescued elsewhere.
LAST_SECONDS = 5.0
#: The broker gives its goodbye to Redis 7 s; with Redis away the messages need it not: they name
#: dispatches that are over.
LEAVE_SECONDS = 15.0
_LOOK_SECONDS = 0.05


def once_only(*signals: signal.Signals) -> None:
    """Let the present handlers of these signals act once, together.

    Dramatiq takes a second signal for impatience and drops what runs. But whoever stops a whole process
    group or container signals this process as Dramatiq's main process does: twice, and means it once.
    To end it at once there is SIGKILL. Call from the main thread.
    """
    # A lock that is never given back: taking it is one step. The second signal may come in the middle of the
    # first one's handler, on this same thread: an Event, which locks inside, would stand still for ever.
    first = Lock()

    def guarded(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, frame: FrameType | None) -> None:
            if first.acquire(blocking=False):
                handler(number, frame)

        return handle

    for number in signals:
        if callable(handler := signal.getsignal(number)):
            signal.signal(number, guarded(handler))


@contextmanager
def leaving_within(seconds: float) -> Generator[None]:
    """Let the process end after `seconds`, with exit code 70, if the block has not ended by then.

    What a process does last may wait for ever: for a thread that stands in a call to a frozen database, or
    for a commit that waits for a standby, which no time-out of PostgreSQL's ends.
    """

    def leave() -> None:
        log.critical("the last steps of the stop do not end: leaving")
        os._exit(BROKEN)

    timer = Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Shutdown:
    """Runs the stop beside Dramatiq's own, which joins the worker threads meanwhile.

    `goodbye` is called once everything has ended, or when the process cannot wait any more.
    """

    def __init__(
        self, gate: Gate, running: Running, *, grace_seconds: float, goodbye: Callable[[], None]
    ) -> None:
        self._gate = gate
        self._running = running
        self._grace_seconds = grace_seconds
        self._goodbye = goodbye
        self._done = Event()
        self.give_up = Event()

    def begin(self) -> None:
        """Start the stop and return at once."""
        self._gate.stop()
        Thread(target=self._run, name="shutdown", daemon=True).start()

    def finish(self) -> None:
        """Dramatiq has joined its threads: nothing is left to wait for."""
        self._done.set()

    def _run(self) -> None:
        self._wait_idle(self._grace_seconds)
        if stopped := self._running.stop_all(Stop.SHUTDOWN):
            log.warning("grace is over: renders stopped, claims released", renders=stopped)
        self._wait_idle(LAST_SECONDS)
        self.give_up.set()
        if self._done.wait(LEAVE_SECONDS):
            return
        left = len(self._running.all())
        log.critical("leaving with threads that do not end", unwritten=left)
        self._goodbye()
        os._exit(BROKEN if left else 0)  # something had to be left undone

    def _wait_idle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._running.all() and time.monotonic() < deadline:
            if self._done.wait(_LOOK_SECONDS):
                return
