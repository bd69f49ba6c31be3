"""Ids: UUIDs of version 7 (RFC 9562), so that an index of jobs grows at its end."""

import re
import secrets
import time
from uuid import UUID

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def uuid7() -> UUID:
    """Return a new id: 48 bits of Unix milliseconds, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (1 << 48) - 1) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76  # version
    value = value & ~(0x3 << 62) | 0x2 << 62  # variant
    return UUID(int=value)


def uuid7s(count: int) -> list[UUID]:
    """Return so many new ids, rising: the order of a batch is the order of its ids."""
    return sorted(uuid7() for _ in range(count))


def parse(text: str) -> UUID | None:
    """Return the id in its one written form, None for anything else (UUID() takes many more)."""
    return UUID(text) if _UUID.fullmatch(text) else None
