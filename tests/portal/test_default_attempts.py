"""A job that names no max_attempts has its kind's, in the answer and in how often it is started."""

from collections import Counter
from typing import Any

import pytest

from support.kinds import kinds
from support.postgres import Database
from support.processes import Processes
from support.team import Client, token_for
from support.waiting import eventually

pytestmark = pytest.mark.parametrize("session_server", kinds()[0][:1], indirect=True)

OF_KIND = 2


def test_the_default_of_a_kind_is_answered_and_is_how_often_the_renderer_starts(
    database: Database, processes: Processes
) -> None:
    """Alone and in a batch; who names a number has that one."""
    database.admin.execute("UPDATE kinds SET max_attempts = %s WHERE name = 'page'", [OF_KIND])
    portal = processes.portal()
    processes.relay()
    processes.worker(ONCOMMIT_BACKOFF_BASE_MS="1")
    client = Client(database, portal.url, "red", token_for(database, "red")[0])
    asked = {"document": client.put(), "kind": "page", "simulate": {"fail_first": 1000}}

    single = client.post(asked).json()
    assert single["max_attempts"] == OF_KIND
    answer = client.post({"jobs": [asked, asked | {"max_attempts": 3}]}, path="/v1/batches")
    assert answer.status_code == 202, answer.text

    def jobs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.http.get("/v1/jobs").json()["jobs"]
        return found

    eventually(lambda: [job["status"] for job in jobs()] == ["dead"] * 3, describe=jobs)
    most = {job["id"]: job["max_attempts"] for job in jobs()}
    assert most[single["id"]] == OF_KIND
    assert sorted(most.values()) == [OF_KIND, OF_KIND, 3]
    starts = Counter(line["job"] for line in processes.renders() if line["phase"] == "start")
    assert starts == most
