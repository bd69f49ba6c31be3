"""Draining: dispatch is paused, so only what is being rendered has to end; wait for that, within a limit."""

import time
from collections.abc import Callable
from typing import Any

from psycopg import Connection

from db import oversight

LOOK_EVERY_SECONDS = 0.25
#: A claim that had read the settings before the pause may commit after it; claims take milliseconds.
QUIET_SECONDS = 1.0


def wait_until_idle(
    conn: Connection[Any],
    team: str | None,
    timeout: float,
    tell: Callable[[int], None] = lambda _: None,
) -> bool:
    """Return True when nothing has been running for a second, False after `timeout` seconds.

    What waits or retries is not waited for: it stays where it is. `tell` gets the number that is running,
    at each look.

    Raises:
        DatabaseError: the server is away; the pause stays.

    """
    deadline = time.monotonic() + timeout
    quiet_since: float | None = None
    while True:
        running = oversight.running(conn, team)
        tell(running)
        now = time.monotonic()
        quiet_since = None if running else quiet_since or now
        if quiet_since is not None and now - quiet_since >= QUIET_SECONDS:
            return True
        if now >= deadline:
            return False
        time.sleep(LOOK_EVERY_SECONDS)
