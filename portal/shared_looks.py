"""Looks at the database that many requests want at one moment: one is made, and all take its answer.

What is remembered for a second runs out for everybody at once; without this, each request in hand would put
the same question.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedLooks(Generic[K, V]):
    """One look in flight for each key; `seconds` is how old one may be that another request joins."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._in_flight: dict[K, tuple[float, asyncio.Task[V]]] = {}

    async def at(self, key: K, look: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return what `look` returns, or a look at the same key that began less than `seconds` ago.

        A request that is cancelled leaves the look to the others. Raises what the look raises.
        """
        now = time.monotonic()
        begun, task = self._in_flight.get(key, (0.0, None))
        if task is None or now >= begun + self._seconds:
            task = asyncio.create_task(look())
            self._in_flight[key] = now, task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _ended(self, key: K, done: asyncio.Task[V]) -> None:
        if not done.cancelled():
            done.exception()  # seen, also when everybody who asked has left
        if self._in_flight.get(key, (0.0, None))[1] is done:
            del self._in_flight[key]
