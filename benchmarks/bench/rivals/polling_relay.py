"""A polling outbox relay before stock Dramatiq: looks every second, forwards 100 at a time, deletes them.

`python -m benchmarks.bench.rivals.polling_relay DSN REDIS_URL`: what an outbox costs in latency when nobody
tells its relay that there is something.
"""

import sys
import time

import dramatiq
import psycopg
from dramatiq.brokers.redis import RedisBroker

POLL_SECONDS, BATCH = 1.0, 100
TAKE = """
DELETE FROM polled WHERE id IN (SELECT id FROM polled ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING number
"""


def main(dsn: str, url: str) -> None:
    """Relay until killed."""
    broker = RedisBroker(url=url)
    broker.declare_queue("default")
    with psycopg.connect(dsn) as conn:
        while True:
            rows = conn.execute(TAKE, [BATCH]).fetchall()
            for (number,) in rows:
                broker.enqueue(dramatiq.Message("default", "began", (number,), {}, {}))
            conn.commit()
            if len(rows) < BATCH:
                time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
