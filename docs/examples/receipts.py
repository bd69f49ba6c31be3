"""The worker: writes a receipt for an order. `dramatiq receipts:setup` runs it."""

import os

import dramatiq

from broker.client import redis_client
from broker.intents import ConsumeIntent
from broker.lane_broker import LaneBroker
from db import outbox
from db.pool import pool

RECEIPT = "INSERT INTO shop.receipts (order_id) VALUES (%s) ON CONFLICT DO NOTHING"


def setup() -> None:
    """Build the broker and declare the actor; Dramatiq calls this in each worker process."""
    # As oncommit_worker: it may look for intents, delete them, and put unreadable messages aside.
    intents = pool(os.environ["ONCOMMIT_DATABASE_URL"], "receipts intents", size=5)
    shop = pool(os.environ["SHOP_DATABASE_URL"], "receipts", size=5)

    def quarantine(message_id: str, reason: str) -> bool:
        with intents.connection() as conn:
            outbox.quarantine(conn, message_id, reason, "receipts")
        return True

    broker = LaneBroker(
        redis_client(os.environ["ONCOMMIT_REDIS_URL"]),
        namespace="oncommit",
        quarantine=quarantine,
        middleware=[ConsumeIntent(intents)],
    )

    # It may run again after a crash between its end and the intent's: so it is made to bear that.
    @dramatiq.actor(queue_name="receipts", broker=broker, consume_intent=True)
    def send_receipt(order_id: int) -> None:
        with shop.connection() as conn:
            conn.execute(RECEIPT, [order_id])

    del send_receipt  # the broker has it
    dramatiq.set_broker(broker)
