"""One delivery: a message as it came from Redis, and how it is to end."""

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, cast

from dramatiq import Broker, Message
from dramatiq.broker import MessageProxy
from dramatiq.errors import DecodeError

from broker.lanes import Settled, Verb

if TYPE_CHECKING:
    from broker.link import Link

#: After an exception that says nothing about when to try again, ms.
RETRY_MS = 1_000


class Undeliverable(Exception):
    """No version of this program's actors can run the message; the text says why."""


class Delivery(MessageProxy):
    """A message in flight. `lane_id` is its id in Redis, `link` the consumer that holds it.

    `intent` is the number of the row that it was published from: an id may be used again, a number never.
    `finished`: None outside of a worker, False once a thread has begun it, True after a normal return
    or a skip. Whatever happens in between, only True (or None) is acknowledged.
    `kept`: its thread is done with it, and whoever said `keep` acknowledges it, or nobody does.
    """

    def __init__(self, message: "Message[Any]", lane_id: str, link: "Link", intent: int) -> None:
        cast("Any", super()).__init__(message)
        self.lane_id = lane_id
        self.link = link
        self.intent = intent
        self.finished: bool | None = None
        self.verb = Verb.DEFER
        self.delay_ms = RETRY_MS
        self.kept = False

    def keep(self) -> None:
        """Let the message stay in flight when its actor returns: the thread is free, the message is not."""
        self.kept = True

    def acknowledge(self) -> None:
        """End a message that was kept, from any thread."""
        self.link.end(Settled(self.lane_id, Verb.ACK), frees=False)

    def defer(self, verb: Verb, delay_ms: int) -> None:
        """Let the message come back: it is rejected, and `verb` says how."""
        self.fail()
        self.verb, self.delay_ms = verb, delay_ms

    def ending(self) -> Settled:
        """Return how this delivery ends, as things stand."""
        if self.failed or self.finished is False:
            return Settled(self.lane_id, self.verb, self.delay_ms)
        return Settled(self.lane_id, Verb.ACK)


def decode(body: bytes, queue: str, actors: Container[str], supported_version: int) -> "Message[Any]":
    """Return the message in `body`, fit to be handed to Dramatiq's threads.

    A wrong type in a field would kill the thread that meets it, so every field is checked here.

    Raises:
        Undeliverable: with the reason.

    """
    try:
        message: Any = cast("Any", Message).decode(body)
    except DecodeError as error:
        raise Undeliverable("undecodable body") from error
    fields: tuple[tuple[Any, type, str], ...] = (
        (message.queue_name, str, "queue_name"),
        (message.actor_name, str, "actor_name"),
        (message.kwargs, dict, "kwargs"),
        (message.options, dict, "options"),
        (message.message_id, str, "message_id"),
        (message.message_timestamp, int, "message_timestamp"),
    )
    for value, wanted, name in fields:
        if not isinstance(value, wanted):
            raise Undeliverable(f"undecodable body: {name} is {type(value).__name__}")
    if message.queue_name != queue:
        raise Undeliverable(f"wrong queue {message.queue_name[:100]!r}: it came by {queue!r}")
    version: Any = message.options.get("version", supported_version)
    if not isinstance(version, int) or version > supported_version:
        raise Undeliverable(f"unsupported version {str(version)[:20]}: this worker knows {supported_version}")
    if message.actor_name not in actors:
        raise Undeliverable(f"unknown actor {message.actor_name[:100]!r}")
    # Dramatiq's consumer thread would keep a message with an eta in its memory: Redis does the waiting.
    message.options.pop("eta", None)
    return cast("Message[Any]", message)


def actors_of(broker: Broker) -> Mapping[str, Any]:
    """Return the declared actors by name; Dramatiq leaves the types of an Actor open."""
    actors: Mapping[str, Any] = cast("Any", broker).actors
    return actors
