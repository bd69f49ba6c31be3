"""Idempotency keys: same key and same meaning, same job.

A key is 1 to 255 visible ASCII characters in exactly one header, compared byte for byte, and belongs
to its team. The fingerprint of a request is the SHA-256 over its route and over the canonical JSON of
what it *means*: validated, keys sorted, what equals its default left out. So spaces, the order of
keys, escapes, and naming a default make no difference; anything else does.
"""

import asyncio
import hashlib
import random
import re
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import orjson
from pydantic import BaseModel
from starlette.requests import Request

from db.accept import Decision, Outcome
from portal.problems import Problem
from runtime.tracing import span

T = TypeVar("T")

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
#: A duplicate waits so long for the first one's decision, seconds, without a connection or a lock.
BUSY_SECONDS = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.2  # seconds between looks


def key(request: Request) -> str:
    """Return the request's key.

    Raises:
        Problem: idempotency-key (missing, empty, repeated, too long, not visible ASCII).

    """
    given = request.headers.getlist("idempotency-key")
    if len(given) != 1 or _KEY.fullmatch(given[0]) is None:
        raise Problem("idempotency-key")
    return given[0]


def fingerprint(route: str, meaning: BaseModel) -> bytes:
    """Return what identifies the request's meaning, 32 bytes."""
    canonical = orjson.dumps(meaning.model_dump(exclude_defaults=True), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(route.encode() + b"\n" + canonical).digest()


async def decided(name: str, look: Callable[[float], Awaitable[tuple[Decision, T]]]) -> tuple[Decision, T]:
    """Call `look` until the key `name` is decided; it gets the seconds that are left.

    Each look is a span of the request's trace, which names the key.

    Raises:
        Problem: key-busy, another request is still deciding it.

    """
    until = time.monotonic() + BUSY_SECONDS
    pause = FIRST_PAUSE
    while True:
        with span("accept", key=name) as here:
            decision, value = await look(until - time.monotonic())
            here.tell(outcome=decision.outcome)
        if decision.outcome is not Outcome.BUSY:
            return decision, value
        if time.monotonic() + pause >= until:
            raise Problem("key-busy")
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- spreads looks, guards nothing
        pause = min(2 * pause, LONGEST_PAUSE)
