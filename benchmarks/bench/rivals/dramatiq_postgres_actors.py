"""dramatiq-postgres 1.4: an actor that does nothing, or writes down when it began.

As its documentation recommends for throughput: no result backend (nothing is returned), a pool with a
connection for each thread; LISTEN stays on. `dramatiq benchmarks.bench.rivals.dramatiq_postgres_actors`.
"""

import os
import time

import dramatiq
from dramatiq_postgres import PostgresBroker

LOG = os.open(os.environ["RIVAL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
dramatiq.set_broker(PostgresBroker(url=f"{os.environ['RIVAL_DATABASE_URL']}?maxconn=16", results=False))


@dramatiq.actor
def nothing(number: int) -> None:
    """Do nothing."""


@dramatiq.actor
def began(number: int) -> None:
    """Write down the time."""
    os.write(LOG, b"%d %.6f\n" % (number, time.time()))
