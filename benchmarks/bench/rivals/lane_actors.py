"""The actor that does nothing on our own broker, without PostgreSQL: `dramatiq ...lane_actors:setup`."""

import os

import dramatiq

from broker.client import redis_client
from broker.lane_broker import LaneBroker


def setup() -> None:
    """Build the broker and declare the actor."""
    client = redis_client(os.environ["RIVAL_REDIS_URL"])
    broker = LaneBroker(client, namespace="bench", quarantine=lambda _message, _reason: True)

    @dramatiq.actor(actor_name="nothing", queue_name="default", broker=broker)
    def nothing(number: int) -> None:
        del number

    del nothing
    dramatiq.set_broker(broker)
