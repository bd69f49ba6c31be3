"""Stock Dramatiq on Redis, default middleware: an actor that does nothing, or writes down its start."""

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

LOG = os.open(os.environ["RIVAL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
dramatiq.set_broker(RedisBroker(url=os.environ["RIVAL_REDIS_URL"]))


@dramatiq.actor
def nothing(number: int) -> None:
    """Do nothing."""


@dramatiq.actor
def began(number: int) -> None:
    """Write down the time."""
    os.write(LOG, b"%d %.6f\n" % (number, time.time()))
