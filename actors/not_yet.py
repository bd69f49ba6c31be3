"""Patience with messages that come before their rows: the WAL shows a commit before snapshots do."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock

FIRST_MS, LONGEST_MS = 50, 1_000  # 1 commit in 100 needs a wait, of milliseconds; a lagging standby, seconds
#: After so long the row is not coming (a restored database): the message goes, and if its intent lives
#: the audit publishes it again.
GIVE_UP_SECONDS = 60.0
#: Far above what one process has in hand; forgetting the oldest only makes it more patient.
MOST = 10_000


@dataclass(slots=True)
class _Wait:
    since: float
    times: int = 0


class Patience:
    """Remembers since when this process waits for each key, such as (job, dispatch number)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waits: OrderedDict[tuple[Hashable, ...], _Wait] = OrderedDict()
        self._lock = Lock()

    def next_ms(self, *key: Hashable) -> int | None:
        """Return how many milliseconds to wait before the next look, None when it has been long enough."""
        with self._lock:
            wait = self._waits.setdefault(key, _Wait(self._clock()))
            if self._clock() - wait.since >= GIVE_UP_SECONDS:
                del self._waits[key]
                return None
            delay = min(FIRST_MS << wait.times, LONGEST_MS)
            wait.times = min(wait.times + 1, 10)  # the shift stays small
            while len(self._waits) > MOST:
                self._waits.popitem(last=False)
            return delay

    def over(self, *key: Hashable) -> None:
        """Forget the wait: the row is there."""
        with self._lock:
            self._waits.pop(key, None)
