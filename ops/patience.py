"""How long a client waits before it asks again, and when it stops asking."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

BUSY = 409
TOO_MANY = 429
# What a proxy says while a portal restarts, and what the portal says while PostgreSQL does.
AWAY = frozenset({502, 503, 504})
# Without advice: soon at first, since most faults are short; never so seldom that the end of one goes unseen.
FIRST_SECONDS = 0.1
LONGEST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request is tried again, in seconds from its first try."""

    seconds: float = 60.0


def pause(status: int | None, headers: Mapping[str, str], tries: int, now: datetime) -> float | None:
    """Return the seconds to wait before the next try; None: another try would get the same answer.

    `status` is None when there was no answer at all; `tries` were made so far. Every request of the
    client may be repeated: documents are named by their content, jobs by their Idempotency-Key.
    """
    advice = headers.get("retry-after")
    # 409 without advice is a conflict that stays: a job that ended without a preview.
    passing = (
        status is None or status == TOO_MANY or status in AWAY or (status == BUSY and advice is not None)
    )
    if not passing:
        return None
    # The exponent is bounded: 2.0 ** 1024 is an error.
    growing = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(tries - 1, 16))
    return max(growing, advised(advice, now))


def advised(retry_after: str | None, now: datetime) -> float:
    """Return the seconds that a Retry-After asks for (RFC 9110, 10.2.3: seconds or a date); 0 when none."""
    if retry_after is None:
        return 0.0
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())
