"""Free worker threads, and the gate before them: what may be fetched right now.

A message is fetched only for a thread that is free to run it, so nothing idle holds a team's slot or
keeps work from another process. All queues of a process share its threads.
"""

import threading
import time


class Slots:
    """A count of free threads; a consumer takes all of them, fetches, and gives back what it did not fill."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._changed = threading.Condition()
        self.sharers = 0  # consumers that take from here

    def take(self, timeout: float) -> int:
        """Take all free threads, waiting at most `timeout` seconds for the first; 0 when none came."""
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0, timeout)
            taken, self._free = self._free, 0
            return taken

    def give(self, count: int) -> None:
        """Return threads that are free again."""
        if count:
            with self._changed:
                self._free += count
                self._changed.notify()


class Gate:
    """Whether consumers may fetch. Closed and opened at will; once draining, closed for good."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.draining = False

    @property
    def is_open(self) -> bool:
        """Tell whether a fetch may begin."""
        return self._open.is_set()

    def close(self) -> None:
        """Let no fetch begin."""
        self._open.clear()

    def open(self) -> None:
        """Let consumers fetch again, unless this process is on its way out."""
        if not self.draining:
            self._open.set()

    def drain(self) -> None:
        """Close for good; messages that no thread has begun go back."""
        self.draining = True
        self._open.clear()

    def wait(self, timeout: float) -> None:
        """Wait until it is open, at most `timeout` seconds."""
        if self.draining:
            time.sleep(timeout)
        else:
            self._open.wait(timeout)
