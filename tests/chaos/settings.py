"""The settings of every world: teams with their limits, and time limits short enough to be seen."""

from typing import Any

#: Shorter than in production, so that a run sees many losses; still several heartbeats (0.5 s).
LOST_SECONDS = 4.0
GRACE_SECONDS = 1.0
SETTINGS = {
    "ONCOMMIT_WORKER_LOST_SECONDS": str(LOST_SECONDS),
    "ONCOMMIT_SHUTDOWN_GRACE_SECONDS": str(GRACE_SECONDS),
    "ONCOMMIT_BACKOFF_BASE_MS": "200",
    "ONCOMMIT_BACKOFF_CAP_MS": "2000",
    "ONCOMMIT_AUDIT_SECONDS": "5",
    "ONCOMMIT_RENDER_TIMEOUT_SECONDS": "20",
    "ONCOMMIT_LOG_LEVEL": "info",
}
#: Teams and their limits; `paused` is the one that faults pause.
TEAMS: dict[str, dict[str, Any]] = {
    "free": {},
    "capped": {"max_running": 2},
    "heavy": {"weight": 3},
    "rated": {"rate_per_second": 20, "burst": 5},
    "paused": {},
}
