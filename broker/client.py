"""The connection to Redis, with every wait spelled out."""

from typing import Any, cast

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from runtime.settings import SettingsError

# An answer that takes longer than this is no answer, seconds. Longer than any blocking wait (1 s).
TIMEOUT_SECONDS = 5.0
# A connection that was idle for so long is tried with a PING first, seconds.
HEALTH_CHECK_SECONDS = 30


def redis_client(url: str, *, timeout: float = TIMEOUT_SECONDS) -> Redis:
    """Return a client of the Redis or Valkey at `url` that never retries by itself.

    A retry inside the driver would run a command twice behind the caller's back: who calls knows
    which commands may be repeated. Connecting and answering may take `timeout` seconds each. Replies
    are bytes. The client is safe for threads: each command borrows a connection of its pool.

    Raises:
        SettingsError: `url` is not one that redis-py understands; a ValueError that does not quote it.

    """
    # A socket file (unix://) takes no options of TCP.
    tcp = {} if url.startswith("unix:") else {"socket_connect_timeout": timeout, "socket_keepalive": True}
    try:
        # redis-py leaves the options of from_url() untyped.
        pool: ConnectionPool = cast("Any", ConnectionPool).from_url(
            url,
            socket_timeout=timeout,
            **tcp,
            health_check_interval=HEALTH_CHECK_SECONDS,
            retry=Retry(NoBackoff(), 0),
            retry_on_timeout=False,
            decode_responses=False,
            protocol=2,
        )
    except ValueError:
        raise SettingsError(
            "ONCOMMIT_REDIS_URL is not understood: write redis://user:password@host:6379/0 (rediss:// for "
            "TLS, unix:///path for a socket; special characters of a password as %40)"
        ) from None
    return Redis(connection_pool=pool)
