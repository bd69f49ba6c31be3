"""How a delivery ends: only a normal return is an ack; every exception brings the message back.

A message that its actor keeps (`Delivery.keep`) is acknowledged later, by the actor.
"""

from typing import Any

from dramatiq import Broker
from dramatiq.broker import MessageProxy
from dramatiq.errors import Retry
from dramatiq.middleware import Middleware, MiddlewareError

from broker.delivery import RETRY_MS, Delivery
from broker.lanes import Verb


class Defer(Retry, MiddlewareError):
    """Raised by an actor, or by a middleware before it: not now, and nothing was started.

    The message comes back after `delay_ms`; its team's token and turn are refunded. `why` "paused" or
    "full" also leaves the team's lane alone for a moment, so that nothing bounces. Being a Retry, it
    is no error in Dramatiq's log; being a MiddlewareError, it gets through before_process_message.
    """

    def __init__(self, delay_ms: int, why: str = "") -> None:
        super().__init__(why or "deferred", delay_ms)
        self.delay_ms = delay_ms
        self.why = why


class Settle(Middleware):
    """First in the list: what runs after a message runs backwards, so this has the last word."""

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        """Begin: until it is seen to end well, the message is unfinished."""
        del broker
        if isinstance(message, Delivery):
            if message.link.gate.draining:
                message.defer(Verb.REQUEUE, 0)
            message.finished = False

    def after_process_message(
        self,
        broker: Broker,
        message: MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        """End: done after a normal return that no other middleware has turned into a failure."""
        del broker, result
        if not isinstance(message, Delivery):
            return
        if exception is None:
            message.finished = not message.failed
        elif isinstance(exception, Defer):
            verb = Verb.HOLD if exception.why in {"paused", "full"} else Verb.REFUND
            message.defer(verb, exception.delay_ms)
        else:
            delay_ms: int | None = exception.delay if isinstance(exception, Retry) else None
            message.defer(Verb.DEFER, RETRY_MS if delay_ms is None else delay_ms)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        """End: a middleware said that there is nothing to do."""
        del broker
        if isinstance(message, Delivery):
            message.finished = not message.failed
