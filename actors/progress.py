"""Progress: whether what this worker claims can still be rendered and stored, as its last claims tell."""

import threading
from uuid import UUID

from actors.errors import DocumentMissing, InfrastructureError

#: So many releases in a row, without one success between, are no hiccup; and of its ten free releases a job
#: that meets only this worker has half left.
MOST = 5


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

    def made(self) -> None:
        """Take note: a preview was rendered and stored."""
        with self._lock:
            self._count, self._why = 0, ""
            self._missing.clear()

    def failed(self, job: UUID, error: Exception) -> None:
        """Take note: a claim ended by `error`; only the fault of this machine counts.

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
            self._why = type(error).__name__

    @property
    def trouble(self) -> str:
        """What stands in the way of every job, as the last error's class; empty while work gets done."""
        with self._lock:
            return self._why if self._count >= MOST else ""
