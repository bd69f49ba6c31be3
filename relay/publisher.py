"""Publisher: every write the relay makes to Redis, fenced by the token, in calls of bounded size.

The token (epoch, seq) is compared and set with each call. A mismatch means that Redis lost data or
that another relay took over; the publisher does not guess which, it raises.
"""

from collections.abc import Iterator, Mapping, Sequence

import redis.exceptions

from broker.lanes import Lanes, Limit, Outgoing, Published, Token, TokenMismatch
from runtime import tracing

#: Rows in one Lua call: some milliseconds of Redis' one thread, and 2 MB at the largest bodies.
ROWS_PER_CALL = 500


class RedisAway(Exception):
    """Redis cannot be written now: refused, reset, too slow, loading, full, or a read-only replica.

    `frozen`: it did not answer in time, so each further try costs that time, too.
    """

    def __init__(self, reason: str, *, frozen: bool = False) -> None:
        super().__init__(reason)
        self.frozen = frozen


def _away(error: redis.exceptions.RedisError) -> RedisAway:
    return RedisAway(type(error).__name__, frozen=isinstance(error, redis.exceptions.TimeoutError))


class Publisher:
    """Holds the token of this relay's reign. Not for use by several threads."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._token: Token | None = None
        self._reigns = False

    @property
    def reigns(self) -> bool:
        """Whether a token was seized and nothing has gone wrong since; any thread may ask, at any time."""
        # Not derived from the token: a call that is under way has none, and is no lost reign.
        return self._reigns

    def seize(self, epoch: int, *, forget_limits: bool = False) -> bool:
        """Begin a reign; return whether Redis may have lost data since the one before.

        `forget_limits`: what Redis knows of lanes is of another life of the database, whose versions
        mean nothing; every lane is closed until the resync tells its limits anew.

        Raises:
            RedisAway: try again later with a new epoch.
            TokenMismatch: a later epoch reigns.

        """
        self.abandon()
        try:
            seized = self._lanes.seize(epoch, forget_limits=forget_limits)
        except redis.exceptions.RedisError as error:
            raise _away(error) from error
        self._token = Token(epoch, 0)
        self._reigns = True
        return seized.lost

    def position(self) -> Mapping[str, str]:
        """Return where the last reign had read to; plain data, see `service`.

        Raises:
            RedisAway: it cannot be read now.

        """
        try:
            return self._lanes.position()
        except redis.exceptions.RedisError as error:
            raise _away(error) from error

    def missing(self, queue: str, intents: Mapping[str, int]) -> list[str]:
        """Return those of the message ids that are not alive in Redis as this intent, or a newer one.

        Raises:
            RedisAway: it cannot be read now.

        """
        try:
            return self._lanes.missing(queue, intents)
        except redis.exceptions.RedisError as error:
            raise _away(error) from error

    def publish(
        self,
        messages: Sequence[Outgoing] = (),
        limits: Sequence[Limit] = (),
        position: Mapping[str, str] | None = None,
    ) -> Published:
        """Write limits, then messages, then the position, in calls of at most 500 rows; all empty: the beat.

        Raises:
            RedisAway: some of it may not have been written, and the reign is over.
            TokenMismatch: likewise.

        """
        begun_ns = tracing.now_ns()
        total = Published(0, 0, 0)
        for some_messages, some_limits, last in _calls(messages, limits):
            done = self._call(some_messages, some_limits, position if last else None)
            total = Published(
                total.new + done.new, total.duplicate + done.duplicate, total.revived + done.revived
            )
        tracing.published([message.body for message in messages], begun_ns)
        return total

    def _call(
        self, messages: Sequence[Outgoing], limits: Sequence[Limit], position: Mapping[str, str] | None
    ) -> Published:
        if self._token is None:
            raise RedisAway("no reign")
        token, self._token = self._token, None
        try:
            self._token, done = self._send(token, messages, limits, position)
        finally:
            self._reigns = self._token is not None
        return done

    def _send(
        self,
        token: Token,
        messages: Sequence[Outgoing],
        limits: Sequence[Limit],
        position: Mapping[str, str] | None,
    ) -> tuple[Token, Published]:
        for last_try in (False, True):
            try:
                # The same (expected, next) again: if only its reply was lost, it is success.
                return self._lanes.publish(token, messages=messages, limits=limits, position=position)
            except redis.exceptions.TimeoutError as error:
                # Frozen, most likely: a second time-out would hold up the WAL for as long again.
                raise _away(error) from error
            except redis.exceptions.ConnectionError as error:
                if last_try:
                    raise _away(error) from error
            except redis.exceptions.RedisError as error:
                raise _away(error) from error
        raise AssertionError("unreachable")

    def abandon(self) -> None:
        """End the reign: nothing is written until the next `seize`."""
        self._token, self._reigns = None, False


def _calls(
    messages: Sequence[Outgoing], limits: Sequence[Limit]
) -> Iterator[tuple[Sequence[Outgoing], Sequence[Limit], bool]]:
    """Yield (messages, limits, is this the last call); at least one call.

    A setting may come after messages of its lane: a lane whose settings are not known is closed.
    """
    count = max(1, -(-len(messages) // ROWS_PER_CALL), -(-len(limits) // ROWS_PER_CALL))
    for i in range(count):
        part = slice(i * ROWS_PER_CALL, (i + 1) * ROWS_PER_CALL)
        yield messages[part], limits[part], i == count - 1


__all__ = ["ROWS_PER_CALL", "Publisher", "RedisAway", "TokenMismatch"]
