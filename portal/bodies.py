"""Bodies: how bytes come in. Bounded in size, in time and in number, and only as they are declared.

A length header is believed only when it is too large; what counts is what arrives.
"""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from portal.problems import Problem

#: A body has 10 s, and one second more for each 10 kB that came: a stalled or trickling sender is let
#: go, a slow line is not.
GRACE_SECONDS = 10.0
BYTES_PER_SECOND = 10_000
#: What all JSON bodies that are being read or parsed may hold together, bytes; and those of one team,
#: which cannot take the others' part by not ending what it began.
JSON_IN_FLIGHT, JSON_OF_A_TEAM = 16 << 20, 8 << 20


class Budget:
    """Memory for JSON bodies that are in hand; the next one beyond it is answered 503."""

    def __init__(self, limit: int = JSON_IN_FLIGHT, of_a_team: int = JSON_OF_A_TEAM) -> None:
        self._limit = limit
        self._of_a_team = of_a_team
        self._used: dict[str, int] = {}  # of those who hold something
        self._total = 0

    @contextmanager
    def share(self, team: str) -> Generator["Share", None, None]:
        """Take the team's part in the budget until the block ends."""
        share = Share(self, team)
        try:
            yield share
        finally:
            self._give_back(team, share.held)

    def take(self, team: str, size: int) -> None:
        """Count `size` more bytes of the team; raises as `Share.take` does."""
        used = self._used.get(team, 0) + size
        if self._total + size > self._limit or used > self._of_a_team:
            raise Problem("overloaded")
        self._used[team] = used
        self._total += size

    def _give_back(self, team: str, size: int) -> None:
        left = self._used.pop(team, 0) - size
        if left > 0:
            self._used[team] = left
        self._total -= size


class Share:
    """One body's part of the budget."""

    def __init__(self, budget: Budget, team: str) -> None:
        self._budget = budget
        self._team = team
        self.held = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes.

        Raises:
            Problem: overloaded, there is no room.

        """
        self._budget.take(self._team, size)
        self.held += size


def require_type(request: Request, *allowed: str) -> str:
    """Return the request's media type, one of `allowed` (lower case).

    Raises:
        Problem: unsupported-media-type, also for another charset than UTF-8.

    """
    header = request.headers.get("content-type", "")
    media_type, *parameters = (part.strip().lower() for part in header.split(";"))
    if media_type not in allowed:
        raise Problem("unsupported-media-type", f"Content-Type must be {' or '.join(allowed)}.")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in {"utf-8", "utf8"}:
            raise Problem("unsupported-media-type", "The charset must be UTF-8.")
    return media_type


def _announced(request: Request, limit: int) -> None:
    """Refuse what can be refused before a byte is read."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise Problem(
            "unsupported-media-type",
            "Content-Encoding is not taken.",
            headers={"Accept-Encoding": "identity"},
        )
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> Problem:
    return Problem("too-large", f"At most {limit} bytes are taken.")


async def chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, at most `limit` bytes of it.

    Raises:
        Problem: too-large, too-slow, unsupported-media-type (an encoding).
        starlette.requests.ClientDisconnect: the client left before the end.

    """
    _announced(request, limit)
    loop = asyncio.get_running_loop()
    started = loop.time()
    received = 0
    more = True
    while more:
        deadline = started + GRACE_SECONDS + received / BYTES_PER_SECOND
        try:
            # Not Request.stream(): it ends two turns after the last piece, each with a timer of its own here.
            async with asyncio.timeout_at(deadline):
                message = await request.receive()
        except TimeoutError:
            raise Problem("too-slow") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        received += len(chunk)
        if received > limit:
            raise _too_large(limit)
        if chunk:
            yield chunk


async def whole(request: Request, limit: int, share: Share) -> bytearray:
    """Return the whole body, counted in the budget; raises as `chunks` does, and overloaded."""
    body = bytearray()
    async for chunk in chunks(request, limit):
        share.take(len(chunk))
        body += chunk
    return body
