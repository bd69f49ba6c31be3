"""A team's batches take turns at the database: who waits in vain is told why."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from portal.limits import BATCHES_AT_A_TIME
from support.postgres import Database
from support.team import Client, House, rows
from support.waiting import eventually

WAITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE usename = 'oncommit_portal' AND datname = current_database() AND wait_event_type = 'Lock'
"""


@contextmanager
def all_turns_taken(client: Client, database: Database, body: Any) -> Iterator[ThreadPoolExecutor]:
    """Keep batches `0`, `1`, … of the team at the database for the block; yield threads to ask from."""
    with (
        ThreadPoolExecutor(BATCHES_AT_A_TIME + 2) as threads,
        database.server.connect(database.name) as holder,
        holder.transaction(),
    ):
        holder.execute("LOCK TABLE batches IN SHARE MODE")
        for n in range(BATCHES_AT_A_TIME):
            threads.submit(client.post, body, key=str(n), path="/v1/batches")
        eventually(lambda: database.admin.execute(WAITING).fetchone() == (BATCHES_AT_A_TIME,))
        yield threads


def told(answer: httpx.Response) -> tuple[int, str, str]:
    return answer.status_code, answer.json()["type"], answer.headers["retry-after"]


def test_a_duplicate_that_waits_for_its_turn_in_vain_is_told_that_its_key_is_busy(
    house: House, client: Client
) -> None:
    body = {"jobs": [{"document": client.put(), "kind": "page"}] * 2}
    with all_turns_taken(client, house.database, body) as threads:
        duplicate = threads.submit(client.post, body, key="0", path="/v1/batches")
        new = threads.submit(client.post, body, key="new", path="/v1/batches")
        assert told(duplicate.result()) == (409, "/problems/key-busy", "1")
        assert told(new.result()) == (503, "/problems/overloaded", "1")
    # Now it finds what the first was decided to be, or decides it if that was given up meanwhile.
    again = client.post(body, key="0", path="/v1/batches")
    assert again.status_code == 202, again.text
    assert client.post(body, key="0", path="/v1/batches").json()["id"] == again.json()["id"]
    assert rows(client)["batches"] <= BATCHES_AT_A_TIME
    assert client.post(body, key="new", path="/v1/batches").status_code == 202
