"""What dispatch is doing: the truth from PostgreSQL, and beside it what Redis says, when it answers."""

from dataclasses import asdict
from typing import Any

from psycopg import Connection
from redis.exceptions import RedisError

from broker.client import redis_client
from broker.lanes import Lanes
from db import oversight
from db.control import EVERYTHING
from runtime.settings import Settings

#: An operator looks at a system in trouble: better to say that Redis does not answer than to wait.
REDIS_SECONDS = 1.0

SETTINGS = ("paused", "paused_by", "paused_reason", "paused_at")


def dispatch_state(conn: Connection[Any], settings: Settings, team: str | None) -> dict[str, Any]:
    """Return everything that `dispatch status` shows; `redis` has `reachable`, and `reason` when it is not.

    Raises:
        DatabaseError: the server is away.

    """
    lanes = {row["lane"]: row for row in oversight.lanes(conn)}
    everything = lanes.get(EVERYTHING, {})
    counts = oversight.dispatch(conn, team)
    return {
        **{name: everything.get(name) for name in SETTINGS},
        **oversight.oldest_due(conn),
        "lanes": [
            row | {name: lanes.get(row["lane"], {}).get(name) for name in (*SETTINGS, "max_running")}
            for row in counts
        ],
        "slot": oversight.slot(conn, settings.slot),
        "redis": redis_state(settings, oversight.queues(conn)),
    }


def redis_state(settings: Settings, queues: list[str]) -> dict[str, Any]:
    """Return what Redis holds of these queues, and up to where the relay had read; never raises."""
    try:
        client = redis_client(settings.redis_url.get_secret_value(), timeout=REDIS_SECONDS)
    except ValueError:
        return {"reachable": False, "reason": "ONCOMMIT_REDIS_URL is not understood"}
    with client:
        lanes = Lanes(client, settings.namespace)
        try:
            stats = {queue: asdict(lanes.stats(queue)) for queue in queues}
            return {"reachable": True, "position": lanes.position(), "queues": stats}
        except (RedisError, OSError) as error:
            # The class alone: a driver's text may hold the URL.
            return {"reachable": False, "reason": type(error).__name__}
