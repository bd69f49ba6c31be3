"""Knock: asks a frozen Redis for a sign of life beside the relay's loop, which reads the WAL meanwhile.

A frozen Redis takes every question and answers none, so each costs a whole time-out. Whoever waits for
that in the loop leaves the WAL unread for as long, and others may write hundreds of megabytes of it.
"""

import threading
import time
from typing import Any, Final, cast

import redis.exceptions
from redis import Redis

#: An answer is old after this, seconds: it says nothing of a Redis that was frozen again since.
FRESH_SECONDS: Final = 1.0


class Knock:
    """At most one question under way, of `client`, whose time-out bounds it. For one thread to ask."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._asking: threading.Thread | None = None
        self._answered_at: float | None = None

    def answered(self) -> bool:
        """Tell whether Redis has answered just now, or refused, which costs no time and says why.

        Returns at once. False: it has not, as far as is known, and a question is under way.
        """
        if self._asking is not None and self._asking.is_alive():
            return False
        at, self._answered_at = self._answered_at, None
        if at is not None and time.monotonic() - at < FRESH_SECONDS:
            return True
        self._asking = threading.Thread(target=self._ask, name="knock", daemon=True)
        self._asking.start()
        return False

    def _ask(self) -> None:
        try:
            cast("Any", self._client).ping()  # redis-py leaves its type open
        except redis.exceptions.TimeoutError:
            return
        except redis.exceptions.RedisError:
            pass  # it refuses, or loads
        self._answered_at = time.monotonic()
