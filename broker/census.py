"""A census of the lanes: how much waits, is delayed and runs, for the longest lanes and for the rest.

It goes page by page, each far below a millisecond of Redis' time, so that ten thousand lanes disturb
nobody. Between pages the lanes move: it is a picture for people, not an account.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.lanes import Lanes

#: The lane that stands for all lanes that are not named. A team of this name is never named either.
OTHER = "other"
#: Lanes are counted up to here: 400 pages, some 0.2 s of Redis' time in all.
MOST_LANES = 100_000

Key = tuple[str, ...]  # (queue, lane), or (queue, state)


@dataclass(slots=True)
class Census:
    """Messages by (queue, lane), and lanes by (queue, state): ring, full, throttled, paused, closed."""

    waiting: dict[Key, int] = field(default_factory=dict[Key, int])
    delayed: dict[Key, int] = field(default_factory=dict[Key, int])
    running: dict[Key, int] = field(default_factory=dict[Key, int])
    states: Counter[Key] = field(default_factory=Counter[Key])


def take(lanes: Lanes, top: int = 50) -> Census:
    """Count everything, and name the `top` lanes with the most messages.

    Of delayed messages the next 2,000 of a queue count for their lanes, later ones for `other`.

    Raises:
        redis.exceptions.RedisError: Redis is away.

    """
    census = Census()
    for queue in lanes.queues():
        _count(lanes, queue, census)
    totals = Counter[Key]()
    for counts in (census.waiting, census.delayed, census.running):
        totals.update(counts)
    totals_named = {key: count for key, count in totals.items() if key[1] != OTHER}
    named = set(sorted(totals_named, key=lambda key: (-totals_named[key], key))[:top])
    for counts in (census.waiting, census.delayed, census.running):
        _fold(counts, named)
    return census


def _count(lanes: Lanes, queue: str, census: Census) -> None:
    cursor, seen = "0", 0
    states: dict[str, str] = {}
    while True:
        reply: list[Any] = lanes.ask("page", queue, cursor)
        rest = iter(reply[1:])
        for lane, waiting, state in zip(rest, rest, rest, strict=True):
            census.waiting[queue, lane.decode()] = waiting
            states[lane.decode()] = state.decode()
        cursor, seen = reply[0].decode(), seen + len(reply) // 3
        if cursor == "0" or seen >= MOST_LANES:
            break
    census.states.update((queue, state) for state in states.values())
    busy: list[Any] = lanes.ask("busy", queue)
    rest, left = iter(busy[1:]), busy[0]
    for lane, delayed, running in zip(rest, rest, rest, strict=True):
        census.delayed[queue, lane.decode()] = delayed
        census.running[queue, lane.decode()] = running
        left -= delayed
    census.delayed[queue, OTHER] = census.delayed.get((queue, OTHER), 0) + left


def _fold(counts: dict[Key, int], named: set[Key]) -> None:
    """Add what is not named to its queue's `other`."""
    before: Mapping[Key, int] = dict(counts)
    counts.clear()
    for key, count in before.items():
        kept = key if key in named else (key[0], OTHER)
        counts[kept] = counts.get(kept, 0) + count
