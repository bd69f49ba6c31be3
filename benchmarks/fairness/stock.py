"""Stock Dramatiq's worker on the same load: one actor that holds a ConcurrentRateLimiter, as its guide shows.

Run by `dramatiq benchmarks.fairness.stock`; everything that is not in STOCK_* variables is Dramatiq's
default. https://dramatiq.io/cookbook.html#rate-limiting and guide.html#message-retries
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.errors import RateLimitExceeded
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

URL = os.environ["STOCK_URL"]
LIMIT = int(os.environ["STOCK_LIMIT"])
SECONDS = int(os.environ["STOCK_JOB_MS"]) / 1000
#: What the actor is told on top of the defaults: max_retries, min_backoff, max_backoff.
OPTIONS: dict[str, Any] = json.loads(os.environ["STOCK_OPTIONS"])
LOG = os.open(Path(os.environ["STOCK_LOG"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def write(phase: str, team: str, job: str) -> None:
    """Append a line of the same shape as oncommit's render log has."""
    line = {"phase": phase, "team": team, "job": job, "time": time.time()}
    os.write(LOG, json.dumps(line).encode() + b"\n")


class Witness(dramatiq.Middleware):
    """Writes down each message that the limiter sent back."""

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: Any,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        """Look at how the actor ended."""
        del broker, result
        if isinstance(exception, RateLimitExceeded):
            write("bounce", *message.args)


broker = RedisBroker(url=URL)
broker.add_middleware(Witness())
dramatiq.set_broker(broker)
backend = RedisBackend(url=URL)
limiters = {team: ConcurrentRateLimiter(backend, f"team-{team}", limit=LIMIT) for team in ("a", "b")}


@dramatiq.actor(**OPTIONS)
def preview(team: str, job: str) -> None:
    """Take as long as a render does, if the team may."""
    with limiters[team].acquire():
        write("start", team, job)
        time.sleep(SECONDS)
        write("end", team, job)
