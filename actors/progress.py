"""Progress: whether what this worker claims can still be rendered and stored, as its last claims tell.

A worker that gets no job any more hears nothing from claims. So while it is in trouble it tries by itself,
now and then, what failed last.
"""

import threading
from collections.abc import Callable
from threading import Event
from uuid import UUID

from actors.errors import DocumentMissing, InfrastructureError, RenderError
from runtime.logs import get_logger

log = get_logger(__name__)

#: So many releases in a row, without one success between, are no hiccup; and of its ten free releases a job
#: that meets only this worker has half left.
MOST = 5
#: Between two tries, seconds: each writes to the store.
TRY_SECONDS = 5.0


class Progress:
    """Counts claims that ended by this machine's fault; one success begins anew.

    It says only what readiness shows: fetching goes on, since the next success is what tells that the fault
    is repaired. A document's own error tells nothing of the store that takes previews, and changes nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._missing = set[UUID]()
        self._why = ""
        self._again: Callable[[], None] | None = None

    def made(self) -> None:
        """Take note: a preview was rendered and stored."""
        with self._lock:
            self._count, self._why, self._again = 0, "", None
            self._missing.clear()

    def failed(self, job: UUID, error: Exception, again: Callable[[], None]) -> None:
        """Take note: a claim ended by `error`; only the fault of this machine counts.

        `again` tries without a job what it takes, and raises RenderError or OSError while it cannot be had.

        A document that is missing counts once, however often its job comes again: it may be missing anywhere.
        """
        if not isinstance(error, (InfrastructureError, OSError)):
            return
        with self._lock:
            if isinstance(error, DocumentMissing):
                if job in self._missing or len(self._missing) >= MOST:
                    return
                self._missing.add(job)
            self._count += 1
            self._why, self._again = type(error).__name__, again

    def run(self, stopped: Event) -> None:
        """Look every few seconds until `stopped`."""
        while not stopped.wait(TRY_SECONDS):
            self.look()

    def look(self) -> None:
        """While in trouble, try what failed last; that it can be had again is as good as a success."""
        with self._lock:
            again, why = self._again if self._count >= MOST else None, self._why
        if again is None:
            return
        try:
            again()
        except (RenderError, OSError):
            return
        log.info("what every job needs can be had again", trouble=why)
        self.made()

    @property
    def trouble(self) -> str:
        """What stands in the way of every job, as the last error's class; empty while work gets done."""
        with self._lock:
            return self._why if self._count >= MOST else ""
