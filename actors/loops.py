"""Loops: the threads beside the work. If one ends by itself, the process ends, non-zero.

A process that looks alive and has stopped beating, or rescuing, is worse than none. Dramatiq's own
threads are watched by the broker in the same way.
"""

import threading
import time
from collections.abc import Callable
from threading import Event, Thread

from runtime.dying import die

PULSE_SECONDS = 0.5
#: The pulse does nothing that can block: if it stands still for so long, the process hangs.
STILL_SECONDS = 5.0


class Loops:
    """Runs loops in threads of their own, and knows whether this process turns at all."""

    def __init__(self) -> None:
        self._threads: list[Thread] = []
        self._stopping = Event()
        self._pulse_at = time.monotonic()
        self.start("pulse", self._pulse)

    def start(self, name: str, loop: Callable[[Event], None]) -> None:
        """Run `loop(stopped)` in a thread; it may return once `stopped` is set, and never raise."""

        def run() -> None:
            try:
                loop(self._stopping)
            except BaseException:  # noqa: BLE001 -- whatever it was, the loop is over
                die(f"the thread {name} failed")
            if not self._stopping.is_set():
                die(f"the thread {name} ended")

        thread = Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End the loops, and wait for them at most `timeout` seconds."""
        self._stopping.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def turning(self) -> bool:
        """Tell whether threads of this process get to run."""
        return time.monotonic() - self._pulse_at < STILL_SECONDS

    def _pulse(self, stopped: Event) -> None:
        while not stopped.wait(PULSE_SECONDS):
            self._pulse_at = time.monotonic()
