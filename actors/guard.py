"""The guard: threads that this process cannot do without, and the end of the process when one is dead."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from threading import Event, Thread
from typing import NoReturn

from runtime.logs import get_logger

log = get_logger(__name__)

#: EX_SOFTWARE of sysexits.h: whatever supervises this process has to start a new one.
EXIT_CODE = 70
LOOK_SECONDS = 0.5
#: The guard does nothing that can block: a loop that has not turned for so long hangs.
TURN_SECONDS = 5.0


def die(reason: str, *, error: BaseException | None = None) -> NoReturn:
    """End this process at once: a part of it is dead, and it must not look healthy."""
    log.critical("ending this process", reason=reason, exc_info=error)
    os._exit(EXIT_CODE)


class Guard:
    """Runs loops in threads of their own and watches them, and any other thread it is told of.

    `others` is asked at each look for threads that must be alive.
    """

    def __init__(self, others: Callable[[], Iterable[Thread]]) -> None:
        self._others = others
        self._threads: list[Thread] = []
        self._stopping = Event()
        self._turned = time.monotonic()

    def start(self, name: str, loop: Callable[[Event], None]) -> None:
        """Run `loop(stopped)` in a thread; it may return once `stopped` is set, and never raise."""

        def run() -> None:
            try:
                loop(self._stopping)
            except BaseException as error:  # noqa: BLE001 -- whatever it was, the loop is over
                die(f"the thread {name} failed", error=error)
            if not self._stopping.is_set():
                die(f"the thread {name} ended")

        thread = Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def watch(self) -> None:
        """Begin to look after every thread."""
        self.start("guard", self._watch)

    def let_go(self) -> None:
        """Let other threads end, since the process is stopping; the loops go on."""
        self._others = tuple

    def stop(self, timeout: float = 2.0) -> None:
        """End the loops, and wait for them at most `timeout` seconds."""
        self._stopping.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def turns(self) -> bool:
        """Tell whether the guard's own loop turns."""
        return time.monotonic() - self._turned < TURN_SECONDS

    def _watch(self, stopped: Event) -> None:
        while not stopped.wait(LOOK_SECONDS):
            self._turned = time.monotonic()
            for thread in (*self._threads, *self._others()):
                if not thread.is_alive() and not stopped.is_set():
                    die(f"the thread {thread.name} is dead")
