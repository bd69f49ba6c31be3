"""0007 to 0010: the patterns that do not count let through what those that counted did, and nothing else."""

from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation

KEYS = ["!", "~", "a-b", "k" * 255]
NO_KEYS = ["", "k" * 256, "a b", "a\n", "\x7f", "\u00e9", "a\tb"]
LANES = ["a", "0", "a-", "l" * 63]
NO_LANES = ["", "l" * 64, "-a", "A", "a_b", "a\n", "\u00e4"]
INTENT = "INSERT INTO outbox (message_id, queue, lane, priority, body) VALUES (%s, 'previews', %s, 5, '{}')"
HOLD = """
SELECT count(*) FROM pg_constraint WHERE conname IN ('key_is_printable', 'lane_is_a_name') AND convalidated
"""


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_taken(accept: Any, key: str) -> None:
    assert accept(key=key)


@pytest.mark.parametrize("key", NO_KEYS)
def test_no_key_is_refused(accept: Any, key: str) -> None:
    with pytest.raises(CheckViolation, match="key_is_printable"):
        accept(key=key)


@pytest.mark.parametrize("lane", LANES)
def test_a_lane_is_taken(admin: psycopg.Connection[Any], lane: str) -> None:
    admin.execute(INTENT, [f"{lane}|1", lane])


@pytest.mark.parametrize("lane", NO_LANES)
def test_no_lane_is_refused(admin: psycopg.Connection[Any], lane: str) -> None:
    with pytest.raises(CheckViolation, match="lane_is_a_name"):
        admin.execute(INTENT, [f"{lane}|12", lane])


def test_they_hold_for_the_rows_from_before(admin: psycopg.Connection[Any]) -> None:
    assert admin.execute(HOLD).fetchone() == (2,)
