"""The quota counts what is there."""

from typing import Any

import psycopg
import pytest

OVER = "SELECT over_quota('acme', %s)"


@pytest.mark.parametrize(("quota", "there", "more", "over"), [
    (1, 0, 1, False), (1, 0, 2, True), (1, 1, 1, True), (3, 1, 2, False), (3, 1, 3, True), (0, 0, 1, True),
    (2**31 - 1, 1, 1, False),
])  # fmt: skip
def test_a_team_may_have_as_many_jobs_as_its_quota_says(
    admin: psycopg.Connection, accept: Any, *, quota: int, there: int, more: int, over: bool
) -> None:
    for _ in range(there):
        accept()
    admin.execute("UPDATE teams SET max_backlog = %s", [quota])
    assert admin.execute(OVER, [more]).fetchone() == (over,)
