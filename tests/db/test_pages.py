"""A page of the outbox costs what is in it, not what waits behind it."""

from typing import Any

import psycopg
import pytest

from db import outbox

FILL = """
INSERT INTO outbox (message_id, queue, lane, priority, body)
SELECT 'free|' || i, 'previews', 'free', 5, '{}' FROM generate_series(1, %s) AS i
"""
SIZE = 500


def blocks(conn: psycopg.Connection[Any], older_than_ms: int) -> int:
    """Return how many blocks one page reads, by the server's own account."""
    arguments = [0, older_than_ms, SIZE, 2**62]
    row = conn.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {outbox.HEADS}", arguments).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


@pytest.mark.parametrize("analysed", ["never", "when empty", "when small"])
def test_a_page_of_a_large_backlog_reads_as_little_as_one_of_a_small(
    admin: psycopg.Connection[Any], analysed: str
) -> None:
    if analysed == "when empty":
        admin.execute("ANALYZE outbox")
    admin.execute(FILL, [2 * SIZE])
    if analysed == "when small":
        admin.execute("ANALYZE outbox")
    small = blocks(admin, 0)
    admin.execute(FILL.replace("'free|'", "'free|later-'"), [80 * SIZE])
    assert blocks(admin, 0) <= 2 * small


def test_pages_meet_each_intent_once_and_none_above_the_last(admin: psycopg.Connection[Any]) -> None:
    admin.execute(FILL, [25])
    until = outbox.last(admin)
    admin.execute(FILL.replace("'free|'", "'free|later-'"), [10])
    seen: list[int] = []
    while page := outbox.heads(admin, seen[-1] if seen else 0, until, 10):
        seen += [intent for intent, _, _ in page]
    assert len(seen) == 25
    assert seen == sorted(set(seen))
    assert seen[-1] == until
